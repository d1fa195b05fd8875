"""What is allocated at one instant, line by line, and how sure each line is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Lines that are no plain sum of shapes and dtypes: set by the user, or found by measuring.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "reduce bucket": "config",
        "gathered parameters": "config",
        "gradients being reduced": "measured",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item of a phase. `kind`: exact (shapes, dtypes), config (a size the user sets), measured
    or allowance.
    """

    line: str
    bytes: int
    kind: str = "exact"


@dataclass(frozen=True, slots=True)
class Phase:
    """What is allocated at one instant of a step on the largest rank: its name, the sum, and the
    bytes of each line.
    """

    instant: str
    bytes: int
    held: Mapping[str, int]

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that hold something, each with its kind, in the order in which they were first
        allocated.
        """
        some = ((name, num_bytes) for name, num_bytes in self.held.items() if num_bytes)
        return tuple(Line(line=name, bytes=n, kind=KINDS.get(name, "exact")) for name, n in some)
