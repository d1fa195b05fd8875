"""DeepSpeed ZeRO-3: every tensor is flattened and cut into N pieces, and gathered while it is used.

What was gathered stays until `stage3_max_live_parameters` are, with the next
`stage3_prefetch_bucket_size` on their way. 16-bit gradients have one flat buffer for good. At the step
one sub-group at a time is made fp32 and updated.
Source: `deepspeed/runtime/zero/stage3.py` of DeepSpeed 0.19.8; states measured on real ranks, peaks by
a heap meter (Verification page).
Counted: as much gathered as may be, the bucket, and gradients on their way through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from calc.memory.timeline import Timeline
from calc.memory.train_step import Step
from calc.memory.training import Training
from calc.models import Tensor
from calc.stacks.base import Stack
from calc.stacks.deepspeed import DeepSpeed
from calc.stacks.shards import trainable
from calc.states import Recipe
from calc.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed3(DeepSpeed):
    """ZeRO-3; `offload` moves the optimizer, or all, to host memory, or all to NVMe."""

    strategy: ClassVar[str] = "zero3"
    stage: ClassVar[int] = 3
    offloads: ClassVar[tuple[str, ...]] = ("none", "optimizer", "all", "nvme")

    @property
    def offloaded(self) -> tuple[str, ...]:
        states = ("master", "gradients", "optimizer")
        return {"none": (), "optimizer": states}.get(self.offload, ("weights", *states))

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return sum(t.count * ceil_div(t.numel, ranks) for t in tensors)

    def preallocated(self, training: Training) -> bool:
        return True

    def weight_gradients(self, training: Training, numel: int, largest: int) -> tuple[int, int]:
        """None stays where it was made: `gradients being reduced` has them."""
        return 0, 0

    def copies(self, training: Training, largest: int) -> int:
        """A gradient that is larger than the bucket goes alone: itself and two copies (measured)."""
        if largest > self.reduce_bucket_size:
            return 3 * largest
        return DeepSpeed.copies(self, training, largest) + largest

    def persistent(self, step: Step) -> dict[str, int]:
        return {"reduce bucket": step.training.compute_itemsize * self.reduce_bucket_size}

    def start(self, memory: Timeline, step: Step) -> None:
        Stack.start(self, memory, step)
        training, tensors = step.training, step.training.model.tensors
        live = max(self.stage3_max_live_parameters, max(t.numel for t in tensors)) + self.stage3_prefetch_bucket_size
        most = training.compute_itemsize * live
        memory.alloc("gathered parameters", min(self.gathered(training, tensors), most))

    def post_head_backward(self, memory: Timeline, step: Step) -> None:
        DeepSpeed.post_head_backward(self, memory, step)
        self.wait_for_embedding(memory, step)

    def optimizer_step(self, memory: Timeline, step: Step) -> None:
        """A sub-group at a time is made fp32; the 16-bit gradients stay."""
        if "optimizer" in self.offloaded:
            return
        training = step.training
        share = self.share(training, training.model.tensors, 1)
        largest = max((t.numel for t in trainable(training.model.tensors)), default=0)
        group = min(share, self.sub_group_size + largest // self.ranks)
        kept = self.kept_itemsize(training)
        memory.free("gradients")
        memory.alloc("gradients", kept * share)
        memory.alloc("fp32 gradients", 4 * group)
        memory.alloc("step temporaries", max(self.update(step, group), kept * group))
