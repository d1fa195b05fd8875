"""FSDP1: `FullyShardedDataParallel` flattens a layer into one parameter and cuts that; it gathers
as FSDP2 does.

The flat parameter gets one flat gradient: when a layer's last gradient is made, all of them are
copied into it. A rank's shard is a slice of the flat parameter, so that an optimizer sees pieces of
tensors, without their shapes.
Source: `torch.distributed.fsdp.FullyShardedDataParallel` of PyTorch 2.13.0; states measured on real
ranks, peaks by a heap meter (Verification page), since no tracker of PyTorch's follows it.
Counted: gathered units with the one ahead, the flat gradient, and the last reduce-scatter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from calc.memory.timeline import Timeline
from calc.memory.train_step import MicroBatch
from calc.memory.training import Training
from calc.models import Model, Tensor
from calc.optimizers import FLAT, Piece
from calc.precision import Recipe
from calc.stacks.fsdp2 import ACCUMULATED, FSDP2
from calc.stacks.shards import gather_units, spans, trainable
from calc.stacks.units import FsdpUnit
from calc.units import ceil_div


class FSDP1(FSDP2):
    """`ranks` that divide flat parameters; the settings are those of FSDP2, under FSDP1's names."""

    __slots__ = ()

    strategy = "fsdp1"
    recipes = ("fsdp2-mixed", "fp32", "pure-bf16", "bf16-fp32-states")
    shards = FLAT

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        return ceil_div(
            max((end for _, end, _ in spans(tensors, alignment(recipe))), default=0), ranks
        )

    def sections(self, model: Model) -> Iterable[tuple[tuple[Tensor, ...], int]]:
        return gather_units(model)

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        """Pieces on each rank where a tensor begins or ends, and on the next: others are like one
        of these.
        """
        found, edges, align = [], set[int](), alignment(training.recipe)
        for tensors, count in gather_units(training.model):
            if trained := trainable(tensors):
                share, placed = (
                    self.cut(trained, ranks, training.recipe),
                    list(spans(trained, align)),
                )
                found.append((placed, share, count))
                edges |= {
                    at // share + after
                    for start, end, _ in placed
                    for at in (start, end - 1)
                    for after in (0, 1)
                }
        for rank in sorted(rank for rank in edges if rank < ranks):
            held: list[Piece] = []
            for placed, share, count in found:
                low, high = rank * share, (rank + 1) * share
                for at in range(bisect_right(placed, low, key=lambda span: span[1]), len(placed)):
                    start, end, kind = placed[at]
                    if start >= high:
                        break
                    held.append(((min(end, high) - max(start, low),), kind, count))
            yield held

    def numel_gathered(self, training: Training, tensor: Tensor) -> int:
        return tensor.numel

    # The hooks that differ: nothing is known of its forward, and a layer has one flat gradient.

    def begin_forward(self, memory: Timeline, batch: MicroBatch) -> None:
        if batch.first.stays:
            memory.alloc("gathered root", batch.first.gathered)

    def pre_forward(self, memory: Timeline, unit: FsdpUnit) -> None:
        memory.free("prefetched unit")
        memory.alloc("gathered layer", unit.gathered)

    def post_forward(self, memory: Timeline, unit: FsdpUnit) -> None:
        memory.move("gathered layer", to="gathered layers" if unit.stays else "prefetched unit")

    def pre_head(self, memory: Timeline, batch: MicroBatch) -> None:
        if self.apart(batch.training.model):
            memory.free("prefetched unit")
            memory.alloc("gathered head", batch.last.gathered)

    def reduce_head(self, memory: Timeline, batch: MicroBatch) -> None:
        memory.move("head gradient", to="layer gradients")
        if batch.training.turn != "last":
            self.accumulate(memory, batch.last)
        memory.free("layer gradients")
        memory.free("gathered head")
        if batch.training.turn != "last":
            return
        if self.unsynced(batch.training):
            memory.free(ACCUMULATED, batch.last.accumulated)
        memory.alloc("gradients", batch.last.kept_gradients)

    def pre_backward(self, memory: Timeline, unit: FsdpUnit, following: FsdpUnit) -> None:
        if unit.stays:
            return
        memory.free("prefetched unit")
        memory.alloc("gathered layer", unit.gathered)
        if not following.stays:
            memory.alloc("prefetched unit", following.gathered)

    def gradients_complete(self, memory: Timeline, unit: FsdpUnit) -> None:
        memory.alloc("flat gradient", unit.gradients)

    def post_backward(self, memory: Timeline, unit: FsdpUnit) -> None:
        memory.free("gathered layers" if unit.stays else "gathered layer", unit.gathered)
        memory.free("flat gradient")
        if unit.turn != "last":
            self.accumulate(memory, unit)
            return
        memory.free("layer gradients")
        if memory.held[ACCUMULATED]:
            memory.free(ACCUMULATED, unit.accumulated)
        memory.alloc("gradients", unit.kept_gradients)

    def pre_embedding_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        FSDP2.pre_embedding_backward(self, memory, batch)
        if batch.training.turn == "last":
            memory.alloc("reduce-scatter input", batch.layers[batch.order[0]].unit.reduce_input)

    def end_backward(self, memory: Timeline, batch: MicroBatch) -> None:
        """The root's gradients, the flat one that they are copied into, and the input of its
        reduce-scatter.
        """
        if batch.training.turn != "last":
            FSDP2.end_backward(self, memory, batch)
            return
        memory.free("gathered root")
        memory.free("reduce-scatter input")
        memory.free(ACCUMULATED)
        memory.free("root gradients")
        memory.alloc("root gradients", batch.first.gradients)
        memory.alloc("reduce-scatter input", batch.first.reduce_input + batch.first.gradients)


def alignment(recipe: Recipe) -> int:
    """Elements on a multiple of which each tensor begins: 16 bytes of the compute dtype."""
    return 4 if recipe.name == "fp32" else 8
