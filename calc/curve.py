"""The memory curve of a step: every allocation, and the worst moment of each stretch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from calc.estimate import play
from calc.job import Job
from calc.memory.ledger import Line, Phase
from calc.memory.timeline import Timeline
from calc.plan import plan_of

#: What a step begins with, also where the stack has no instant of its own there.
FIRST_INSTANT = "fwd_layers"


class Event(NamedTuple):
    """One allocation (positive) or free (negative) of a line in bytes, and all that is held after
    it.

    `instant` is the part of the step, empty before the first that has a name, `layer` the layer's
    number from 0, None between layers.
    """

    instant: str
    layer: int | None
    line: str
    bytes: int
    total: int


class Recorded(Timeline):
    """A timeline with every layer played and every event kept: the whole curve, the same peaks."""

    every_layer = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def alloc(self, line: str, num_bytes: int) -> None:
        """As a timeline does."""
        super().alloc(line, num_bytes)
        self.events.append(Event(self.name, self.layer, line, num_bytes, self.total))

    def burst(self, line: str, num_bytes: int) -> None:
        """As a timeline does, also where it is not the most."""
        self.alloc(line, num_bytes)
        self.free(line, num_bytes)

    def free(self, line: str, num_bytes: int | None = None) -> None:
        """As a timeline does."""
        freed = self.held[line] if num_bytes is None else num_bytes
        super().free(line, freed)
        if freed:
            self.events.append(Event(self.name, self.layer, line, -freed, self.total))


def timeline(job: Job) -> Recorded | None:
    """The timeline of the largest rank's step; None where operations are not known.

    >>> from calc.models import load
    >>> found = timeline(Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="fsdp2"))
    >>> max(event.total for event in found.events) == max(phase.bytes for phase in found.instants())
    True
    """
    ranks = [(Recorded(), rank.batches) for rank in plan_of(job).ranks if rank.batches]
    for memory, batches in ranks:
        play(job, batches, memory)
    played = [memory for memory, _ in ranks]
    return max(
        played, key=lambda memory: max(phase.bytes for phase in memory.instants()), default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The worst moment of a layer, or of what is between layers: what is held then, by line."""

    instant: str
    layer: int | None
    bytes: int
    held: Mapping[str, int]

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is held, each line with its kind."""
        return Phase(self.instant, self.bytes, self.held).lines


def curve(memory: Recorded) -> tuple[Moment, ...]:
    """The memory curve of a timeline: for each stretch of the step, in its order, the worst moment.

    >>> from calc.models import load
    >>> found = timeline(Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="fsdp2"))
    >>> [(moment.instant, moment.layer) for moment in curve(found)][32:36]
    [('fwd_layers', 31), ('head_fwd', None), ('head_bwd', None), ('layers_bwd', 31)]
    """
    held, found = dict[str, int](), list[Moment]()
    for event in memory.events:
        held[event.line] = held.get(event.line, 0) + event.bytes
        instant = event.instant or FIRST_INSTANT
        if event.bytes < 0:
            continue
        same = found and (found[-1].instant, found[-1].layer) == (instant, event.layer)
        if same and found[-1].bytes > event.total:
            continue
        moment = Moment(
            instant=instant,
            layer=event.layer,
            bytes=event.total,
            held={k: v for k, v in held.items() if v},
        )
        found[-1 if same else len(found) :] = [moment]
    return tuple(found)
