"""A stack on one GPU, or the same on every GPU: nothing is gathered, gradients simply stay.

Every other stack is this one with hooks of its own: what it allocates and frees around a module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calc.memory.timeline import Timeline
from calc.memory.train_step import MicroBatch
from calc.memory.training import Training, packed
from calc.models import Tensor
from calc.stacks.collectives import Collective
from calc.stacks.sharding import Sharding
from calc.stacks.shards import ModelStates, flat, trainable
from calc.stacks.units import Unit
from calc.units import ceil_div

STATES = ("weights", "master", "optimizer")


class Stack(Sharding):
    """A framework's hooks around the modules of a model, and what its ranks send each other."""

    __slots__ = ()

    # The module, and the hooks around it.

    def numel_gathered(self, training: Training, tensor: Tensor) -> int:
        """Elements of a whole tensor as it is gathered."""
        return tensor.numel

    def gathered(self, training: Training, tensors: Iterable[Tensor]) -> int:
        """Bytes of whole tensors in the compute dtype; a frozen NF4 matrix is packed."""
        found = 0
        for tensor in tensors:
            size = training.compute_itemsize * self.numel_gathered(training, tensor)
            found += tensor.count * (
                ceil_div(tensor.numel, 2) if packed(tensor, training.base_dtype) else size
            )
        return found

    def unit(self, training: Training, tensors: Iterable[Tensor]) -> Any:
        """What the stack has to know of a module."""
        return Unit(kept_gradients=self.kept_gradients(training, tensors))

    def kept_gradients(self, training: Training, tensors: Iterable[Tensor]) -> int:
        """Bytes that a module's gradients add to those kept, in a backward that has none yet."""
        if self.preallocated(training) or "gradients" in self.offloaded:
            return 0
        return self.kept_itemsize(training) * self.share(training, tensors, 2)

    @property
    def gradients_stay(self) -> bool:
        """Whether the memory of gradients is there from step to step, filled or not."""
        return False

    def preallocated(self, training: Training) -> bool:
        """Whether gradients are there before the backward.

        That is where their memory stays, and where earlier micro-batches of the step left theirs.
        """
        return self.gradients_stay or training.accumulation > 1

    def accumulates_in_place(self, training: Training) -> bool:
        """Whether a new gradient is added at once to one that is there, of the same dtype and
        shape.
        """
        return self.preallocated(training)

    def weight_gradients(self, training: Training, numel: int, largest: int) -> tuple[int, int]:
        """Bytes of an operation's weight gradients: those that stay, and those gone with the next
        operation.
        """
        size = self.gradient_itemsize(training)
        return (0, size * largest) if self.accumulates_in_place(training) else (size * numel, 0)

    def ends(self, training: Training) -> tuple[Any, Any]:
        """The units of what precedes the layers and of what follows them."""
        return self.unit(training, training.model.first), self.unit(training, training.model.last)

    def start(self, memory: Timeline, batch: MicroBatch) -> None:
        """Before the step: what is kept between steps, with the gradients of micro-batches that are
        not played.
        """
        for line in STATES:
            memory.alloc(line, batch.resident[line])
        if "gradients" in batch.whole:
            memory.alloc("gradients", batch.whole["gradients"])
        for line, num_bytes in batch.persistent.items():
            memory.alloc(line, num_bytes)

    def micro_batches(self, training: Training) -> tuple[str, ...]:
        """Those micro-batches of a step that are not like another: the last, before which others
        left gradients.
        """
        return ("last",)

    def begin_forward(self, memory: Timeline, batch: MicroBatch) -> None:
        """Before a micro-batch's forward."""

    def persistent(self, training: Training) -> dict[str, int]:
        """Buffers beside gradients that live from the first step to the last, in bytes by line."""
        return {}

    def whole(self, training: Training, states: ModelStates) -> dict[str, int]:
        """What the stack holds of the whole model for a while, in bytes by line: gradients of
        earlier micro-batches.
        """
        if not self.preallocated(training) or "gradients" in self.offloaded:
            return {}
        kept, size = self.kept_itemsize(training), training.recipe.itemsize("gradients")
        return {"gradients": states.gradients * kept // size}

    def pre_forward(self, memory: Timeline, unit: Any) -> None:
        """Before a layer's forward."""

    def post_forward(self, memory: Timeline, unit: Any) -> None:
        """After a layer's forward."""

    def pre_head(self, memory: Timeline, batch: MicroBatch) -> None:
        """Before the forward of final norm, head and loss."""

    def end_forward(self, memory: Timeline, batch: MicroBatch) -> None:
        """When the loss is there."""
        if self.accumulates_in_place(batch.training):
            memory.free("head gradient")

    def pre_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        """Before the gradient of the head's weight is made."""

    def post_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        """When the gradients of head and final norm are there."""
        if batch.training.model.tied and self.preallocated(batch.training):
            return  # waits for the embedding's, to be added as one
        memory.free("head gradient")
        memory.alloc("gradients", self.head_kept(batch))

    def head_kept(self, batch: MicroBatch) -> int:
        """Bytes that the gradients of head and final norm add to those kept."""
        kept: int = batch.last.kept_gradients
        return kept + batch.head_gradient if batch.training.model.tied else kept

    def pre_backward(self, memory: Timeline, unit: Any, following: Any) -> None:
        """Before a layer's backward; `following` is the unit whose backward comes next."""

    def gradients_complete(self, memory: Timeline, unit: Any) -> None:
        """When the last of a layer's weight gradients is made, while its operation still runs."""

    def post_backward(self, memory: Timeline, unit: Any) -> None:
        """After a layer's backward: what becomes of its `layer gradients`."""
        memory.free("layer gradients")
        memory.alloc("gradients", unit.kept_gradients)

    def pre_embedding_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        """Before the embedding's backward."""
        memory.move("head gradient", "root gradients")

    def end_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        """When all gradients are there."""

    # Traffic.

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        """The collectives of one optimizer step, in the order of the step: gradients are
        all-reduced once.
        """
        return (self.collective("all-reduce", "gradients", self.gradient_piece(training)),)

    def collective(self, name: str, what: str, shard_bytes: int, times: int = 1) -> Collective:
        """A collective among the ranks of the stack."""
        return Collective(
            name=name, what=what, ranks=self.ranks, shard_bytes=shard_bytes, times=times
        )

    def reduce_size(self, training: Training) -> int:
        """Bytes of a gradient element as it is reduced."""
        return 4 if training.recipe.itemsize("gradients") == 4 else 2

    def gradient_piece(self, training: Training) -> int:
        """Bytes of one rank's piece of all gradients, as buckets or a flat buffer divide them."""
        return self.reduce_size(training) * flat(trainable(training.model.tensors), self.ranks)

    def weight_piece(self, training: Training) -> int:
        """Bytes of one rank's piece of all weights that were updated."""
        return training.gather_itemsize * flat(trainable(training.model.tensors), self.ranks)
