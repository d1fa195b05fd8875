"""The peak as a function of one number: every running total of a step is affine in it, so two plays
say all.

At a fixed micro-batch the totals are affine in the sequence, as long as no operation is quadratic
in it; at a fixed sequence they are affine in the micro-batch. The largest of them is their upper
envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from calc.memory.timeline import Timeline


class Totals(Timeline):
    """A timeline that keeps every running total."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[int] = []

    def alloc(self, line: str, num_bytes: int) -> None:
        """As a timeline does."""
        super().alloc(line, num_bytes)
        self.totals.append(self.total)

    def burst(self, line: str, num_bytes: int) -> None:
        """As a timeline does."""
        self.totals.append(self.total + num_bytes)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The largest of some affine functions, each as its value at 0 and its slope, in bytes."""

    lines: tuple[tuple[int, int], ...]

    def __call__(self, at: int) -> int:
        """The largest value at `at` ≥ 0.

        >>> Envelope(((10, 1), (0, 3)))(4), Envelope(((10, 1), (0, 3)))(6)
        (14, 18)
        """
        return max(fixed + slope * at for fixed, slope in self.lines)


def envelope(plays: Iterable[Callable[[int], Totals]], constant: Iterable[int] = ()) -> Envelope:
    """The peak of several timelines, each played at 0 and at 1, and of some constant amounts."""
    steepest = {0: max(constant, default=0)}
    for play in plays:
        for start, after in zip(play(0).totals, play(1).totals, strict=True):
            slope = after - start
            steepest[slope] = max(start, steepest.get(slope, start))
    # A line is left out where a steeper one starts as high.
    kept: list[tuple[int, int]] = []
    for slope in sorted(steepest, reverse=True):
        if not kept or steepest[slope] > kept[-1][0]:
            kept.append((steepest[slope], slope))
    return Envelope(tuple(kept))
