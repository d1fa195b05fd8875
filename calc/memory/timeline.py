"""A timeline of allocations: what is on one GPU as time goes on, and when it is most.

A step is told as `alloc`, `free` and `move` of named lines, in bytes; instants name its parts.
The peak is the largest running sum, and its lines are what is held then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from calc.memory.ledger import Phase

Key = TypeVar("Key", bound=Hashable)
#: Turns of a repeating pattern that are played: the first, second and third, and the last two.
FIRST, LAST = 3, 2


class Timeline:
    """Allocations on one GPU in the order in which they are made.

    >>> memory = Timeline()
    >>> memory.instant("forward")
    >>> memory.alloc("weights", 30)
    >>> memory.alloc("activations", 12)
    >>> memory.free("activations")
    >>> memory.peak("forward")
    Phase(instant='forward', bytes=42, held={'weights': 30, 'activations': 12})
    """

    #: Whether every layer is played, also where they only repeat.
    every_layer = False

    def __init__(self) -> None:
        self.held: defaultdict[str, int] = defaultdict(int)
        self.total = 0
        self.layer: int | None = None
        self.peaks: dict[str, Phase] = {}
        self.name, self._most = "", -1
        self._lines: Mapping[str, int] = {}
        # Whether what is held now is the most of this instant, and not yet written down.
        self._fresh = False

    def instant(self, name: str) -> None:
        """Begin the part of the step that is called `name`, or go on with it."""
        if name == self.name:
            return
        self._close()
        self.name = name
        known = self.peaks.get(name)
        self._most, self._lines = (known.bytes, known.held) if known else (-1, {})

    def _close(self) -> None:
        if self._fresh:
            self._write_down()
        if self._most >= 0:
            self.peaks[self.name] = Phase(self.name, self._most, self._lines)

    def _write_down(self) -> None:
        self._lines, self._fresh = dict(self.held), False

    def alloc(self, line: str, num_bytes: int) -> None:
        """Allocate `num_bytes` more of `line`."""
        self.held[line] += num_bytes
        total = self.total = self.total + num_bytes
        if total >= self._most:  # of two alike the later
            self._most, self._fresh = total, True

    def burst(self, line: str, num_bytes: int) -> None:
        """Allocate `num_bytes` of `line` for a moment, and free them."""
        if self.total + num_bytes >= self._most:
            self.alloc(line, num_bytes)
            self.free(line, num_bytes)

    def free(self, line: str, num_bytes: int | None = None) -> None:
        """Free `num_bytes` of `line`, or all that is held of it."""
        if self._fresh:
            self._write_down()
        freed = self.held[line] if num_bytes is None else num_bytes
        self.held[line] -= freed
        self.total -= freed

    def move(self, line: str, to: str) -> None:
        """Call what is held of `line` by another name; nothing is allocated."""
        num_bytes = self.held[line]
        self.free(line)
        self.alloc(to, num_bytes)

    def peak(self, name: str) -> Phase:
        """The worst moment of the part called `name`; `KeyError` where it has none."""
        self._close()
        return self.peaks[name]

    def instants(self) -> tuple[Phase, ...]:
        """The worst moment of each part that has a name, in the order of the step."""
        self._close()
        return tuple(found for name, found in self.peaks.items() if name)

    def repeat(
        self,
        order: Sequence[Key],
        body: Callable[[Key, Key | None], None],
        *,
        last_first: bool = False,
    ) -> None:
        """Play `body(layer, following)` for each layer of `order`; turns in between that only
        repeat are skipped.

        With `last_first` the order begins with the last layer.

        Of a pattern that repeats, the first, second and third turn and the last two are played.
        What the third moved is moved once more for every turn between, all at once, so that no
        false peak appears.
        """
        at = 0
        for size, times in patterns(tuple(order)):
            for turn in range(times):
                if FIRST <= turn < times - LAST and not self.every_layer:
                    continue
                before = dict(self.held) if turn == FIRST - 1 else {}
                for layer in range(at + turn * size, at + (turn + 1) * size):
                    self.layer = len(order) - 1 - layer if last_first else layer
                    body(order[layer], order[layer + 1] if layer + 1 < len(order) else None)
                if turn == FIRST - 1 and times > FIRST + LAST and not self.every_layer:
                    self._again(before, times - LAST - FIRST)
            at += size * times
        self.layer = None

    def _again(self, before: Mapping[str, int], times: int) -> None:
        """Move `times` times more what has moved since `before`: between two turns, where no peak
        is.
        """
        for line, held in self.held.items():
            moved = times * (held - before.get(line, 0))
            self.held[line] += moved
            self.total += moved


@lru_cache(maxsize=1024)
def patterns(order: tuple[Hashable, ...]) -> tuple[tuple[int, int], ...]:
    """`order` as patterns that repeat, each as its length and how often it comes; single layers are
    patterns too.

    >>> patterns((0, 1, 1, 1, 2, 3, 2, 3, 2, 3))
    ((1, 1), (1, 3), (2, 3))
    """
    found, at = [], 0
    while at < len(order):
        size, times = max(
            ((size, _times(order, at, size)) for size in range(1, (len(order) - at) // 2 + 1)),
            key=lambda pattern: (pattern[0] * pattern[1] if pattern[1] > 1 else 0, -pattern[0]),
            default=(1, 1),
        )
        found.append((size, times) if times > 1 else (1, 1))
        at += size * times if times > 1 else 1
    return tuple(found)


def _times(order: tuple[Hashable, ...], at: int, size: int) -> int:
    """How often the `size` layers from `at` on come one after the other."""
    pattern, times = order[at : at + size], 1
    while order[at + times * size : at + (times + 1) * size] == pattern:
        times += 1
    return times
