"""Pieces of tensors: how many elements and bytes one rank has where a tensor is cut, packed or
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from calc.memory.layers import numel_of
from calc.memory.training import Training, packed
from calc.models import Model, Tensor
from calc.precision import Recipe
from calc.units import DTYPE_BYTES, ceil_div, nf4_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStates:
    """Bytes that the largest rank keeps between steps, by line."""

    weights: int
    master: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Sum of the four lines, in bytes."""
        return self.weights + self.master + self.gradients + self.optimizer


class Cutter(Protocol):
    """A stack, as far as it cuts tensors among its ranks."""

    @property
    def ranks(self) -> int: ...

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int: ...


def trainable(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Those that get a gradient."""
    return tuple(t for t in tensors if t.trainable)


def scales(tensors: Iterable[Tensor], base_dtype: str) -> int:
    """Bytes of an NF4 base beside its packed elements: on the GPU of every rank, whatever is
    divided or offloaded.

    Source: `QuantState` of bitsandbytes, which is no part of the parameter that FSDP divides.
    """
    double = base_dtype == "nf4-double"
    small = (t for t in tensors if packed(t, base_dtype))
    return sum(
        t.count * (nf4_bytes(t.numel, double_quantised=double) - ceil_div(t.numel, 2))
        for t in small
    )


def stored(frozen: Iterable[Tensor], base_dtype: str) -> tuple[Tensor, ...]:
    """The frozen tensors as they are stored: four elements of NF4 are one of
    `bnb_4bit_quant_storage` bf16.
    """
    if base_dtype in DTYPE_BYTES:
        return tuple(frozen)
    return tuple(
        replace(t, shape=(ceil_div(t.numel, 4), 1)) if packed(t, base_dtype) else t for t in frozen
    )


def rows(shape: tuple[int, ...], ranks: int, rank: int) -> tuple[int, ...]:
    """The shape of one rank's chunk when dimension 0 is cut as `torch.chunk` cuts it.

    Formula: chunk = ⌈d₀/N⌉; rank r holds rows r·chunk to min((r+1)·chunk, d₀).
    Source: `fully_shard` (FSDP2), measured on real ranks (Verification page).

    >>> [rows((10, 4), 4, rank)[0] for rank in range(4)]
    [3, 3, 3, 1]
    """
    chunk = ceil_div(shape[0], ranks)
    return (max(0, min(chunk, shape[0] - rank * chunk)), *shape[1:])


def flat(tensors: Iterable[Tensor], ranks: int) -> int:
    """Elements of one rank's partition of a flat buffer, which is padded to a multiple of 2N.

    >>> flat([Tensor(name="w", shape=(10, 5))], 4)
    14
    """
    return 2 * ceil_div(numel_of(tensors), 2 * ranks)


def spans(tensors: Iterable[Tensor], align: int = 1) -> Iterator[tuple[int, int, str]]:
    """First element, last and kind of each tensor in one flat buffer, each begun on a multiple of
    `align`.
    """
    end = 0
    for tensor in tensors:
        for _ in range(tensor.count):
            start = ceil_div(end, align) * align
            end = start + tensor.numel
            yield start, end, tensor.kind


def in_order(model: Model) -> Iterator[Tensor]:
    """Every tensor where it stands in the model, layer by layer."""
    yield from model.first
    # The layers' own numbers: those of a pipeline stage begin where the stage before ended.
    for _, block in sorted(
        ((layer, b) for b in model.blocks for layer in b.layers), key=lambda pair: pair[0]
    ):
        yield from block.tensors
    yield from model.last


def gather_units(model: Model) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """The groups of tensors that FSDP gathers together, each with how many there are.

    One per decoder layer, the root (embedding, final norm and head), and, as peft's wrapping policy
    has it, one per adapter matrix: a trainable tensor among frozen ones would give all a gradient.
    """
    for tensors, count in (
        ((*model.first, *model.last), 1),
        *((b.tensors, len(b.layers)) for b in model.blocks),
    ):
        yield tuple(t for t in tensors if t.kind != "adapter"), count
        yield from (((t,), count) for t in tensors if t.kind == "adapter")


def piece(
    stack: Cutter,
    training: Training,
    units: Iterable[tuple[Iterable[Tensor], int]],
    itemsize: int,
    *,
    frozen: bool = False,
) -> int:
    """Bytes of one rank's piece of `units`: trainable tensors in `itemsize`, frozen ones in the
    base's dtype.

    NF4 packs the linear layers of the blocks; their scales are on every rank anyway.
    """
    base, halves = training.base_dtype, 0
    for group, count in units:
        by_size: dict[int, list[Tensor]] = {}
        for tensor in group:
            size = 1 if packed(tensor, base) else 2 * DTYPE_BYTES.get(base, 2)
            if tensor.trainable or frozen:
                by_size.setdefault(2 * itemsize if tensor.trainable else size, []).append(tensor)
        halves += count * sum(
            size * stack.cut(alike, stack.ranks, training.recipe) for size, alike in by_size.items()
        )
    return ceil_div(halves, 2)
