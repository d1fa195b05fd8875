"""One GPU: autograd alone, nothing around it.

Counted: what every stack has. Gradients stay where the backward makes them until the optimizer has read them.
Source: PyTorch 2.13.0, measured by its MemTracker (Verification page).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calc.stacks.base import Stack
from calc.units import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Single(Stack):
    """One rank that holds everything."""

    strategy: ClassVar[str] = "single"
    recipes: ClassVar[tuple[str, ...]] = ("zero", "autocast", "fp32", "pure-bf16", "bf16-fp32-states")

    @classmethod
    def spread(cls, replicas: int, shard_size: int) -> dict[str, int]:
        if replicas != 1:
            raise InputError(f"strategy 'single' takes 1 GPU for each tp and pp, not {replicas:,}")
        return {"ranks": 1}
