"""What DeepSpeed's stages share: the `zero_optimization` section, 16-bit gradients, and their
bucket.

Gradients are reduced bucket by bucket while the backward runs; a tensor's gradient is in the bucket
and, until that is full, where autograd made it. At the step they are flattened and made fp32 for
the optimizer, beside an fp32 master copy.
Source: `deepspeed/runtime/zero` of DeepSpeed 0.19.8; states measured on real ranks, peaks by a heap
meter (Verification page).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from calc.memory.timeline import Timeline
from calc.memory.train_step import MicroBatch
from calc.memory.training import Training
from calc.models import Model, Tensor
from calc.optimizers import FLAT, Piece
from calc.precision import Recipe, get_recipe
from calc.stacks.base import Stack
from calc.stacks.shards import trainable
from calc.stacks.units import BucketUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed(Stack):
    """The settings of `zero_optimization` by their own names; sizes are in elements."""

    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    sub_group_size: int = 1_000_000_000

    recipes = ("zero", "deepspeed")
    owner = "DeepSpeed"
    shards = FLAT

    def held(self, recipe: Recipe) -> Recipe:
        """The paper's accounting leaves out the fp32 gradients that DeepSpeed makes at its step."""
        return get_recipe("deepspeed") if recipe.name == "zero" else recipe

    def accounting(self, recipe: str) -> tuple[str, ...]:
        if recipe == "zero":
            told = (
                "recipe zero is the paper's accounting between steps; phases and peak are those "
                "of DeepSpeed, which at its step also holds fp32 gradients, sharded"
            )
        else:
            told = (
                "states are DeepSpeed's own count at its step; the 16-bit gradients are gone when "
                "the fp32 ones exist, so the peak can be below that sum"
            )
        return (told, f"reduce_bucket_size {self.reduce_bucket_size:,}, {self.sizes}")

    @property
    def sizes(self) -> str:
        """The stage's other sizes, and what its step makes of them."""
        raise NotImplementedError

    def remarks(self, model: Model, ep: int) -> tuple[str, ...]:
        if self.offload not in ("optimizer", "all"):
            return ()
        return (
            "DeepSpeed's optimizer on the host reads fp32 gradients, beside 16-bit ones or weights",
        )

    def gradient_itemsize(self, training: Training) -> int:
        return training.compute_itemsize

    def kept_itemsize(self, training: Training) -> int:
        """Between steps gradients are 16 bit; the fp32 ones are made at the step."""
        return 2

    def accumulates_in_place(self, training: Training) -> bool:
        return False

    def copies(self, training: Training, largest: int) -> int:
        """Elements of gradients on their way through the bucket, where a module's largest tensor
        has `largest`.
        """
        return min(self.reduce_bucket_size, training.model.num_trainable)

    def unit(self, training: Training, tensors: Iterable[Tensor]) -> BucketUnit:
        tensors = tuple(tensors)
        largest = max((t.numel for t in trainable(tensors)), default=0)
        return BucketUnit(
            reducing=training.compute_itemsize * self.copies(training, largest),
            kept_gradients=self.kept_gradients(training, tensors),
        )

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        yield [((self.cut(trainable(training.model.tensors), ranks, training.recipe),), "flat", 1)]

    def pre_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        memory.alloc("gradients being reduced", batch.last.reducing)

    def post_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        memory.free("gradients being reduced")

    def pre_backward(self, memory: Timeline, unit: BucketUnit, following: Any) -> None:
        memory.alloc("gradients being reduced", unit.reducing)

    def post_backward(self, memory: Timeline, unit: BucketUnit) -> None:
        memory.free("gradients being reduced")
        memory.free("layer gradients")
        memory.alloc("gradients", unit.kept_gradients)

    def pre_embedding_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        memory.free("head gradient")
        memory.alloc("gradients being reduced", batch.first.reducing)

    def wait_for_embedding(self, memory: Timeline, batch: MicroBatch) -> None:
        """A tied head's gradient waits for the embedding's where earlier micro-batches have left
        theirs.
        """
        model = batch.training.model
        if model.tied and self.preallocated(batch.training):
            memory.instant("layers_bwd")
            numel = sum(t.count * t.numel for t in trainable(model.first))
            memory.free("head gradient")
            memory.alloc("head gradient", self.gradient_itemsize(batch.training) * numel)
