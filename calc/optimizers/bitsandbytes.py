"""bitsandbytes 0.50.2: 8-bit states in blocks of 256 elements, and 32-bit ones.

A tensor of fewer than 4,096 elements keeps fp32 states whatever the optimizer; a paged optimizer
keeps the same bytes in managed memory. One CUDA kernel a tensor reads the states, updates them in
registers and writes them back: the step allocates nothing, and takes no other form.
Source: `optim/optimizer.py`, `functional.py` and `backends/cuda/ops.py`, which hand pointers of
existing tensors to the kernels; states measured (Verification page). Its CPU backend dequantises
whole tensors and says nothing about CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from calc.optimizers.base import Optimizer, Shape, fails_on_dtensor
from calc.precision import Recipe
from calc.units import ceil_div

#: Elements of a block with one scale, and of the smallest tensor that is quantised.
BLOCK, SMALLEST = 256, 4096


class InFloat32(Optimizer):
    """Lion: its state is fp32, also beside 16-bit weights."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: 4·states·n."""
        return 4 * len(self.states) * prod(shape)

    def refusal(self, shards: str, recipe: Recipe) -> str:
        """Its kernels mix the DTensor with its own plain states."""
        return fails_on_dtensor(self, shards)


class Blockwise(InFloat32):
    """AdamW8bit, PagedAdamW8bit, Lion8bit: a byte an element and an fp32 scale a block."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: states·(n + 4·⌈n/256⌉), and 4·states·n below 4,096 elements."""
        numel = prod(shape)
        if numel < SMALLEST:
            return InFloat32.state_bytes(self, shape, itemsize, kind)
        return len(self.states) * (numel + 4 * ceil_div(numel, BLOCK))


#: The class of each `rule` that a record may name.
RULES: Mapping[str, type[Optimizer]] = {"bnb8": Blockwise, "fp32": InFloat32}
