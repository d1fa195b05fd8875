"""torch's own ZeRO-1: `ZeroRedundancyOptimizer` under DDP; each rank updates some tensors and
broadcasts them.

Whole tensors are dealt out, the largest first, each to the rank with the fewest elements so far; no
tensor is cut.
Counted: DDP's copy and buckets, and the optimizer states of the fullest rank.
Source: `torch.distributed.optim.ZeroRedundancyOptimizer` of PyTorch 2.13.0, measured (Verification
page).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from calc.memory.training import Training
from calc.models import Tensor
from calc.optimizers import Optimizer, Piece, is_muon
from calc.stacks.collectives import Collective
from calc.stacks.ddp import DDP
from calc.stacks.shards import trainable


class ZeroRedundancy(DDP):
    """Ranks that each hold weights and gradients, and share the states tensor by tensor."""

    __slots__ = ()

    strategy = "zero1"
    recipes = ("fp32", "pure-bf16", "bf16-fp32-states")
    stage = 1
    live_bucket = False

    def persistent(self, training: Training) -> dict[str, int]:
        return DDP.persistent(self, training) if self.ranks > 1 else {}

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        yield from dealt(trainable(training.model.tensors), training.optimizer, ranks)

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        """DDP's, and each rank broadcasts the tensors that it has updated."""
        reduced = DDP.collectives(self, training)
        return (*reduced, self.collective("broadcast", "new weights", self.weight_piece(training)))


def dealt(tensors: Iterable[Tensor], optimizer: Optimizer, ranks: int) -> list[list[Piece]]:
    """Whole tensors, largest first, each to the rank with the fewest elements so far.

    Muon is two optimizers, and each deals out its own.
    """
    tensors = tuple(tensors)
    # A rank beyond the tensors gets none; one of those is enough.
    ranks = min(ranks, 1 + sum(t.count for t in tensors))
    held: list[list[Piece]] = [[] for _ in range(ranks)]
    for rest in (False, True):
        load = [(0, rank) for rank in range(ranks)]
        mine = [
            t
            for t in tensors
            if rest == (optimizer.rule == "muon" and not is_muon(t.shape, t.kind))
        ]
        for tensor in sorted(mine, key=lambda t: -t.numel):
            for _ in range(tensor.count):
                least, rank = load[0]
                heapq.heapreplace(load, (least + tensor.numel, rank))
                held[rank].append((tensor.shape, tensor.kind, 1))
    return held
