"""torchao 0.18.0: AdamW with states of 8 or 4 bits, in blocks of 256 or 128 elements.

Only a tensor of at least 4,096 elements that is a whole number of blocks is quantised; every other
keeps two states in its own dtype. The step compiles one function a tensor, always, so the compiled
one is counted. Two kernels share the work on a matrix, and what passes between them is allocated.
Source: `optim/adam.py` and `quant_utils.py`; states measured (Verification page). Temporaries are
the buffers in the code that Inductor of PyTorch 2.13.0 writes: for the CPU recorded
(`tests/oracle/step_temporaries.py`), for CUDA (capability 9.0, Triton 3.7.0) read on twenty shapes
and not run. Other releases may fuse otherwise. Without the compiler (`TORCHDYNAMO_DISABLE=1`) a
step allocates 53 to 57 bytes for each element of the largest tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from calc.optimizers.base import DTENSOR, Optimizer, Pieces, Shape, keeps_dtype
from calc.precision import Recipe

#: Elements of the smallest tensor that is quantised.
SMALLEST = 4096


class Quantised(Optimizer):
    """What both have in common."""

    __slots__ = ()

    def refusal(self, shards: str, recipe: Recipe) -> str:
        """On 16-bit DTensors its interpolation mixes two dtypes."""
        if reason := keeps_dtype(self, recipe):
            return reason
        if shards == DTENSOR and recipe.itemsize("weights") == 2:
            return f"{self.library} needs fp32 shards there"
        return ""


class EightBit(Quantised):
    """AdamW8bit: a byte an element, a scale a block, and a table of 256 numbers a state."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: states·(n + 4n/256 + 1,024), else states·n·itemsize."""
        numel = prod(shape)
        if not is_quantised(numel, 256):
            return Optimizer.state_bytes(self, shape, itemsize, kind)
        return len(self.states) * (numel + 4 * (numel // 256) + 1024)

    def step_temporaries(self, step: str, itemsize: int, pieces: Pieces, ranks: int) -> int:
        """Both states in fp32, scaled, with their scales: 2·(4n + 4n/256) of the largest tensor.

        Nothing for a flat tensor or one whose rows are a block: then one kernel does all of it.
        """
        largest = max((prod(s) for s, _, _ in pieces if _takes_two_kernels(s)), default=0)
        return 2 * (4 * largest + 4 * (largest // 256))


class FourBit(Quantised):
    """AdamW4bit: half a byte an element, a scale a block, and a table of 16 numbers a state."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: states·(n/2 + 4n/128 + 64), else states·n·itemsize."""
        numel = prod(shape)
        if not is_quantised(numel, 128):
            return Optimizer.state_bytes(self, shape, itemsize, kind)
        return len(self.states) * (numel // 2 + 4 * (numel // 128) + 64)

    def step_temporaries(self, step: str, itemsize: int, pieces: Pieces, ranks: int) -> int:
        """As with 8 bits, and each element's code as int64 until two are packed into a byte.

        Formula: 2·(4n + 8n + 4n/128) of the largest tensor; rows of one block need no scale apart.
        """
        quantised = (s for s, _, _ in pieces if is_quantised(prod(s), 128))
        return max((_four_bit(shape) for shape in quantised), default=0)


#: The class of each `rule` that a record may name.
RULES: Mapping[str, type[Optimizer]] = {"torchao8": EightBit, "torchao4": FourBit}


def is_quantised(numel: int, block: int) -> bool:
    """Whether a tensor of so many elements is kept in blocks.

    >>> [is_quantised(numel, 256) for numel in (256, 4096, 4097)]
    [False, True, False]
    """
    return numel >= SMALLEST and numel % block == 0


def _takes_two_kernels(shape: Shape) -> bool:
    """Whether the 8-bit step of such a tensor is not one kernel."""
    return len(shape) > 1 and shape[-1] != 256 and is_quantised(prod(shape), 256)


def _four_bit(shape: Shape) -> int:
    """Bytes between the kernels of one tensor."""
    numel = prod(shape)
    scales = 0 if shape[-1] == 128 else 4 * (numel // 128)
    return 2 * (12 * numel + scales)
