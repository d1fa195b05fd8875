"""DeepSpeed ZeRO-1 and ZeRO-2: one flat buffer of all parameters, of which each rank updates a
partition.

Stage 1 leaves all 16-bit gradients where the backward made them and averages them into the
partition's at the end; stage 2 reduces each through the bucket as it is made, and keeps those of
its partition. A tensor that an edge of the partition cuts is kept whole. At the step the
partition's gradients are flattened, made fp32, and freed.
Source: `deepspeed/runtime/zero/stage_1_and_2.py` of DeepSpeed 0.19.8; states measured on real
ranks, peaks by a heap meter (Verification page).
Counted: the bucket (two with `overlap_comm`), gradients on their way through it, those beyond the
partition, and with the optimizer on the host the buffer in which a gradient comes back to be added
to.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from calc.memory.layers import numel_of
from calc.memory.timeline import Timeline
from calc.memory.train_step import MicroBatch
from calc.memory.training import Training
from calc.models import Model, Tensor
from calc.precision import Recipe
from calc.stacks.base import Stack
from calc.stacks.collectives import Collective
from calc.stacks.deepspeed import DeepSpeed
from calc.stacks.shards import ModelStates, flat, in_order, spans, trainable
from calc.units import ceil_div

AVERAGED, BEYOND = "averaged gradients", "gradients beyond the partition"


class DeepSpeed1(DeepSpeed):
    """ZeRO-1; with `offload` optimizer master copy and states live in host memory."""

    __slots__ = ()

    strategy = "zero1"
    stage = 1
    offloads = ("none", "optimizer")

    @property
    def offloaded(self) -> tuple[str, ...]:
        return ("master", "optimizer") if self.offload == "optimizer" else ()

    @property
    def sizes(self) -> str:
        return "one flat partition: its fp32 gradients are all made at once"

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return flat(tensors, ranks)

    def undivided(self, line: str, tensors: Iterable[Tensor], ranks: int) -> int:
        """Undivided weights lie in the padded buffer too."""
        return (
            ranks * flat(tensors, ranks) if line == "weights" and ranks > 1 else numel_of(tensors)
        )

    def edges(self, training: Training) -> int:
        """Bytes of gradients that are kept whole because the partition cuts them."""
        return self.kept_itemsize(training) * edge_elements(training.model, self.ranks)

    def persistent(self, training: Training) -> dict[str, int]:
        if self.offload == "none":
            return {}
        largest = max(t.numel for t in trainable(training.model.tensors))
        return {"offload buffer": training.compute_itemsize * largest}

    def pre_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        size = batch.training.compute_itemsize * self.reduce_bucket_size
        memory.alloc("reduce bucket", 2 * size if self.overlap_comm else size)
        DeepSpeed.pre_head_backward(self, memory, batch)

    def post_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        DeepSpeed.post_head_backward(self, memory, batch)
        Stack.post_head_backward(self, memory, batch)

    def pre_embedding_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        DeepSpeed.pre_embedding_backward(self, memory, batch)
        memory.free("activation gradients")

    def end_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        """All gradients are averaged into a new buffer of the partition's."""
        memory.free("root gradients", memory.held["root gradients"] - batch.embedding_gradient)
        memory.alloc(AVERAGED, batch.whole[AVERAGED])

    def whole(self, training: Training, states: ModelStates) -> dict[str, int]:
        share = self.kept_itemsize(training) * self.share(training, training.model.tensors, 1)
        return DeepSpeed.whole(self, training, states) | {AVERAGED: share + self.edges(training)}

    def update(
        self, training: Training, states: ModelStates, implementation: str
    ) -> dict[str, int] | None:
        """The partition's gradients are flattened and made fp32, and freed before the update."""
        if self.offload == "optimizer":
            return None
        share = self.share(training, training.model.tensors, 1)
        flattened = 2 * self.kept_itemsize(training) * share + self.edges(training)
        update = self.step_bytes(training, implementation, [((share,), "flat", 1)])
        temporaries = max(update, flattened)
        return {"fp32 gradients": 4 * share, "step temporaries": temporaries}

    def reductions(self, training: Training) -> int:
        """How often a step's gradients are reduced: once, when all have been added."""
        return 1

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        """Gradients are scattered to the ranks that update them, and new weights gathered."""
        times = self.reductions(training)
        return (
            self.collective("reduce-scatter", "gradients", self.gradient_piece(training), times),
            self.collective("all-gather", "new weights", self.weight_piece(training)),
        )

    def host_bytes(self, training: Training, states: ModelStates, largest: int) -> int:
        """With n elements of a partition: 4n master + states + 4n gradients for the optimizer + 2n
        updated weights, one gradient in transit, and 2n more where gradients accumulate.
        """
        if self.offload == "none":
            return DeepSpeed.host_bytes(self, training, states, largest)
        share = states.master // 4
        accumulated = 2 * share if training.accumulation > 1 else 0
        return 10 * share + states.optimizer + 2 * largest + accumulated


class DeepSpeed2(DeepSpeed1):
    """ZeRO-2; with `offload` optimizer gradients live in host memory too."""

    __slots__ = ()

    strategy = "zero2"
    stage = 2

    @property
    def offloaded(self) -> tuple[str, ...]:
        return ("master", "gradients", "optimizer") if self.offload == "optimizer" else ()

    def copies(self, training: Training, largest: int) -> int:
        return DeepSpeed.copies(self, training, largest) + largest

    def weight_gradients(self, training: Training, numel: int, largest: int) -> tuple[int, int]:
        """None stays where it was made: `gradients being reduced` has them."""
        return 0, 0

    def post_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        DeepSpeed.post_head_backward(self, memory, batch)
        self.wait_for_embedding(memory, batch)

    def pre_embedding_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        DeepSpeed.pre_embedding_backward(self, memory, batch)
        memory.alloc(BEYOND, batch.whole[BEYOND])

    def whole(self, training: Training, states: ModelStates) -> dict[str, int]:
        return DeepSpeed.whole(self, training, states) | {BEYOND: self.edges(training)}

    def end_backward(self, memory: Timeline, batch: MicroBatch) -> None: ...

    def reductions(self, training: Training) -> int:
        """Every micro-batch's gradients are scattered as they are made."""
        return training.accumulation


@lru_cache(maxsize=256)
def edge_elements(model: Model, ranks: int) -> int:
    """Gradient elements that a rank keeps beyond its partition, on the rank with most of them.

    A tensor that an edge of the partition cuts is kept whole: Σ over those of numel less what the
    partition has of it. Source: `grads_in_partition` of DeepSpeed's `stage_1_and_2.py`, measured
    (Verification page).

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
