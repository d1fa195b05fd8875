"""One GPU: autograd alone, nothing around it.

Counted: what every stack has. Gradients stay where the backward makes them until the optimizer has
read them.
Source: PyTorch 2.13.0, measured by its MemTracker (Verification page).
"""

from __future__ import annotations

from calc.memory.training import Training
from calc.stacks.base import Stack
from calc.stacks.collectives import Collective


class Single(Stack):
    """One rank that holds everything."""

    __slots__ = ()

    strategy = "single"
    alone = True
    recipes = ("zero", "autocast", "fp32", "pure-bf16", "bf16-fp32-states")

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        return ()
