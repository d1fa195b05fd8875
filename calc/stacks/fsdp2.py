"""FSDP2: `fully_shard` cuts each tensor along its first dimension and gathers a layer's tensors
where it computes.

Each layer is a unit, and the root (embedding, final norm and head) another, gathered from its
forward to its backward. An all-gather lands in a buffer, which is copied out to tensors; that
buffer lives until the next unit is copied out. In the backward the next unit is prefetched;
gradients are copied into the input of a reduce-scatter, which lives until the layer whose backward
comes next has been through it.
Source: `torch.distributed.fsdp.fully_shard` of PyTorch 2.13.0, measured by its FSDPMemTracker
(Verification page).
Counted: shards on the fullest rank, and every buffer above, on the largest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from calc.memory.layers import numel_of
from calc.memory.timeline import Timeline
from calc.memory.train_step import MicroBatch
from calc.memory.training import Training
from calc.models import Model, Tensor
from calc.optimizers import DTENSOR, Piece
from calc.precision import Recipe
from calc.stacks.base import Stack
from calc.stacks.collectives import Collective
from calc.stacks.shards import gather_units, piece, rows, trainable
from calc.stacks.units import FsdpUnit
from calc.units import DTYPE_BYTES, ceil_div

ACCUMULATED = "gradients accumulated whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class FSDP2(Stack):
    """`ranks` that divide everything; the settings are those of `fully_shard` and its
    `MixedPrecisionPolicy`.

    `wrap` block+ends makes embedding and norm with head units of their own, as Accelerate does
    where they are not tied; `offload` all keeps the shards in host memory; with `no_sync` only the
    last micro-batch of a step is reduced.
    """

    reduce_dtype: str = "fp32"
    wrap: str = "block"
    reshard_after_forward: bool = True
    no_sync: bool = False

    strategy = "fsdp2"
    recipes: ClassVar[tuple[str, ...]] = ("fsdp2-mixed", "fp32", "pure-bf16")
    owner = "FSDP"
    stage = 3
    shards = DTENSOR
    offloads = ("none", "all")

    @property
    def offloaded(self) -> tuple[str, ...]:
        return ("weights", "gradients", "optimizer") if self.offload == "all" else ()

    def remarks(self, model: Model, ep: int) -> tuple[str, ...]:
        ranks = self.ranks // ep
        experts = min((t.shape[0] for t in model.tensors if t.kind == "expert"), default=self.ranks)
        if experts >= self.ranks or self.shards != DTENSOR:
            return ()
        return (
            f"{experts // ep} experts on {ranks} ranks: fully_shard cuts them by their number, so "
            f"that each unit is gathered and reduced with room for {ranks} experts, and the "
            "fullest rank keeps a whole one",
        )

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return sum(t.count * prod(rows(t.shape, ranks, 0)) for t in tensors)

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        trained = trainable(training.model.tensors)
        # A short last chunk can fall under a block optimizer's threshold and so hold more.
        ends = {t.shape[0] // ceil_div(t.shape[0], ranks) for t in trained}
        for rank in {0} | {rank for rank in ends if rank < ranks}:
            yield [(rows(t.shape, ranks, rank), t.kind, t.count) for t in trained]

    def numel_gathered(self, training: Training, tensor: Tensor) -> int:
        """Dimension 0 is filled up to a multiple of the ranks."""
        ranks = self.ranks // (training.ep if tensor.of_experts else 1)
        return ranks * prod(rows(tensor.shape, ranks, 0))

    def gradient_itemsize(self, training: Training) -> int:
        return training.compute_itemsize

    @property
    def reduce_itemsize(self) -> int:
        """Bytes of a gradient element as it is reduced."""
        return DTYPE_BYTES[self.reduce_dtype]

    def unsynced(self, training: Training) -> bool:
        """Whether earlier micro-batches of a step leave their gradients whole."""
        return self.no_sync and training.accumulation > 1

    def preallocated(self, training: Training) -> bool:
        return training.accumulation > 1 and not self.no_sync

    def micro_batches(self, training: Training) -> tuple[str, ...]:
        """Without a sync the first leaves its gradients, and those in the middle add to them."""
        if not self.unsynced(training):
            return ("last",)
        return ("first", "last") if training.accumulation == 2 else ("first", "middle", "last")

    def accumulates_in_place(self, training: Training) -> bool:
        same = self.reduce_itemsize == training.compute_itemsize
        return self.unsynced(training) and same and training.turn != "first"

    def apart(self, model: Model) -> bool:
        """Whether embedding and head are units of their own."""
        return self.wrap == "block+ends" and not model.tied

    def unit(self, training: Training, tensors: Iterable[Tensor]) -> FsdpUnit:
        tensors = tuple(tensors)
        trained = trainable(tensors)
        reduce, kept = self.reduce_itemsize, self.kept_itemsize(training)
        padded = sum(t.count * self.numel_gathered(training, t) for t in trained)
        # The output comes in the dtype of the reduction, and is copied to that of the gradients.
        output = reduce if reduce == kept else reduce + kept
        return FsdpUnit(
            gathered=self.gathered(training, tensors),
            gradients=training.compute_itemsize * numel_of(trained),
            accumulated=reduce * numel_of(trained),
            reduce_input=reduce * padded,
            reduce_output=output * ceil_div(padded, self.ranks),
            kept_gradients=self.kept_gradients(training, tensors),
            itemsize=training.compute_itemsize,
            stays=not self.reshard_after_forward,
            turn=training.turn,
        )

    def ends(self, training: Training) -> tuple[FsdpUnit, FsdpUnit]:
        model = training.model
        if self.apart(model):
            return self.unit(training, model.first), self.unit(training, model.last)
        root = replace(self.unit(training, (*model.first, *model.last)), stays=True)
        return root, root

    def saved_units(self, model: Model) -> Iterator[tuple[Tensor, ...]]:
        if self.apart(model):
            yield model.first
            yield model.last
            yield from (block.tensors for block in model.blocks)
        else:
            yield from Stack.saved_units(self, model)

    def begin_forward(self, memory: Timeline, batch: MicroBatch) -> None:
        memory.instant("fwd_layers")  # no peak elsewhere, where a forward gathers nothing
        memory.alloc("all-gather buffer", batch.first.gathered)
        memory.alloc("gathered root", batch.first.gathered)
        if not batch.first.stays:
            memory.free("gathered root")

    def pre_forward(self, memory: Timeline, unit: FsdpUnit) -> None:
        before = memory.held["all-gather buffer"]
        memory.alloc("all-gather buffer", unit.gathered)
        memory.alloc("gathered layer", unit.gathered)
        memory.free("all-gather buffer", before)

    def post_forward(self, memory: Timeline, unit: FsdpUnit) -> None:
        if unit.stays:
            memory.move("gathered layer", to="gathered layers")
        else:
            memory.free("gathered layer")

    def pre_head(self, memory: Timeline, batch: MicroBatch) -> None:
        if self.apart(batch.training.model):
            memory.free("all-gather buffer")
            memory.alloc("all-gather buffer", batch.last.gathered)
            memory.alloc("gathered head", batch.last.gathered)

    def end_forward(self, memory: Timeline, batch: MicroBatch) -> None:
        Stack.end_forward(self, memory, batch)
        if self.reshard_after_forward and not self.apart(batch.training.model):
            # The last layer's buffer: no unit is copied out after it, so it waits for the backward.
            memory.move("all-gather buffer", to="prefetched unit")
        memory.free("all-gather buffer")

    def post_head_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        if self.apart(batch.training.model):
            self.reduce_head(memory, batch)
        elif self.accumulates_in_place(batch.training) and not batch.training.model.tied:
            memory.free("head gradient")

    def reduce_head(self, memory: Timeline, batch: MicroBatch) -> None:
        """The head alone is reduced where it is a unit, and then gathered once more for the norm
        beside it.
        """
        if batch.training.turn != "last":
            memory.move("head gradient", to="layer gradients")
            self.accumulate(memory, batch.last)
            memory.free("gathered head")
            return
        memory.free("head gradient")
        memory.alloc("gradients", batch.last.kept_gradients)
        memory.alloc("reduce-scatter input", batch.last.reduce_input)
        if not self.unsynced(batch.training):
            memory.alloc("all-gather buffer", batch.last.gathered)
        memory.free("all-gather buffer")
        memory.free("reduce-scatter input")
        memory.free("gathered head")
        if self.unsynced(batch.training):
            memory.free(ACCUMULATED, batch.last.accumulated)

    def pre_backward(self, memory: Timeline, unit: FsdpUnit, following: FsdpUnit) -> None:
        if unit.stays:
            return
        memory.free("prefetched unit")
        memory.alloc("all-gather buffer", unit.gathered)
        memory.alloc("gathered layer", unit.gathered)
        memory.free("all-gather buffer")
        if not following.stays:
            memory.alloc("prefetched unit", following.gathered)

    def post_backward(self, memory: Timeline, unit: FsdpUnit) -> None:
        memory.free("gathered layers" if unit.stays else "gathered layer", unit.gathered)
        if unit.turn != "last":
            self.accumulate(memory, unit)
            return
        memory.free("reduce-scatter input")  # that of the layer whose backward came before
        accumulated = memory.held[ACCUMULATED]
        if accumulated:
            memory.free("layer gradients")  # added to those that waited
        memory.alloc("reduce-scatter input", unit.reduce_input)
        # A sum in another dtype than the gradients' is a copy that can go once it is copied in;
        # one in the same is the gradients themselves, which go after the reduction.
        if accumulated and self.reduce_itemsize != unit.itemsize:
            memory.free(ACCUMULATED, unit.accumulated)
        memory.free("layer gradients")
        memory.burst("reduce-scatter output", unit.reduce_output)
        if accumulated and self.reduce_itemsize == unit.itemsize:
            memory.free(ACCUMULATED, unit.accumulated)
        memory.alloc("gradients", unit.kept_gradients)

    def accumulate(self, memory: Timeline, unit: FsdpUnit) -> None:
        """Without a reduction a layer's gradients wait whole, in the dtype of the reduction."""
        if unit.turn == "first":
            memory.alloc(ACCUMULATED, unit.accumulated)
        memory.free("layer gradients")

    def pre_embedding_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        model = batch.training.model
        if not batch.first.stays:
            memory.move("prefetched unit", to="gathered root")
        if self.unsynced(batch.training) and batch.training.turn == "last":
            memory.free(ACCUMULATED, memory.held[ACCUMULATED] - batch.first.accumulated)
        made = memory.held["head gradient"]
        memory.move("head gradient", to="root gradients")
        if model.tied:
            memory.alloc("root gradients", batch.first.gradients - made)
        elif not self.accumulates_in_place(batch.training):
            memory.alloc("root gradients", batch.first.gradients - made - batch.embedding_gradient)

    def end_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        held, embedding = memory.held, 0 if batch.training.model.tied else batch.embedding_gradient
        memory.free("gathered root")
        memory.free("reduce-scatter input")
        if batch.training.turn != "last":
            memory.free("root gradients", held["root gradients"] - batch.embedding_gradient)
            self.accumulate(memory, batch.first)
            memory.free("root gradients")
            return
        left = embedding if self.unsynced(batch.training) else batch.first.gradients
        memory.free("root gradients", held["root gradients"] - left)
        memory.alloc("reduce-scatter input", batch.first.reduce_input)
        memory.free("root gradients", left - embedding)
        memory.free(ACCUMULATED)
        # It becomes the root's gradients, which the optimizer's step counts with all others.
        memory.alloc("reduce-scatter output", batch.first.reduce_output)

    # Traffic.

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        """Weights are gathered in each forward and, but for units that stay, in each backward.

        Gradients are scattered after each micro-batch, with `no_sync` once.
        """
        units, times = tuple(gather_units(training.model)), training.accumulation
        root_stays = training.model.has_architecture and self.wrap == "block"
        again = units[1:] if root_stays else units
        gathers = [("weights, forward", units)]
        if self.reshard_after_forward and again:
            gathers.append(("weights, backward", again))
        size = training.gather_itemsize
        found = [
            self.collective(
                "all-gather", what, piece(self, training, which, size, frozen=True), times
            )
            for what, which in gathers
        ]
        reduced = piece(self, training, units, self.reduce_itemsize)
        return (
            *found,
            self.collective("reduce-scatter", "gradients", reduced, 1 if self.no_sync else times),
        )
