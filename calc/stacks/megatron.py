"""Megatron-LM: fp32 gradients in one contiguous buffer, and with its distributed optimizer master and states divided.

The buffer is made with the model; each 16-bit gradient is added to it as the backward makes it.
Source: Megatron-LM's `DistributedOptimizer` and its documentation (2 + 4 + 12/N bytes per parameter).
Counted: the buffer for good, and one weight's gradient on its way into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from calc.memory.training import Training
from calc.models import Tensor
from calc.stacks.base import Stack
from calc.stacks.shards import Piece, flat, numel_of, trainable
from calc.states import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Megatron(Stack):
    """Ranks that each hold weights and fp32 gradients, and everything else too."""

    strategy: ClassVar[str] = "ddp"
    recipes: ClassVar[tuple[str, ...]] = ("megatron",)

    def preallocated(self, training: Training) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronDistributed(Megatron):
    """With `use_distributed_optimizer`: ranks that share master copy and states, as one flat buffer."""

    strategy: ClassVar[str] = "zero1"
    stage: ClassVar[int] = 1
    shards: ClassVar[str] = "flat"

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return flat(tensors, ranks)

    def whole(self, line: str, tensors: Iterable[Tensor], ranks: int) -> int:
        """Undivided weights lie in the padded buffer too."""
        return ranks * flat(tensors, ranks) if line == "weights" and ranks > 1 else numel_of(tensors)

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        if ranks == 1:
            yield from Stack.pieces(self, training, ranks)
        else:
            yield [((self.cut(trainable(training.model.tensors), ranks, training.recipe),), "flat", 1)]
