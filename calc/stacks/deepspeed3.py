"""DeepSpeed ZeRO-3: every tensor is flattened and cut into N pieces, and gathered while it is used.

What was gathered stays until `stage3_max_live_parameters` are, with the next
`stage3_prefetch_bucket_size` on their way. 16-bit gradients have one flat buffer for good. At the
step one sub-group at a time is made fp32 and updated.
Source: `deepspeed/runtime/zero/stage3.py` of DeepSpeed 0.19.8; states measured on real ranks, peaks
by a heap meter (Verification page).
Counted: as much gathered as may be, the bucket, and gradients on their way through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from calc.memory.timeline import Timeline
from calc.memory.train_step import MicroBatch
from calc.memory.training import Training
from calc.models import Tensor
from calc.precision import Recipe
from calc.stacks.collectives import Collective
from calc.stacks.deepspeed import DeepSpeed
from calc.stacks.shards import ModelStates, gather_units, in_order, piece, trainable
from calc.units import ceil_div

GATHERED = "gathered parameters"
#: Weights that stay in host memory when the rest lives on NVMe, in elements (`max_in_cpu`).
MAX_IN_CPU = 10**9


class DeepSpeed3(DeepSpeed):
    """ZeRO-3; `offload` moves the optimizer, or all, to host memory, or all to NVMe."""

    __slots__ = ()

    strategy = "zero3"
    stage = 3
    offloads = ("none", "optimizer", "all", "nvme")

    @property
    def offloaded(self) -> tuple[str, ...]:
        states = ("master", "gradients", "optimizer")
        return {"none": (), "optimizer": states}.get(self.offload, ("weights", *states))

    @property
    def sizes(self) -> str:
        live, group = self.stage3_max_live_parameters, self.sub_group_size
        told = "stage 3 makes fp32 gradients for one sub-group at a time"
        return f"stage3_max_live_parameters {live:,}, sub_group_size {group:,}: {told}"

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return sum(t.count * ceil_div(t.numel, ranks) for t in tensors)

    def preallocated(self, training: Training) -> bool:
        return True

    def weight_gradients(self, training: Training, numel: int, largest: int) -> tuple[int, int]:
        """None stays where it was made: `gradients being reduced` has them."""
        return 0, 0

    def copies(self, training: Training, largest: int) -> int:
        """A gradient larger than the bucket goes alone: itself and two copies (measured)."""
        if largest > self.reduce_bucket_size:
            return 3 * largest
        return DeepSpeed.copies(self, training, largest) + largest

    def persistent(self, training: Training) -> dict[str, int]:
        return {"reduce bucket": training.compute_itemsize * self.reduce_bucket_size}

    def whole(self, training: Training, states: ModelStates) -> dict[str, int]:
        tensors = training.model.tensors
        live = (
            max(self.stage3_max_live_parameters, max(t.numel for t in tensors))
            + self.stage3_prefetch_bucket_size
        )
        gathered = min(self.gathered(training, tensors), training.compute_itemsize * live)
        return DeepSpeed.whole(self, training, states) | {GATHERED: gathered}

    def begin_forward(self, memory: Timeline, batch: MicroBatch) -> None:
        memory.alloc(GATHERED, batch.whole[GATHERED])

    def post_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        DeepSpeed.post_head_backward(self, memory, batch)
        self.wait_for_embedding(memory, batch)

    def update(
        self, training: Training, states: ModelStates, implementation: str
    ) -> dict[str, int] | None:
        """A sub-group at a time is made fp32; the 16-bit gradients stay."""
        if "optimizer" in self.offloaded:
            return None
        share, kept = self.share(training, training.model.tensors, 1), self.kept_itemsize(training)
        group = self.sub_group(training)
        update = self.step_bytes(training, implementation, [((group,), "flat", 1)])
        temporaries = max(update, kept * group)
        return {
            "gradients": kept * share,
            "fp32 gradients": 4 * group,
            "step temporaries": temporaries,
        }

    def sub_group(self, training: Training) -> int:
        """Elements of one rank's largest sub-group, in module order: it closes at the tensor that
        reaches `sub_group_size`. All parameters are taken to be one parameter group.
        Source: `_create_fp16_sub_groups` of `stage3.py`, DeepSpeed 0.19.8.
        """
        largest = group = 0
        for tensor in trainable(in_order(training.model)):
            for _ in range(tensor.count):
                group += self.share(training, [replace(tensor, count=1)], 1)
                largest = max(largest, group)
                if group >= self.sub_group_size:
                    group = 0
        return largest

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        """Weights are gathered in each forward and each backward, gradients scattered after each
        micro-batch.
        """
        units, times = tuple(gather_units(training.model)), training.accumulation
        weights = piece(self, training, units, training.gather_itemsize, frozen=True)
        return (
            self.collective("all-gather", "weights, forward", weights, times),
            self.collective("all-gather", "weights, backward", weights, times),
            self.collective("reduce-scatter", "gradients", piece(self, training, units, 2), times),
        )

    def host_bytes(self, training: Training, states: ModelStates, largest: int) -> int:
        """With n elements of a rank's share: 4n master + states + 4n gradients for the optimizer +
        2n 16-bit ones, and 2n weights with `all`. With `nvme` 2n gradients stay, up to 10⁹
        weights (`max_in_cpu`), five buffers of 10⁸ weights, and four of a sub-group in fp32, in
        which master, states and gradients pass through.
        Source: `stage3.py` and `swap_tensor` of DeepSpeed 0.19.8.
        """
        share = states.master // 4
        if self.offload == "none":
            return DeepSpeed.host_bytes(self, training, states, largest)
        if self.offload == "nvme":
            group = self.sub_group(training)
            weights = 2 * share if share <= MAX_IN_CPU else 2 * (MAX_IN_CPU + group)
            return 2 * share + weights + 5 * 2 * 10**8 + 4 * 4 * group
        weights = states.weights if self.offload == "all" else 0
        return 10 * share + states.optimizer + weights
