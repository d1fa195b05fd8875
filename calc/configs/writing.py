"""A run's file from its format's template in `calc/data/configs`: plain text, one line after the other.

A line `@flag,!other|text` is kept where the run has the flag and not the other; `$name` is a value of the run,
`$field=value` whether the run has that flag, as the file's language writes it.
A flag is the run's strategy, recipe and the like, a field with its value (`offload=all`), or what `_flags` derives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import resources

from calc.configs.formats import FORMATS, Format
from calc.estimate import FSDP, Run
from calc.models import Model
from calc.units import ceil_div

_NODE = 8
AUTO = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
_CONDITION = re.compile(r"@([\w!,=+-]+)\|(.*)")


@cache
def _template(name: str) -> tuple[str, ...]:
    return tuple(resources.files("calc.data").joinpath("configs", name).read_text("utf-8").splitlines())


def body(run: Run, form: Format, auto: bool) -> str:
    """The text of the file, without the notes around it; `auto` leaves to Transformers what it fills in."""
    optimizer = (form.optimizers or FORMATS["deepspeed"].optimizers or {}).get(run.optimizer, "")
    if optimizer == "adamw_torch_fused" and run.step == "foreach":
        optimizer = "adamw_torch"
    flags, values = _flags(run, optimizer), _values(run, optimizer)
    flags |= {"auto"} if auto else set()

    def filled(name: re.Match[str]) -> str:
        truth = str(name[1] in flags) if form.file.endswith(".py") else str(name[1] in flags).lower()
        return truth if "=" in name[1] else str(values[name[1]])

    lines = []
    for line in _template(f"{form.format}.{form.file.rpartition('.')[2]}.txt"):
        condition, text = found.groups() if (found := _CONDITION.fullmatch(line)) else ("", line)
        if all((flag[0] == "!") != (flag.lstrip("!") in flags) for flag in condition.split(",") if flag):
            lines.append(re.sub(r"\$([\w=]+)", filled, text) + "\n")
    return "".join(lines)


def buckets(model: Model) -> dict[str, int]:
    """The three sizes, in elements, that Transformers fills in for `auto`: h², 0.9·h² and 10·h of hidden size h.

    >>> from calc.models import load
    >>> buckets(load("llama-3.1-8b"))["reduce_bucket_size"]
    16777216
    """
    hidden = int(str(model.config.get("hidden_size", 0)))
    return dict(zip(AUTO, (hidden * hidden, int(0.9 * hidden * hidden), 10 * hidden), strict=True))


def _flags(run: Run, optimizer: str) -> set[str]:
    fsdp, mixed = run.strategy in FSDP, run.recipe == "fsdp2-mixed"
    true = {
        "fsdp": fsdp,
        "zero": run.strategy.startswith("zero"),
        "divided": fsdp or run.strategy == "zero3",
        "cast": mixed or run.recipe == "autocast",
        "many": run.world_size > _NODE,
        "options": fsdp and (mixed or run.offload == "all" or run.shard_size or not run.reshard_after_forward),
        "ends": run.wrap == "block+ends" and not run.model.tied,
        "lora": run.lora_rank > 0,
        "nf4": run.base_dtype.startswith("nf4"),
        "named": optimizer != "",
        "step": optimizer == "torch.optim.AdamW",
        optimizer.partition(".")[0]: True,
    }
    words = {run.strategy, run.recipe, run.optimizer, run.attention, run.step}
    pairs = {f"{field.name}={getattr(run, field.name)}" for field in fields(run) if field.name != "model"}
    return words | pairs | {name for name in true if true[name]}


def _values(run: Run, optimizer: str) -> Mapping[str, object]:
    """What the templates may name: the run's fields, and what is made of them."""
    model, targets = run.model, run.lora_targets.split(",")
    return {field.name: getattr(run, field.name) for field in fields(run)} | {
        "stage3_param_persistence_threshold": buckets(model)["stage3_param_persistence_threshold"] or 100_000,
        "model": model.name,
        "nodes": ceil_div(run.world_size, _NODE),
        "replicas": run.world_size // (run.shard_size or 1),
        "stage": run.strategy[-1],
        "optimizer": optimizer,
        "blocks": model.blocks[0].tensors[0].name.partition(".*")[0] if model.blocks else "model.layers",
        "embedding": model.first[0].name.removesuffix(".weight"),
        "norm": model.last[0].name.removesuffix(".weight") if model.last else "model.norm",
        "alpha": 2 * run.lora_rank,
        "list_of_targets": json.dumps(targets),
        "each_target": "\n  - ".join(targets),
    }
