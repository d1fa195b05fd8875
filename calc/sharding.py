"""Who keeps which slice: strategies, and what of every tensor the largest rank holds.

`pieces` turns a model into what the fullest rank stores of each tensor; `kept` prices those
pieces with a recipe and an optimizer. All of it in elements and bytes, nothing averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from calc.models import Model, Tensor
from calc.states import Optimizer, Recipe, state_bytes
from calc.units import DTYPE_BYTES, ceil_div, nf4_bytes, records, unknown


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
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]


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


def largest_share(tensors: tuple[Tensor, ...], layout: str, world_size: int) -> int:
    """Elements of `tensors` that the fullest rank stores when they are divided by `layout`.

    `rows`: each tensor's largest chunk of dimension 0, padded to it on every rank (FSDP2).
    `each`: every tensor flattened, ⌈n/N⌉ (DeepSpeed ZeRO-3). `flat` and `unit`: all of them in
    one flat buffer, ⌈Σn/N⌉ (DeepSpeed ZeRO-1/2; an FSDP1 unit). `whole`: not divided.

    >>> largest_share((Tensor(name="w", shape=(10, 4)),), "rows", 4)
    12
    >>> largest_share((Tensor(name="w", shape=(10, 4)),), "each", 4)
    10
    """
    if layout == "rows":
        return sum(t.count * prod(rows(t.shape, world_size, 0)) for t in tensors)
    if layout == "each":
        return sum(t.count * ceil_div(t.numel, world_size) for t in tensors)
    total = sum(t.count * t.numel for t in tensors)
    return total if layout == "whole" else ceil_div(total, world_size)


def units(model: Model) -> tuple[tuple[tuple[Tensor, ...], int], ...]:
    """The groups of tensors that FSDP gathers together, each with how many there are.

    One per decoder layer, and the root: embedding, final norm and head.
    """
    root = (*model.first, *model.last)
    return ((root, 1), *((block.tensors, len(block.layers)) for block in model.blocks))


def kept(
    model: Model,
    recipe: Recipe,
    optimizer: Optimizer,
    strategy: Strategy,
    world_size: int,
    base_dtype: str = "bf16",
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
    layout = _layout(strategy, recipe)
    lines = {"weights": 0, "master": 0, "gradients": 0}
    sections = units(model) if layout == "unit" else ((model.tensors, 1),)
    for tensors, count in sections:
        trainable = tuple(t for t in tensors if t.trainable)
        frozen = tuple(t for t in tensors if not t.trainable)
        for copy in recipe.copies:
            cut = layout if strategy.stage >= copy.stage and layout != "greedy" else "whole"
            share = largest_share(trainable, cut, world_size)
            lines[copy.line] += count * copy.itemsize * share
        cut = layout if strategy.stage == 3 else "whole"
        lines["weights"] += count * _frozen_bytes(frozen, cut, world_size, base_dtype)
    state = _optimizer_bytes(model, recipe, optimizer, strategy, layout, world_size)
    return Kept(**lines, optimizer=state)


def _layout(strategy: Strategy, recipe: Recipe) -> str:
    """How this pair cuts tensors: torch's own ZeRO-1 deals out whole tensors, DeepSpeed's does not."""
    if strategy.name == "zero1" and recipe.name in ("fp32", "pure-bf16"):
        return "greedy"
    return strategy.layout


def _frozen_bytes(frozen: tuple[Tensor, ...], layout: str, world_size: int, dtype: str) -> int:
    if dtype != "nf4":
        return DTYPE_BYTES[dtype] * largest_share(frozen, layout, world_size)
    # bitsandbytes packs the linear layers of the blocks; embeddings, head and norms stay 16-bit.
    packed = tuple(t for t in frozen if t.kind == "linear" and "*" in t.name)
    kept16 = tuple(t for t in frozen if t not in packed)
    four_bit = sum(t.count * nf4_bytes(t.numel, double_quantised=True) for t in packed)
    if layout != "whole":
        four_bit = ceil_div(four_bit, world_size)
    return four_bit + 2 * largest_share(kept16, layout, world_size)


def _optimizer_bytes(
    model: Model,
    recipe: Recipe,
    optimizer: Optimizer,
    strategy: Strategy,
    layout: str,
    world_size: int,
) -> int:
    """State bytes on the rank that holds most of them; each layout hands the optimizer other pieces."""
    dtype = recipe.state_dtype
    trainable = tuple(t for t in model.tensors if t.trainable)
    if not trainable or not optimizer.states:
        return 0
    if strategy.stage == 0:
        return optimizer.once_bytes + sum(
            t.count * state_bytes(optimizer, t.shape, dtype, kind=t.kind) for t in trainable
        )
    if layout == "rows":
        # A short last chunk can fall under a block optimizer's threshold and so hold more.
        ends = {t.shape[0] // ceil_div(t.shape[0], world_size) for t in trainable}
        ranks = {0} | {rank for end in ends for rank in (end, end + 1) if rank < world_size}
        return optimizer.once_bytes + max(
            sum(
                t.count
                * state_bytes(optimizer, rows(t.shape, world_size, rank), dtype, kind=t.kind)
                for t in trainable
            )
            for rank in ranks
        )
    if layout == "greedy":
        return optimizer.once_bytes + max(_dealt(trainable, optimizer, dtype, world_size))
    if layout == "unit":
        flats = [
            (sum(t.count * t.numel for t in tensors if t.trainable), count)
            for tensors, count in units(model)
        ]
    else:
        flats = [(sum(t.count * t.numel for t in trainable), 1)]
    return optimizer.once_bytes + sum(
        count * state_bytes(optimizer, (ceil_div(numel, world_size),), dtype)
        for numel, count in flats
    )


def _dealt(
    tensors: tuple[Tensor, ...], optimizer: Optimizer, dtype: str, world_size: int
) -> list[int]:
    """State bytes per rank when whole tensors go, largest first, to the rank with least so far.

    Source: `torch.distributed.optim.ZeroRedundancyOptimizer`, measured (Verification page).
    """
    load, held = [0] * world_size, [0] * world_size
    for tensor in sorted(tensors, key=lambda t: -t.numel):
        size = state_bytes(optimizer, tensor.shape, dtype, kind=tensor.kind)
        for _ in range(tensor.count):
            rank = load.index(min(load))
            load[rank] += tensor.numel
            held[rank] += size
    return held
