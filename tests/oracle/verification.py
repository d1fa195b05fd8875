"""The tables of the Verification page: predicted by `calc`, measured and recorded, and their difference."""

from __future__ import annotations

from collections.abc import Iterable

from calc.tables.text import markdown, number
from tests.oracle.cases import CASES, OPTIMIZERS, PAIRED, SIZES, Case
from tests.oracle.predicted import predicted, reduced, tensors
from tests.oracle.record import file_of, recorded

TITLES = {
    "single": "one process",
    "ddp": "DDP",
    "ddp-view": "DDP, gradients as bucket views",
    "zero-redundancy": "ZeroRedundancyOptimizer",
    "fsdp1": "FSDP1 FULL_SHARD",
    "fsdp1-grad-op": "FSDP1 SHARD_GRAD_OP",
    "fsdp2": "FSDP2",
    "fsdp2-keep": "FSDP2, no reshard after forward",
    "hsdp": "FSDP2 on a 2-D mesh",
    "deepspeed1": "DeepSpeed ZeRO-1",
    "deepspeed2": "DeepSpeed ZeRO-2",
    "deepspeed3": "DeepSpeed ZeRO-3",
    "deepspeed3-persist": "DeepSpeed ZeRO-3, small tensors kept whole",
}
LEDGER = ("weights", "master", "gradients", "gradients.step", "optimizer")
NAMED = {
    "bucket": "DDP's gradient buckets",
    "edge": "gradients of tensors that a partition's edge cuts",
    "persisted": "small tensors kept whole (stage3_param_persistence_threshold)",
    "scalars": "step counters, 4 bytes a tensor",
}


def library(case: Case) -> str:
    """The library that the case measures, with its version."""
    name = "torch"
    if case.stack.startswith("deepspeed"):
        name = "deepspeed"
    elif case.model == "sizes":
        known = {"torchao": "torchao", "8bit": "bitsandbytes", "32bit": "bitsandbytes", "lion": "bitsandbytes"}
        known |= {"nf4": "bitsandbytes", "adafactor-trainer": "transformers"}
        name = next((found for word, found in known.items() if word in case.optimizer), "torch")
    return f"{name} {recorded(file_of(case))['versions'][name].split('+')[0]}"


def optimizer_table() -> str:
    """Markdown: bytes of optimizer state of the lone tensors, each compared by itself, shown as their sum."""
    rows = []
    for case in CASES:
        if case.model == "sizes":
            said, found = list(tensors(case)), recorded("optimizers")["cases"][str(case)]["by_tensor"]
            apart = sum(one != other for one, other in zip(said, found, strict=True))
            row = (f"`{case.optimizer}`", case.dtype, number(sum(said)), number(sum(found)), str(apart), library(case))
            rows.append(row)
    return markdown(("optimizer", "parameters", ">predicted", ">measured", f">of {len(SIZES)} differ", "library"), rows)


def rank_table(model: str, world_size: int, stacks: Iterable[str] = tuple(TITLES)) -> str:
    """Markdown: what the largest rank keeps with AdamW, gradients included, in bytes."""
    rows = []
    for case in (case for stack in stacks for case in CASES if case.stack == stack):
        if (case.model, case.world_size, case.optimizer) == (model, world_size, "adamw"):
            said, found = predicted(case), reduced(case, recorded("ranks")["cases"][str(case)])
            ours, theirs = (sum(lines.get(line, 0) for line in LEDGER) for lines in (said, found))
            apart = sum(abs(said.get(line, 0) - found.get(line, 0)) for line in LEDGER)
            rows.append((TITLES[case.stack], case.dtype, number(ours), number(theirs), number(apart), library(case)))
    return markdown(("stack", "dtype", ">predicted", ">measured", ">difference", "library"), rows)


def named_table(model: str, world_size: int) -> str:
    """Markdown: the lines that the ledger leaves out by name, in bytes on the rank that holds most."""
    rows = []
    for case in CASES:
        if (case.model, case.world_size, case.optimizer, case.dtype) == (model, world_size, "adamw", "bf16"):
            said, found = predicted(case), reduced(case, recorded("ranks")["cases"][str(case)])
            for line in (line for line in NAMED if line in {*said, *found}):
                ours, theirs = said.get(line, 0), found.get(line, 0)
                row = (NAMED[line], TITLES[case.stack], number(ours), number(theirs), number(abs(ours - theirs)))
                rows.append(row)
    return markdown(("line", "stack", ">predicted", ">measured", ">difference"), sorted(rows))


def pairs_table() -> str:
    """Markdown: which optimizer takes a step under which stack, tried on two ranks."""
    rows = []
    for optimizer in OPTIMIZERS:
        row = [f"`{optimizer}`"]
        for stack in PAIRED:
            tried = {
                case.dtype: "error" not in recorded("ranks")["cases"][str(case)]
                for case in CASES
                if (case.stack, case.optimizer, case.model, case.world_size) == (stack, optimizer, "even", 2)
            }
            ran = ", ".join(dtype for dtype, works in tried.items() if works and "reduce" not in dtype)
            row.append("yes" if all(tried.values()) else f"only {ran}" if ran else "no")
        rows.append(row)
    return markdown(("optimizer", *(TITLES[stack] for stack in PAIRED)), rows)


def refusals_table() -> str:
    """Markdown: the first words of each refusal."""
    refused: dict[str, list[str]] = {}
    for case in CASES:
        if error := recorded(file_of(case))["cases"][str(case)].get("error"):
            refused.setdefault(error.replace("`", "'"), []).append(
                f"{TITLES[case.stack]} {case.dtype} `{case.optimizer}`"
            )
    return markdown(("tried", "error begins"), [("; ".join(cases), f"`{error}`") for error, cases in refused.items()])
