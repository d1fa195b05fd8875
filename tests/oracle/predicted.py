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

from calc.memory.training import Training
from calc.models import from_config, with_adapters
from calc.optimizers import Optimizer, get_optimizer, is_muon, state_bytes
from calc.precision import RECIPES, Recipe
from calc.stacks import Stack
from calc.stacks.ddp import DDP
from calc.stacks.deepspeed3 import DeepSpeed3
from calc.stacks.deepspeed12 import DeepSpeed1, DeepSpeed2, edge_elements
from calc.stacks.fsdp1 import FSDP1
from calc.stacks.fsdp2 import FSDP2
from calc.stacks.single import Single
from calc.stacks.zero_redundancy import ZeroRedundancy
from calc.units import nf4_bytes
from tests.oracle.cases import CONFIGS, LORA_RANK, PERSIST, SIZES, Case

#: The stack of calc that stands for each measured one; of HSDP one group.
STACKS: Mapping[str, type[Stack]] = {
    "single": Single,
    "ddp": DDP,
    "ddp-view": DDP,
    "zero-redundancy": ZeroRedundancy,
    "fsdp1": FSDP1,
    "fsdp1-grad-op": FSDP1,
    "fsdp2": FSDP2,
    "fsdp2-keep": FSDP2,
    "hsdp": FSDP2,
    "deepspeed1": DeepSpeed1,
    "deepspeed2": DeepSpeed2,
    "deepspeed3": DeepSpeed3,
}
#: Which 4-byte scalar each of these keeps for a tensor.
SCALARS = ("state.step", "state.RMS")
COUNTERS = ("adamw", "adamw-amsgrad", "adafactor", "adafactor-trainer", "adamw8bit-torchao", "adamw4bit-torchao")


def terms(case: Case) -> tuple[type[Stack], Recipe, Optimizer]:
    """The case in calc's words."""
    name = case.stack.removesuffix("-persist")
    stack = STACKS[name]
    if name.startswith("deepspeed"):
        recipe = RECIPES["deepspeed"]
        if case.dtype == "fp32":  # a master copy of fp32 weights: kept all the same
            recipe = replace(recipe, copies=tuple(replace(copy, dtype="fp32") for copy in recipe.copies))
    elif case.is_mixed:
        plain: Mapping[type[Stack], str] = {Single: "autocast", DDP: "autocast", ZeroRedundancy: "fp32"}
        recipe = RECIPES[plain.get(stack, "fsdp2-mixed")]
    else:
        recipe = RECIPES["pure-bf16" if case.dtype == "bf16" else "fp32"]
    if case.optimizer == "adamw32bit":
        recipe = RECIPES["bf16-fp32-states"] if recipe.name == "pure-bf16" else recipe
        return stack, recipe, get_optimizer("adamw")
    return stack, recipe, get_optimizer(case.optimizer)


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
    named, recipe, optimizer = terms(case)
    ranks = case.world_size // 2 if case.stack == "hsdp" else case.world_size
    stack, base_dtype = named(ranks=ranks), "nf4-double" if case.model == "qlora" else "bf16"
    training = Training(model=model, recipe=recipe, optimizer=optimizer, base_dtype=base_dtype)
    states = stack.states(training)
    lines = {"weights": states.weights, "master": states.master, "gradients": states.gradients}
    lines |= {"optimizer": states.optimizer, "scalars": 4 * _num_scalars(case, stack, training)}
    if case.stack in ("ddp", "zero-redundancy"):
        lines["bucket"] = states.gradients
    if case.stack.startswith("deepspeed"):
        size = 4 if case.dtype == "fp32" else 2
        lines["gradients.step"] = states.master
        lines["gradients"] -= states.master
        if stack.stage < 3:
            lines["edge"] = size * edge_elements(model, ranks)
        if case.stack.endswith("-persist"):
            small = [t for t in model.tensors if t.numel <= PERSIST]
            lines["persisted"] = size * ranks * stack.cut(small, ranks, recipe)
    return {line: amount for line, amount in lines.items() if amount}


def _num_scalars(case: Case, stack: Stack, training: Training) -> int:
    """Tensors for which the fullest rank's optimizer keeps a scalar."""
    if case.optimizer not in (*COUNTERS, "muon"):
        return 0
    muon = case.optimizer == "muon"
    held = stack.handed(training, stack.ranks)
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
