"""Tables of bytes per parameter: who counts which, who keeps a master copy, what divides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from calc.audit.ledgers import ledgers
from calc.estimate import estimate
from calc.job import Job
from calc.models import Model
from calc.optimizers import OPTIMIZERS, state_bytes
from calc.precision import RECIPES, get_recipe
from calc.stacks import STRATEGIES, ModelStates, get_strategy
from calc.tables.memory import undivided
from calc.tables.text import LINES, TITLES, markdown, number, per_param, short, size
from calc.units import ceil_div, decimal

_ADAMW = OPTIMIZERS["adamw"]
_HEADS = tuple(f">{TITLES[line]}" for line in LINES)


def accountings_table(accountings: Iterable[Mapping[str, str]]) -> str:
    """Who counts how many bytes per parameter, with which parts.

    An accounting has its `ledger`, its `optimizer` and `counted_by`.
    """
    rows = []
    for record in accountings:
        setup = {"model": "1B", "strategy": "single", "optimizer": record["optimizer"]}
        parts = ledgers()[record["ledger"]].amounts(setup)
        cells = [int(parts.get(line, 0) / 10**9) for line in LINES]
        rows.append([sum(cells), *(cell or "–" for cell in cells), record["counted_by"]])
    return markdown([">Bytes", *_HEADS, "Counted or kept by"], rows)


def set_ups_table(set_ups: Iterable[Mapping[str, str]]) -> str:
    """Whether each of `set_ups` keeps a master copy, by which flag, and its bytes.

    It has a name as `set_up`, `flag`, `master` and `recipe`. Source: its own, or else its recipe's.
    """
    rows = []
    for record in set_ups:
        recipe = RECIPES[record["recipe"]]
        total = sum(copy.itemsize for copy in recipe.copies) + _ADAMW.nominal_bytes(
            recipe.state_dtype
        )
        rows.append([record["set_up"], record["flag"], record["master"], total, f"`{recipe.name}`"])
    return markdown(["Set-up", "Flag", "Master copy", ">With AdamW", "Recipe"], rows)


def parts_table(model: Model, count: int) -> str:
    """Bytes per parameter of DeepSpeed and FSDP at each stage, gathered weights apart."""
    whole = "FSDP, weights left gathered"
    stacks = {"DeepSpeed ZeRO-1": "zero1", "DeepSpeed ZeRO-2": "zero2", "DeepSpeed ZeRO-3": "zero3"}
    rows = []
    for title, strategy in {**stacks, whole: "fsdp2", "FSDP, fully sharded": "fsdp2"}.items():
        job = Job.of(model=model, world_size=count, strategy=strategy)
        states, gathered = estimate(job).states, 2 * model.num_params if title == whole else 0
        parts = [*(getattr(states, line) for line in LINES), gathered, states.total + gathered]
        cells = [
            per_param(part, model.num_params) if part else "–"
            for part in (*parts, undivided(job) + gathered)
        ]
        rows.append([title, *cells])
    return markdown(
        ["Run", *_HEADS, ">Gathered weights", ">Total", ">Does not shrink with N"], rows
    )


def growth_table(model: Model, counts: Sequence[int]) -> str:
    """States per GPU by strategy and number of GPUs, and the part that stays as it is."""
    stacks = (
        ("ddp", "zero"),
        ("zero1", "zero"),
        ("zero2", "zero"),
        ("zero3", "zero"),
        ("fsdp2", "fsdp2-mixed"),
    )
    rows = []
    for name, recipe_name in stacks:
        strategy, recipe = get_strategy(name), get_recipe(recipe_name)
        whole = [copy for copy in recipe.copies if copy.stage > strategy.stage]
        fixed = sum(copy.itemsize for copy in whole) + (
            0 if strategy.stage else _ADAMW.nominal_bytes("fp32")
        )
        states = (_states(model, name, recipe_name, count).total for count in counts)
        never = (
            f"**{size(fixed * model.num_trainable)}** ({fixed} per parameter)"
            if fixed
            else "nothing"
        )
        rows.append([strategy.title, *map(size, states), never])
    return markdown(
        ["Strategy", *(f">{count:,} GPUs" for count in counts), ">Does not shrink with N"], rows
    )


def _states(model: Model, strategy: str, recipe: str, count: int) -> ModelStates:
    return estimate(Job.of(model=model, world_size=count, strategy=strategy, recipe=recipe)).states


def rounding_table(cuts: Iterable[tuple[Model, int]]) -> str:
    """By how much the AdamW state of the fullest rank passes one N-th, for each way to cut."""
    ways = {
        "FSDP2": ("fsdp2", "fsdp2-mixed"),
        "FSDP1": ("fsdp1", "fsdp2-mixed"),
        "DeepSpeed": ("zero3", "zero"),
    }
    ways["ZeroRedundancyOptimizer"] = ("zero1", "pure-bf16")
    rows = []
    for model, count in cuts:
        cells = []
        for name, recipe in ways.values():
            held, whole = (_states(model, name, recipe, size).optimizer for size in (count, 1))
            cells.append(f"+{decimal(Fraction(100 * (held * count - whole), whole), 3)} %")
        rows.append([short(model.name).rpartition("/")[2], count, *cells])
    return markdown(["Model", ">GPUs", *(f">{way}" for way in ways)], rows)


def formulas_table() -> str:
    """Bytes per parameter of every recipe under each of its stages: whole + divided part."""
    rows = []
    for name, recipe in RECIPES.items():
        stages = {item.stage for item in STRATEGIES.values() if item.name in recipe.strategies}
        sizes = [(copy.itemsize, copy.stage) for copy in recipe.copies]
        sizes.append((_ADAMW.nominal_bytes(recipe.state_dtype), 1))
        cells = []
        for stage in range(4):
            whole = sum(itemsize for itemsize, since in sizes if since > stage)
            divided = sum(itemsize for itemsize, since in sizes if since <= stage)
            parts = ([str(whole)] if whole else []) + ([f"{divided}/N"] if divided else [])
            cells.append(" + ".join(parts) if stage in stages else "–")
        rows.append([f"`{name}`", *cells])
    return markdown(["Recipe", ">One GPU, DDP", ">ZeRO-1", ">ZeRO-2", ">ZeRO-3, FSDP"], rows)


def shards_table(numel: int, counts: Iterable[int]) -> str:
    """State on the fullest of N ranks, of one bf16 vector: where a block optimizer stops saving."""
    names = ("adamw", "adamw8bit", "adamw8bit-torchao", "adamw4bit-torchao")
    rows = []
    for count in counts:
        local = ceil_div(numel, count)
        states = (state_bytes(OPTIMIZERS[name], (local,), "bf16") for name in names)
        rows.append([count, *map(number, (local, *states))])
    return markdown([">N", ">Elements", *(f">`{name}`" for name in names)], rows)
