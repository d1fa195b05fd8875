"""torch's own ZeRO-1: `ZeroRedundancyOptimizer` under DDP; each rank updates some tensors and broadcasts them.

Whole tensors are dealt out, the largest first, each to the rank with the fewest elements so far; no tensor is cut.
Counted: DDP's copy and buckets, and the optimizer states of the fullest rank.
Source: `torch.distributed.optim.ZeroRedundancyOptimizer` of PyTorch 2.13.0, measured (Verification page).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from calc.memory.train_step import Step
from calc.memory.training import Training
from calc.models import Tensor
from calc.stacks.ddp import DDP
from calc.stacks.shards import Piece, trainable
from calc.states import Optimizer, is_muon


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroRedundancy(DDP):
    """Ranks that each hold weights and gradients, and share the optimizer states tensor by tensor."""

    strategy: ClassVar[str] = "zero1"
    recipes: ClassVar[tuple[str, ...]] = ("fp32", "pure-bf16", "bf16-fp32-states")
    stage: ClassVar[int] = 1

    def persistent(self, step: Step) -> dict[str, int]:
        return DDP.persistent(self, step) if self.ranks > 1 else {}

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        trained = trainable(training.model.tensors)
        if ranks == 1:
            yield [(t.shape, t.kind, t.count) for t in trained]
        else:
            yield from dealt(trained, training.optimizer, ranks)


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
        mine = [t for t in tensors if rest == (optimizer.rule == "muon" and not is_muon(t.shape, t.kind))]
        for tensor in sorted(mine, key=lambda t: -t.numel):
            for _ in range(tensor.count):
                least, rank = load[0]
                heapq.heapreplace(load, (least + tensor.numel, rank))
                held[rank].append((tensor.shape, tensor.kind, 1))
    return held
