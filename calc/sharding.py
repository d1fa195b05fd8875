"""Who keeps which slice: strategies, and what of every tensor the largest rank holds.

`pieces` turns a model into what the fullest rank stores of each tensor; `kept` prices those
pieces with a recipe and an optimizer. All of it in elements and bytes, nothing averaged.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import MappingProxyType

from calc.models import Model, Tensor
from calc.states import Optimizer, Recipe, is_muon, state_bytes
from calc.units import DTYPE_BYTES, ceil_div, named, nf4_bytes, records


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How ranks divide the training state.

    `stage` is ZeRO's: 0 nothing, 1 optimizer and master copy, 2 gradients too, 3 weights too.
    `layout` is how a divided tensor is cut, see `largest_share`.
    """

    name: str
    stage: int
    layout: str
    title: str
    also_called: str
    source: str


#: Every strategy by name, in the order of `calc/data/strategies.json`.
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {record["name"]: Strategy(**record) for record in records("strategies")}
)


def get_strategy(name: str) -> Strategy:
    """The strategy of that name; raises `InputError` with the nearest known one."""
    return named("strategy", name, STRATEGIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes that the largest rank keeps between steps, by line."""

    weights: int
    master: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Sum of the four lines, in bytes."""
        return self.weights + self.master + self.gradients + self.optimizer


def rows(shape: tuple[int, ...], world_size: int, rank: int) -> tuple[int, ...]:
    """The shape of one rank's chunk when dimension 0 is cut as `torch.chunk` cuts it.

    Formula: chunk = ⌈d₀/N⌉; rank r holds rows r·chunk to min((r+1)·chunk, d₀).
    Source: `fully_shard` (FSDP2), measured on real ranks (Verification page).

    >>> [rows((10, 4), 4, rank)[0] for rank in range(4)]
    [3, 3, 3, 1]
    """
    chunk = ceil_div(shape[0], world_size)
    return (max(0, min(chunk, shape[0] - rank * chunk)), *shape[1:])


def largest_share(tensors: Iterable[Tensor], layout: str, world_size: int, align: int = 1) -> int:
    """Elements of `tensors` that the fullest rank stores when they are divided by `layout`.

    `rows`: each tensor's largest chunk of dimension 0, padded to it on every rank (FSDP2).
    `each`: every tensor flattened, ⌈n/N⌉ (DeepSpeed ZeRO-3). `flat`: all of them end to end, padded to
    a multiple of 2N (DeepSpeed ZeRO-1/2). `unit`: end to end, each begun on a multiple of `align`
    elements, padded to a multiple of N (FSDP1). `whole` and `greedy`: not divided.

    >>> [largest_share([Tensor(name="w", shape=(10, 5))], layout, 4) for layout in ("rows", "each", "flat")]
    [15, 13, 14]
    """
    tensors = tuple(tensors)
    if layout == "rows":
        return sum(t.count * prod(rows(t.shape, world_size, 0)) for t in tensors)
    if layout == "each":
        return sum(t.count * ceil_div(t.numel, world_size) for t in tensors)
    if layout == "unit":
        return ceil_div(max((end for _, end, _ in _spans(tensors, align)), default=0), world_size)
    total = sum(t.count * t.numel for t in tensors)
    return 2 * ceil_div(total, 2 * world_size) if layout == "flat" else total


def _spans(tensors: Iterable[Tensor], align: int) -> Iterator[tuple[int, int, str]]:
    """First element, last and kind of each tensor in one flat buffer."""
    end = 0
    for tensor in tensors:
        for _ in range(tensor.count):
            start = ceil_div(end, align) * align
            end = start + tensor.numel
            yield start, end, tensor.kind


def _in_order(model: Model) -> Iterator[Tensor]:
    """Every tensor where it stands in the model, layer by layer."""
    yield from model.first
    # The layers' own numbers: those of a pipeline stage begin where the stage before ended.
    for _, block in sorted(((layer, b) for b in model.blocks for layer in b.layers), key=lambda pair: pair[0]):
        yield from block.tensors
    yield from model.last


def units(model: Model) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """The groups of tensors that FSDP gathers together, each with how many there are.

    One per decoder layer, the root (embedding, final norm and head), and, as peft's wrapping policy
    has it, one per adapter matrix: a trainable tensor among frozen ones would give all a gradient.
    """
    for tensors, count in (((*model.first, *model.last), 1), *((b.tensors, len(b.layers)) for b in model.blocks)):
        yield tuple(t for t in tensors if t.kind != "adapter"), count
        yield from (((t,), count) for t in tensors if t.kind == "adapter")


def kept(
    model: Model, recipe: Recipe, optimizer: Optimizer, strategy: Strategy, world_size: int, base_dtype: str = "bf16"
) -> Kept:
    """Bytes of weights, master copy, gradients and optimizer state on the largest of N ranks.

    Formula: each copy's elements (whole below its stage, the largest share from it) × its dtype;
    the optimizer's own rule on what it is handed. Frozen tensors have weights only, in
    `base_dtype`. `world_size` ≥ 1. Source: ORACLE measurements on the Verification page.

    >>> from calc.models import load
    >>> from calc.states import get_optimizer, get_recipe
    >>> llama = load("llama-3.3-70b")
    >>> kept(llama, get_recipe("zero"), get_optimizer("adamw"), STRATEGIES["zero3"], 8).total
    141107412992
    """
    layout, align = layout_of(strategy, recipe, world_size)
    lines = {"weights": 0, "master": 0, "gradients": 0}
    sections = tuple(units(model)) if layout == "unit" else ((model.tensors, 1),)
    for tensors, count in sections:
        trainable = tuple(t for t in tensors if t.trainable)
        frozen = tuple(t for t in tensors if not t.trainable)
        for copy in recipe.copies:
            cut = layout if strategy.stage >= copy.stage else "whole"
            share = largest_share(trainable, cut, world_size, align)
            if layout == "flat" and copy.line == "weights":  # whole, in the padded buffer
                share = world_size * largest_share(trainable, layout, world_size)
            lines[copy.line] += count * copy.itemsize * share
        cut = layout if strategy.stage == 3 else "whole"
        lines["weights"] += count * _frozen_bytes(frozen, cut, world_size, base_dtype, align)
    state = max(
        (
            sum(num * state_bytes(optimizer, shape, recipe.state_dtype, kind=kind) for shape, kind, num in held)
            + (optimizer.once_bytes if any(prod(shape) >= 4096 for shape, _, _ in held) else 0)
            for held in pieces(model, optimizer, layout, world_size, align)
        ),
        default=0,
    )
    return Kept(**lines, optimizer=state)


def layout_of(strategy: Strategy, recipe: Recipe, world_size: int) -> tuple[str, int]:
    """How this pair cuts tensors, and on how many elements FSDP1 aligns them: 16 bytes of its compute dtype.

    One rank cuts nothing. torch's own ZeRO-1 deals out whole tensors, DeepSpeed's cuts one flat buffer.

    >>> from calc.states import get_recipe
    >>> layout_of(get_strategy("fsdp1"), get_recipe("fsdp2-mixed"), 8)
    ('unit', 8)
    """
    align = 4 if recipe.name == "fp32" else 8
    if strategy.stage == 0 or world_size == 1:
        return "whole", align
    greedy = strategy.name == "zero1" and not recipe.itemsize("master")
    return "greedy" if greedy else strategy.layout, align


def packed(tensor: Tensor, base_dtype: str) -> bool:
    """Whether bitsandbytes packs it into NF4: a frozen linear layer of the blocks, not embedding, head or norm."""
    frozen = base_dtype.startswith("nf4") and not tensor.trainable
    return frozen and tensor.kind == "linear" and "*" in tensor.name


def _frozen_bytes(frozen: tuple[Tensor, ...], layout: str, world_size: int, dtype: str, align: int) -> int:
    """Bytes of the frozen tensors on one rank; of NF4 the scales and code books are on every rank."""
    if dtype in DTYPE_BYTES:
        return DTYPE_BYTES[dtype] * largest_share(frozen, layout, world_size, align)
    # Four elements are stored as one of `bnb_4bit_quant_storage` bf16.
    stored = [replace(t, shape=(ceil_div(t.numel, 4), 1)) if packed(t, dtype) else t for t in frozen]
    return scales(frozen, dtype) + 2 * largest_share(stored, layout, world_size, align)


def scales(tensors: Iterable[Tensor], base_dtype: str) -> int:
    """Bytes of an NF4 base beside its packed elements: on the GPU of every rank, whatever is divided or offloaded.

    Source: `QuantState` of bitsandbytes, which is no part of the parameter that FSDP divides.
    """
    double = base_dtype == "nf4-double"
    small = (t for t in tensors if packed(t, base_dtype))
    return sum(t.count * (nf4_bytes(t.numel, double_quantised=double) - ceil_div(t.numel, 2)) for t in small)


#: What a rank hands its optimizer: a shape, its kind, and how many alike.
Piece = tuple[tuple[int, ...], str, int]


def pieces(model: Model, optimizer: Optimizer, layout: str, world_size: int, align: int = 1) -> Iterator[list[Piece]]:
    """What each rank hands its optimizer; ranks like another are left out.

    Source: the state tensors of PyTorch's and DeepSpeed's optimizers on real ranks (Verification page).
    """
    trainable = tuple(t for t in model.tensors if t.trainable)
    if layout == "whole":
        yield [(t.shape, t.kind, t.count) for t in trainable]
    elif layout == "rows":
        # A short last chunk can fall under a block optimizer's threshold and so hold more; no other rank can.
        ends = {t.shape[0] // ceil_div(t.shape[0], world_size) for t in trainable}
        for rank in {0} | {rank for rank in ends if rank < world_size}:
            yield [(rows(t.shape, world_size, rank), t.kind, t.count) for t in trainable]
    elif layout == "greedy":
        yield from _dealt(trainable, optimizer, world_size)
    elif layout == "unit":
        yield from _on_flat_shards(model, world_size, align)
    else:
        yield [((largest_share(trainable, layout, world_size),), "flat", 1)]


def _on_flat_shards(model: Model, world_size: int, align: int) -> Iterator[list[Piece]]:
    """FSDP1's pieces on each rank where a tensor begins or ends, and on the next: others are like one of these."""
    found, edges = [], set[int]()
    for tensors, count in units(model):
        if trained := [t for t in tensors if t.trainable]:
            share, spans = largest_share(trained, "unit", world_size, align), list(_spans(trained, align))
            found.append((spans, share, count))
            edges |= {at // share + after for start, end, _ in spans for at in (start, end - 1) for after in (0, 1)}
    for rank in sorted(rank for rank in edges if rank < world_size):
        held: list[Piece] = []
        for spans, share, count in found:
            low, high = rank * share, (rank + 1) * share
            for at in range(bisect_right(spans, low, key=lambda span: span[1]), len(spans)):
                start, end, kind = spans[at]
                if start >= high:
                    break
                held.append(((min(end, high) - max(start, low),), kind, count))
        yield held


def _dealt(tensors: tuple[Tensor, ...], optimizer: Optimizer, world_size: int) -> list[list[Piece]]:
    """Whole tensors, largest first, each to the rank with the fewest elements so far.

    Muon is two optimizers, and each deals out its own.
    Source: `torch.distributed.optim.ZeroRedundancyOptimizer`.
    """
    # A rank beyond the tensors gets none; one of those is enough.
    world_size = min(world_size, 1 + sum(t.count for t in tensors))
    held: list[list[Piece]] = [[] for _ in range(world_size)]
    for rest in (False, True):
        load = [(0, rank) for rank in range(world_size)]
        mine = [t for t in tensors if rest == (optimizer.rule == "muon" and not is_muon(t.shape, t.kind))]
        for tensor in sorted(mine, key=lambda t: -t.numel):
            for _ in range(tensor.count):
                least, rank = load[0]
                heapq.heapreplace(load, (least + tensor.numel, rank))
                held[rank].append((tensor.shape, tensor.kind, 1))
    return held


@lru_cache(maxsize=256)
def edge_elements(model: Model, world_size: int) -> int:
    """Gradient elements that DeepSpeed ZeRO-1/2 keeps beyond its partition, on the rank with most of them.

    A tensor that an edge of the partition cuts is kept whole: Σ over those of numel less what the partition
    has of it. Source: `grads_in_partition` of DeepSpeed's `stage_1_and_2.py`, measured (Verification page).

    >>> from calc.models import load
    >>> edge_elements(load("llama-3.1-8b"), 8)
    86777344
    """
    tensors = [t for t in _in_order(model) if t.trainable]
    share = largest_share(tensors, "flat", world_size)
    beyond = [0] * world_size
    for start, end, _ in _spans(tensors, 1):
        for rank in range(start // share, ceil_div(end, share)):
            beyond[rank] += max(0, rank * share - start) + max(0, end - (rank + 1) * share)
    return max(beyond)
