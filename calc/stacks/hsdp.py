"""HSDP: `fully_shard` on a mesh of two dimensions; `groups` of ranks each divide everything, and
are copies.

Gradients are reduced inside a group, and their shards summed between groups.
Counted: one group, as FSDP2; the sum between groups needs no memory beyond the shard.
Source: `fully_shard` of PyTorch 2.13.0 with a two-dimensional mesh, measured on real ranks
(Verification page).
"""

from __future__ import annotations

from dataclasses import dataclass

from calc.memory.training import Training
from calc.stacks.collectives import Collective
from calc.stacks.fsdp2 import FSDP2
from calc.units import InputError, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class HSDP(FSDP2):
    """`ranks` that divide everything, and `groups` of them that are copies."""

    groups: int = 1

    strategy = "hsdp"
    fewest = 8

    @property
    def world_size(self) -> int:
        return self.ranks * self.groups

    @property
    def shard_size(self) -> int:
        return self.ranks

    @classmethod
    def spread(cls, replicas: int, shard_size: int) -> dict[str, int]:
        """Groups of `shard_size` ranks, or of 8 where it is 0."""
        ranks = shard_size or min(cls.fewest, replicas)
        if replicas % ranks:
            raise InputError(
                f"shard_size {ranks:,} does not divide the {replicas:,} ranks that tp and pp leave"
            )
        return {"ranks": ranks, "groups": replicas // ranks}

    def collectives(self, training: Training) -> tuple[Collective, ...]:
        """FSDP2's inside a group, and the sum of the shards between groups."""
        inside = FSDP2.collectives(self, training)
        if self.groups == 1:
            return inside
        last = inside[-1]
        between = Collective(
            name="all-reduce",
            what="gradient shards between groups",
            ranks=self.groups,
            shard_bytes=ceil_div(last.shard_bytes, self.groups),
            times=last.times,
            stride=self.ranks,
        )
        return (*inside, between)
