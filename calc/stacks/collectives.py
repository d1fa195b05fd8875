"""Collectives: what ranks send each other in a step, and how much of it crosses between nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a step: `shard_bytes` is one rank's piece, `stride` the distance between
    its ranks.
    """

    name: str
    what: str
    ranks: int
    shard_bytes: int
    times: int
    stride: int = 1

    @property
    def passes(self) -> int:
        """How often a piece travels: an all-reduce scatters and gathers."""
        return 2 if self.name == "all-reduce" else 1

    @property
    def num_bytes(self) -> int:
        """Bytes that one GPU sends, and receives, in a step: times·passes·(N−1)·piece."""
        return self.times * self.passes * (self.ranks - 1) * self.shard_bytes

    def between_nodes(self, node_gpus: int) -> int:
        """Bytes that one node must take in per optimizer step when ranks are numbered node by node.

        Formula: groups with a rank in the node · (N − those inside)·piece, times and passes as
        above.

        >>> words = {"name": "all-gather", "what": "weights", "times": 1}
        >>> gather = Collective(ranks=16, shard_bytes=10, **words)
        >>> gather.num_bytes, gather.between_nodes(8)
        (150, 80)
        """
        inside = min(self.ranks, max(1, node_gpus // self.stride))
        groups = max(1, node_gpus // inside)
        return self.times * self.passes * groups * (self.ranks - inside) * self.shard_bytes
