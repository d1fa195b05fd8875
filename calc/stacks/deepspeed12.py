"""DeepSpeed ZeRO-1 and ZeRO-2: one flat buffer of all parameters, of which each rank updates a partition.

Stage 1 leaves all 16-bit gradients where the backward made them and averages them into the partition's at the end;
stage 2 reduces each through the bucket as it is made, and keeps those of its partition. A tensor that an edge of the
partition cuts is kept whole. At the step the partition's gradients are flattened, made fp32, and freed.
Source: `deepspeed/runtime/zero/stage_1_and_2.py` of DeepSpeed 0.19.8; states measured on real ranks, peaks by a heap
meter (Verification page).
Counted: the bucket (two with `overlap_comm`), gradients on their way through it, those beyond the partition, and with
the optimizer on the host the buffer in which a gradient comes back to be added to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from calc.memory.timeline import Timeline
from calc.memory.train_step import Step
from calc.memory.training import Training
from calc.models import Model, Tensor
from calc.stacks.base import Stack
from calc.stacks.deepspeed import DeepSpeed
from calc.stacks.shards import flat, in_order, numel_of, spans, trainable
from calc.states import Recipe
from calc.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed1(DeepSpeed):
    """ZeRO-1; with `offload` optimizer master copy and states live in host memory."""

    strategy: ClassVar[str] = "zero1"
    stage: ClassVar[int] = 1
    offloads: ClassVar[tuple[str, ...]] = ("none", "optimizer")

    @property
    def offloaded(self) -> tuple[str, ...]:
        return ("master", "optimizer") if self.offload == "optimizer" else ()

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return flat(tensors, ranks)

    def whole(self, line: str, tensors: Iterable[Tensor], ranks: int) -> int:
        """Undivided weights lie in the padded buffer too."""
        return ranks * flat(tensors, ranks) if line == "weights" and ranks > 1 else numel_of(tensors)

    def edges(self, training: Training) -> int:
        """Bytes of gradients that are kept whole because the partition cuts them."""
        return self.kept_itemsize(training) * edge_elements(training.model, self.ranks)

    def persistent(self, step: Step) -> dict[str, int]:
        if self.offload == "none":
            return {}
        largest = max(t.numel for t in trainable(step.training.model.tensors))
        return {"offload buffer": step.training.compute_itemsize * largest}

    def pre_head_backward(self, memory: Timeline, step: Step) -> None:
        size = step.training.compute_itemsize * self.reduce_bucket_size
        memory.alloc("reduce bucket", 2 * size if self.overlap_comm else size)
        DeepSpeed.pre_head_backward(self, memory, step)

    def post_head_backward(self, memory: Timeline, step: Step) -> None:
        DeepSpeed.post_head_backward(self, memory, step)
        Stack.post_head_backward(self, memory, step)

    def pre_embedding_backward(self, memory: Timeline, step: Step) -> None:
        DeepSpeed.pre_embedding_backward(self, memory, step)
        memory.free("activation gradients")

    def end_backward(self, memory: Timeline, step: Step) -> None:
        """All gradients are averaged into a new buffer of the partition's."""
        memory.free("root gradients", memory.held["root gradients"] - step.embedding_gradient)
        share = self.kept_itemsize(step.training) * self.share(step.training, step.training.model.tensors, 1)
        memory.alloc("averaged gradients", share + self.edges(step.training))

    def optimizer_step(self, memory: Timeline, step: Step) -> None:
        """The partition's gradients are flattened and made fp32, and freed before the update."""
        if self.offload == "optimizer":
            return
        training = step.training
        share = self.share(training, training.model.tensors, 1)
        memory.free("gradients")
        memory.alloc("fp32 gradients", 4 * share)
        flattened = 2 * self.kept_itemsize(training) * share + self.edges(training)
        memory.alloc("step temporaries", max(self.update(step, share), flattened))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed2(DeepSpeed1):
    """ZeRO-2; with `offload` optimizer gradients live in host memory too."""

    strategy: ClassVar[str] = "zero2"
    stage: ClassVar[int] = 2

    @property
    def offloaded(self) -> tuple[str, ...]:
        return ("master", "gradients", "optimizer") if self.offload == "optimizer" else ()

    def copies(self, training: Training, largest: int) -> int:
        return DeepSpeed.copies(self, training, largest) + largest

    def weight_gradients(self, training: Training, numel: int, largest: int) -> tuple[int, int]:
        """None stays where it was made: `gradients being reduced` has them."""
        return 0, 0

    def post_head_backward(self, memory: Timeline, step: Step) -> None:
        DeepSpeed.post_head_backward(self, memory, step)
        self.wait_for_embedding(memory, step)

    def pre_embedding_backward(self, memory: Timeline, step: Step) -> None:
        DeepSpeed.pre_embedding_backward(self, memory, step)
        memory.alloc("gradients beyond the partition", self.edges(step.training))

    def end_backward(self, memory: Timeline, step: Step) -> None: ...


@lru_cache(maxsize=256)
def edge_elements(model: Model, ranks: int) -> int:
    """Gradient elements that a rank keeps beyond its partition, on the rank with most of them.

    A tensor that an edge of the partition cuts is kept whole: Σ over those of numel less what the partition
    has of it. Source: `grads_in_partition` of DeepSpeed's `stage_1_and_2.py`, measured (Verification page).

    >>> from calc.models import load
    >>> edge_elements(load("llama-3.1-8b"), 8)
    86777344
    """
    tensors = trainable(in_order(model))
    share = flat(tensors, ranks)
    beyond = [0] * ranks
    for start, end, _ in spans(tensors):
        for rank in range(start // share, ceil_div(end, share)):
            beyond[rank] += max(0, rank * share - start) + max(0, end - (rank + 1) * share)
    return max(beyond)
