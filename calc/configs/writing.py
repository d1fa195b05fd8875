"""A run's file from its format's template in `calc/data/configs`: plain text, one line after the other.

A line `@flag,!other|text` is kept where the run has the flag and not the other; `$name` is a value of the run.
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
_TORCH = {"bf16": "bfloat16", "fp32": "float32"}
_CONDITION = re.compile(r"@([\w!,=+-]+)\|(.*)")


@cache
def _template(name: str) -> tuple[str, ...]:
    return tuple(resources.files("calc.data").joinpath("configs", name).read_text("utf-8").splitlines())


def body(run: Run, form: Format, auto: bool) -> str:
    """The text of the file, without the notes around it; `auto` leaves to Transformers what it fills in."""
    flags, values = _flags(run, form), _values(run, form)
    flags |= {"auto"} if auto else set()
    lines = []
    for line in _template(f"{form.format}.{form.file.rpartition('.')[2]}.txt"):
        condition, text = found.groups() if (found := _CONDITION.fullmatch(line)) else ("", line)
        if all((flag[0] == "!") != (flag.lstrip("!") in flags) for flag in condition.split(",") if flag):
            lines.append(re.sub(r"\$(\w+)", lambda name: str(values[name[1]]), text) + "\n")
    return "".join(lines)


def buckets(model: Model) -> dict[str, int]:
    """The three sizes, in elements, that Transformers fills in for `auto`: h², 0.9·h² and 10·h of hidden size h.

    >>> from calc.models import load
    >>> buckets(load("llama-3.1-8b"))["reduce_bucket_size"]
    16777216
    """
    hidden = int(str(model.config.get("hidden_size", 0)))
    return {
        "reduce_bucket_size": hidden * hidden,
        "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
        "stage3_param_persistence_threshold": 10 * hidden,
    }


def _optimizer(run: Run, form: Format) -> str:
    name = (form.optimizers or FORMATS["deepspeed"].optimizers or {}).get(run.optimizer, "")
    return "adamw_torch" if name == "adamw_torch_fused" and run.step == "foreach" else name


def _flags(run: Run, form: Format) -> set[str]:
    optimizer, fsdp = _optimizer(run, form), run.strategy in FSDP
    mixed = run.recipe == "fsdp2-mixed"
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


def _values(run: Run, form: Format) -> Mapping[str, object]:
    """What the templates may name; truths and lists as the file's language writes them."""
    model, python = run.model, form.file.endswith(".py")
    targets = run.lora_targets.split(",")
    values = {field.name: getattr(run, field.name) for field in fields(run)} | {
        "checkpointing": run.checkpointing == "full",
        "no_checkpointing": run.checkpointing == "none",
        "offload_all": run.offload == "all",
        "save_full": run.save == "full",
        "stage3_param_persistence_threshold": buckets(model)["stage3_param_persistence_threshold"] or 100_000,
        "model": model.name,
        "nodes": ceil_div(run.world_size, _NODE),
        "replicas": run.world_size // (run.shard_size or 1),
        "stage": run.strategy[-1],
        "state_dict": "FULL_STATE_DICT" if run.save == "full" else "SHARDED_STATE_DICT",
        "optimizer": _optimizer(run, form),
        "reduce": _TORCH[run.reduce_dtype],
        "blocks": model.blocks[0].tensors[0].name.partition(".*")[0] if model.blocks else "model.layers",
        "embedding": model.first[0].name.removesuffix(".weight"),
        "norm": model.last[0].name.removesuffix(".weight") if model.last else "model.norm",
        "rank": run.lora_rank,
        "alpha": 2 * run.lora_rank,
        "targets": json.dumps(targets[0] if targets == ["all-linear"] else targets) if python else run.lora_targets,
        "each_target": "\n  - ".join(targets),
        "base": _TORCH["fp32" if run.base_dtype == "fp32" else "bf16"],
    }
    truths = {
        name: str(value) if python else str(value).lower() for name, value in values.items() if value in (True, False)
    }
    return values | {name: truth for name, truth in truths.items() if isinstance(values[name], bool)}
