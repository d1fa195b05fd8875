"""What `calc` says of each measured case, laid beside the measurement line by line.

Standard library only. Lines are bytes on the rank that holds most. Five lines of the ledger
(`weights`, `master`, `gradients`, `gradients.step`, `optimizer`), and those that it leaves out by name:

- `bucket`: DDP's gradient buckets, as large as the gradients, gone with `gradient_as_bucket_view`;
- `edge`: gradients of the tensors that an edge of a DeepSpeed ZeRO-1/2 partition cuts are kept whole;
- `persisted`: ZeRO-3 keeps tensors up to its persistence threshold whole, padded to N, beside their partition;
- `scalars`: 4 bytes a tensor, AdamW's and Adafactor's step counter or root mean square.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from calc.models import Model, from_config, with_adapters
from calc.sharding import Strategy, edge_elements, get_strategy, kept, largest_share, layout_of, pieces
from calc.states import RECIPES, Optimizer, Recipe, get_optimizer, is_muon, state_bytes
from calc.units import nf4_bytes
from tests.oracle.cases import CONFIGS, LORA_RANK, PERSIST, SIZES, Case

#: The stacks that calc knows by another name.
STRATEGY = {
    "ddp-view": "ddp",
    "zero-redundancy": "zero1",
    "fsdp1-grad-op": "fsdp1",
    "fsdp2-keep": "fsdp2",
    "hsdp": "fsdp2",
    "deepspeed1": "zero1",
    "deepspeed2": "zero2",
    "deepspeed3": "zero3",
}
#: Which 4-byte scalar each of these keeps for a tensor.
SCALARS = ("state.step", "state.RMS")
COUNTERS = ("adamw", "adamw-amsgrad", "adafactor", "adafactor-trainer", "adamw8bit-torchao", "adamw4bit-torchao")


def terms(case: Case) -> tuple[Strategy, Recipe, Optimizer]:
    """The case in calc's words."""
    stack = case.stack.removesuffix("-persist")
    strategy = STRATEGY.get(stack, stack)
    if stack.startswith("deepspeed"):
        recipe = RECIPES["deepspeed"]
        if case.dtype == "fp32":  # a master copy of fp32 weights: kept all the same
            recipe = replace(recipe, copies=tuple(replace(copy, dtype="fp32") for copy in recipe.copies))
    elif case.is_mixed:
        plain = {"single": "autocast", "ddp": "autocast", "zero1": "fp32"}
        recipe = RECIPES[plain.get(strategy, "fsdp2-mixed")]
    else:
        recipe = RECIPES["pure-bf16" if case.dtype == "bf16" else "fp32"]
    if case.optimizer == "adamw32bit":
        recipe = RECIPES["bf16-fp32-states"] if recipe.name == "pure-bf16" else recipe
        return get_strategy(strategy), recipe, get_optimizer("adamw")
    return get_strategy(strategy), recipe, get_optimizer(case.optimizer)


def tensors(case: Case) -> Iterator[int]:
    """Bytes of each lone tensor."""
    if case.optimizer.startswith("nf4"):
        double = case.optimizer == "nf4-double"
        yield from (nf4_bytes(prod(shape), double_quantised=double) for shape in SIZES)
        return
    _, recipe, optimizer = terms(case)
    yield from (state_bytes(optimizer, shape, recipe.state_dtype) for shape in SIZES)


def predicted(case: Case) -> dict[str, int]:
    """Bytes of each line on the largest rank."""
    model = from_config(CONFIGS[case.model], case.model)
    if case.is_adapted:
        model = with_adapters(model, rank=LORA_RANK)
    strategy, recipe, optimizer = terms(case)
    ranks = case.world_size // 2 if case.stack == "hsdp" else case.world_size
    states = kept(model, recipe, optimizer, strategy, ranks, "nf4-double" if case.model == "qlora" else "bf16")
    lines = {"weights": states.weights, "master": states.master, "gradients": states.gradients}
    lines |= {"optimizer": states.optimizer, "scalars": 4 * _num_scalars(case, model, ranks)}
    if case.stack in ("ddp", "zero-redundancy"):
        lines["bucket"] = states.gradients
    if case.stack.startswith("deepspeed"):
        size = 4 if case.dtype == "fp32" else 2
        lines["gradients.step"] = states.master
        lines["gradients"] -= states.master
        if strategy.stage < 3:
            lines["edge"] = size * edge_elements(model, ranks)
        if case.stack.endswith("-persist"):
            small = [t for t in model.tensors if t.numel <= PERSIST]
            lines["persisted"] = size * ranks * largest_share(small, "each", ranks)
    return {line: amount for line, amount in lines.items() if amount}


def _num_scalars(case: Case, model: Model, ranks: int) -> int:
    """Tensors for which the fullest rank's optimizer keeps a scalar."""
    strategy, recipe, optimizer = terms(case)
    if case.optimizer not in (*COUNTERS, "muon"):
        return 0
    layout, align = layout_of(strategy, recipe, ranks)
    held = pieces(model, optimizer, layout, ranks, align)
    muon = case.optimizer == "muon"
    return max(sum(n for shape, kind, n in on if not (muon and is_muon(shape, kind))) for on in held)


def reduced(case: Case, found: Mapping[str, Any]) -> dict[str, int]:
    """The measured lines on the largest rank, in the ledger's terms."""
    on = {line: value if isinstance(value, list) else [value] * case.world_size for line, value in found.items()}
    most = {line: max(values) for line, values in on.items()}
    states = [line for line in on if line.startswith("state.")]
    lines = {line: most[line] for line in ("weights", "master", "gradients", "gradients.step", "bucket") if line in on}
    lines["optimizer"] = max(
        map(sum, zip(*(on[line] for line in states if line not in SCALARS), strict=True)), default=0
    )
    lines["scalars"] = max(map(sum, zip(*(on[line] for line in states if line in SCALARS), strict=True)), default=0)
    if case.stack in ("deepspeed1", "deepspeed2"):
        share = most["gradients.step"] * (2 if case.dtype == "bf16" else 4) // 4
        lines["edge"] = most["gradients"] - share
        lines["gradients"] = most["gradients.first"] - (lines["edge"] if case.stack == "deepspeed2" else 0)
    if case.stack.endswith("-persist"):
        lines["persisted"] = most["weights"] - most["gradients"]
        lines["weights"] -= lines["persisted"]
    return {line: amount for line, amount in lines.items() if amount}
