"""Megatron-LM: fp32 gradients in one contiguous buffer, and with its distributed optimizer master
and states divided.

The buffer is made with the model; each 16-bit gradient is added to it as the backward makes it.
Source: Megatron-LM's `DistributedOptimizer` and its documentation (2 + 4 + 12/N bytes per
parameter).
Counted: the buffer for good, and one weight's gradient on its way into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calc.memory.layers import numel_of
from calc.memory.training import Training
from calc.models import Tensor
from calc.optimizers import FLAT, Piece
from calc.precision import Recipe
from calc.stacks.base import Stack
from calc.stacks.collectives import Collective
from calc.stacks.shards import flat, trainable


class Megatron(Stack):
    """Ranks that each hold weights and fp32 gradients, and everything else too."""

    __slots__ = ()

    strategy = "ddp"
    recipes = ("megatron",)
    live_bucket = True

    @property
    def gradients_stay(self) -> bool:
        return True


class MegatronDistributed(Megatron):
    """With `use_distributed_optimizer`: ranks that share master copy and states, as one flat
    buffer.
    """

    __slots__ = ()

    strategy = "zero1"
    stage = 1
    shards = FLAT
    live_bucket = False

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return flat(tensors, ranks)

    def undivided(self, line: str, tensors: Iterable[Tensor], ranks: int) -> int:
        """Undivided weights lie in the padded buffer too."""
        return (
            ranks * flat(tensors, ranks) if line == "weights" and ranks > 1 else numel_of(tensors)
        )

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        yield [((flat(trainable(training.model.tensors), ranks),), "flat", 1)]

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        """Gradients are scattered to the ranks that update them, and new weights gathered."""
        return (
            self.collective("reduce-scatter", "gradients", self.gradient_piece(training)),
            self.collective("all-gather", "new weights", self.weight_piece(training)),
        )
