"""The tables of the Verification page: predicted by `calc`, measured and recorded, and their difference."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from typing import Any

from calc import models
from calc.estimate import estimate
from calc.models import Model, with_adapters
from calc.tables.text import markdown, number
from calc.units import decimal
from tests.oracle.cases import CASES, OPTIMIZERS, PAIRED, SIZES, Case
from tests.oracle.predicted import predicted, reduced, tensors
from tests.oracle.record import file_of, recorded
from tests.oracle.tracked import run_of

TITLES = {
    "single": "One process",
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
DTYPES = {"mixed": "bf16 on fp32", "mixed-reduce-bf16": "bf16 on fp32, reduced in bf16"}
LEDGER = ("weights", "master", "gradients", "gradients.step", "optimizer")
NAMED = {
    "bucket": "DDP's gradient buckets",
    "edge": "Gradients of tensors that a partition's edge cuts",
    "persisted": "Small tensors kept whole (`stage3_param_persistence_threshold`)",
    "scalars": "Step counters, 4 bytes a tensor",
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
    return markdown(("Optimizer", "Parameters", ">Predicted", ">Measured", f">Of {len(SIZES)} differ", "Library"), rows)


def models_table() -> str:
    """Markdown: parameters of the known models by architecture; a model differs if its tensors, active or LoRA do."""
    record = recorded("models")
    library = f"transformers {record['versions']['transformers']}"
    rows: dict[str, list[int]] = {}
    for name, found in record["models"].items():
        model = models.load(name)
        row = rows.setdefault(model.model_type, [0, 0, 0, 0])
        for at, more in enumerate((1, model.num_params, found["params_total"], counted(model, found) != found)):
            row[at] += more
    cells = ([f"`{name}`", *map(number, row), library] for name, row in sorted(rows.items()))
    return markdown(("Architecture", ">Models", ">Predicted", ">Measured", ">Differ", "Library"), cells)


def counted(model: Model, found: Iterable[str]) -> dict[str, int]:
    """The counts of `found` as `calc` has them."""
    said = {"num_tensors": sum(tensor.count for tensor in model.tensors)}
    said |= {"params_total": model.num_params, "params_active": model.num_active}
    if "lora_rank_16" in found:
        said["lora_rank_16"] = with_adapters(model, rank=16).num_trainable
    return said


def summary_table() -> str:
    """Markdown: how much was compared for each question, and how much of it differs."""
    known = recorded("models")["models"]
    alone = [case for case in CASES if case.model == "sizes"]
    lone = recorded("optimizers")["cases"]
    differ = [
        one != other for case in alone for one, other in zip(tensors(case), lone[str(case)]["by_tensor"], strict=True)
    ]
    held = recorded("ranks")["cases"]
    ran = [case for case in CASES if case.model != "sizes" and "error" not in held[str(case)]]
    apart = [abs(Fraction(one - other, other)) for _, one, other in peaks()]
    refused = sum(case.model != "sizes" for case in CASES) - len(ran)
    rows = (
        (
            "Parameters of a model: tensors, total, active, adapters",
            len(known),
            sum(counted(models.load(name), found) != found for name, found in known.items()),
        ),
        ("Optimizer state, or NF4, of a lone tensor", number(len(differ)), sum(differ)),
        (
            "Training state of a small model on 1, 2, 4 or 8 ranks, line by line",
            len(ran),
            sum(predicted(case) != reduced(case, held[str(case)]) for case in ran),
        ),
        ("Stack, dtype and optimizer that the framework refuses, `calc` too", refused, "–"),
        ("Peak of a step, by PyTorch's trackers", len(peaks()), f"by at most {_percent(max(apart))}"),
    )
    return markdown(("Question", ">Compared", ">Differ"), rows)


def rank_table(model: str, world_size: int, stacks: Iterable[str] = tuple(TITLES)) -> str:
    """Markdown: what the largest rank keeps with AdamW, gradients included, in bytes."""
    rows = []
    for case in (case for stack in stacks for case in CASES if case.stack == stack):
        if (case.model, case.world_size, case.optimizer) == (model, world_size, "adamw"):
            said, found = predicted(case), reduced(case, recorded("ranks")["cases"][str(case)])
            ours, theirs = (sum(lines.get(line, 0) for line in LEDGER) for lines in (said, found))
            apart = sum(abs(said.get(line, 0) - found.get(line, 0)) for line in LEDGER)
            dtype = DTYPES.get(case.dtype, case.dtype)
            rows.append((TITLES[case.stack], dtype, number(ours), number(theirs), number(apart), library(case)))
    return markdown(("Stack", "Dtype", ">Predicted", ">Measured", ">Difference", "Library"), rows)


def divided_table(model: str, world_size: int) -> str:
    """Markdown: optimizer state on the largest rank, of the optimizers that see only a shard."""
    rows = []
    for case in CASES:
        if (case.model, case.world_size) == (model, world_size) and case.optimizer != "adamw":
            said, found = predicted(case), reduced(case, recorded("ranks")["cases"][str(case)])
            ours, theirs = said["optimizer"], found["optimizer"]
            dtype = DTYPES.get(case.dtype, case.dtype)
            rows.append(
                (f"`{case.optimizer}`", TITLES[case.stack], dtype, number(ours), number(theirs), number(ours - theirs))
            )
    return markdown(("Optimizer", "Stack", "Dtype", ">Predicted", ">Measured", ">Difference"), sorted(rows))


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
    return markdown(("Line", "Stack", ">Predicted", ">Measured", ">Difference"), sorted(rows))


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
            failed = ", ".join(dtype for dtype, works in tried.items() if not works)
            row.append("no" if not any(tried.values()) else f"not {failed}" if failed else "yes")
        rows.append(row)
    short = {"zero-redundancy": "torch ZeRO-1", "fsdp1": "FSDP1"}
    return markdown(("Optimizer", *(short.get(stack, TITLES[stack]) for stack in PAIRED)), rows)


def refusals_table() -> str:
    """Markdown: the first words of each refusal."""
    refused: dict[str, list[str]] = {}
    for case in CASES:
        if error := recorded(file_of(case))["cases"][str(case)].get("error"):
            refused.setdefault(error.replace("`", "'"), []).append(
                f"{TITLES[case.stack]} {case.dtype} `{case.optimizer}`"
            )
    return markdown(
        ("Tried", "The error begins"), [("; ".join(cases), f"`{error}`") for error, cases in refused.items()]
    )


@cache
def peaks() -> tuple[tuple[dict[str, Any], int, int], ...]:
    """Each tracked run, the peak that `calc` predicts, and the one that was tracked."""
    rows = [row for group in ("llama", "others") for row in recorded("tracker")[group]]
    found = ((row, estimate(run_of(row["run"])).peak) for row in rows)
    return tuple((row["run"], peak.bytes, row["peak_bytes"]) for row, peak in found if peak)


def _percent(share: Fraction) -> str:
    return f"{decimal(100 * share, 4)} %"


def peaks_table() -> str:
    """Markdown: by model, the runs that a tracker followed, and the least and the most that `calc` is off."""
    by_model: dict[str, list[Fraction]] = {}
    for run, ours, theirs in peaks():
        by_model.setdefault(run["model"], []).append(Fraction(ours - theirs, theirs))
    torch = f"torch {recorded('tracker')['versions']['torch'].split('+')[0]}"
    ends = ((name, len(off), _percent(min(off)), _percent(max(off))) for name, off in sorted(by_model.items()))
    rows = ((f"`{name}`", *cells, torch) for name, *cells in ends)
    return markdown(("Model", ">Runs", ">Least", ">Most", "Library"), rows)


def drawn_table() -> str:
    """Markdown: of the runs drawn at random, how many peaks are off by no more than so much."""
    rows = recorded("tracker")["drawn"]
    found = [(estimate(run_of(row["run"])).peak, row) for row in rows]
    off = [abs(Fraction(peak.bytes - row["peak_bytes"], row["peak_bytes"])) for peak, row in found if peak]
    limits = (Fraction(1, 10**5), Fraction(1, 10**3), Fraction(5, 10**3), Fraction(1, 100))
    cells = ((f"{decimal(100 * limit, 3)} %", sum(share <= limit for share in off), len(off)) for limit in limits)
    return markdown(("Off by at most", ">Runs", ">Of"), cells)


def tracked_table() -> str:
    """Markdown: every tracked run with its settings, in bytes."""
    rows = []
    for run, ours, theirs in peaks():
        words = (f"{key.replace('_', ' ')} {value}" for key, value in run.items() if key not in ("model", "config"))
        off = _percent(Fraction(ours - theirs, theirs))
        rows.append((f"`{run['model']}`", ", ".join(words) or "–", number(ours), number(theirs), off))
    return markdown(("Model", "Settings", ">Predicted", ">Tracked", ">Difference"), rows)
