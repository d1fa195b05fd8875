"""A module of the model as a stack sees it: what is gathered, reduced and kept of it, in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A module as most stacks see it: the bytes of gradients that one rank keeps of it."""

    kept_gradients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketUnit:
    """A module whose gradients go through the bucket: bytes on their way, and bytes that one rank
    keeps of them.
    """

    reducing: int
    kept_gradients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpUnit:
    """What is gathered and reduced together, in bytes.

    `gathered` whole in the compute dtype, `gradients` as the backward makes them, `accumulated`
    those in the dtype of the reduction, `reduce_input` and `reduce_output` the reduce-scatter's
    buffers, `kept_gradients` one rank's shard. `itemsize` is that of a gradient as it is made,
    `stays` says that it is gathered from its forward to its backward. `turn` is the
    micro-batch's: all but the last leave their gradients whole.
    """

    gathered: int
    gradients: int
    accumulated: int
    reduce_input: int
    reduce_output: int
    kept_gradients: int
    itemsize: int
    stays: bool
    turn: str
