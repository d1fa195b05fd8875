"""A run's file from its format's template in `calc/data/configs`, line by line.

A line `@flag,!other|text` is kept where the run has the flag and not the other; `$name` is a value
of the run, `$field=value` whether the run has that flag, as the file's language writes it.
A flag is the run's strategy, recipe and the like, a field with its value (`offload=all`), or what
`_flags` derives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from calc.configs.formats import FORMATS, Format
from calc.job import Job
from calc.models import Model
from calc.units import DATA, ceil_div

_NODE = 8
AUTO = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
_CONDITION = re.compile(r"@([\w!,=+-]+)\|(.*)")


@cache
def _template(name: str) -> tuple[str, ...]:
    return tuple((DATA / "configs" / name).read_text("utf-8").splitlines())


def body(job: Job, form: Format, auto: bool) -> str:
    """The file without the notes around it; `auto` leaves to Transformers what it fills in."""
    optimizer = (form.optimizers or FORMATS["deepspeed"].optimizers or {}).get(job.optimizer, "")
    if optimizer == "adamw_torch_fused" and job.step == "foreach":
        optimizer = "adamw_torch"
    flags, values = _flags(job, optimizer), _values(job, optimizer)
    flags |= {"auto"} if auto else set()

    def filled(name: re.Match[str]) -> str:
        truth = (
            str(name[1] in flags) if form.file.endswith(".py") else str(name[1] in flags).lower()
        )
        return truth if "=" in name[1] else str(values[name[1]])

    lines = []
    for line in _template(f"{form.format}.{form.file.rpartition('.')[2]}.txt"):
        condition, text = found.groups() if (found := _CONDITION.fullmatch(line)) else ("", line)
        if all(
            (flag[0] == "!") != (flag.lstrip("!") in flags) for flag in condition.split(",") if flag
        ):
            lines.append(re.sub(r"\$([\w=]+)", filled, text) + "\n")
    return "".join(lines)


def buckets(model: Model) -> dict[str, int]:
    """The sizes, in elements, that Transformers fills in: h², 0.9·h² and 10·h of hidden size h.

    >>> from calc.models import load
    >>> buckets(load("llama-3.1-8b"))["reduce_bucket_size"]
    16777216
    """
    hidden = int(str(model.config.get("hidden_size", 0)))
    return dict(zip(AUTO, (hidden * hidden, int(0.9 * hidden * hidden), 10 * hidden), strict=True))


def _flags(job: Job, optimizer: str) -> set[str]:
    settings, family, mixed = job.settings, job.stack.owner.lower(), job.recipe == "fsdp2-mixed"
    offloaded, stays = settings["offload"] == "all", not settings["reshard_after_forward"]
    true = {
        family: True,
        "zero": job.has("sub_group_size"),
        "divided": job.stack.stage == 3,
        "cast": mixed or job.recipe == "autocast",
        "many": job.world_size > _NODE,
        "options": job.has("wrap") and (mixed or offloaded or settings["shard_size"] or stays),
        "ends": settings["wrap"] == "block+ends" and not job.model.tied,
        "lora": job.lora_rank > 0,
        "nf4": job.base_dtype.startswith("nf4"),
        "named": optimizer != "",
        "step": optimizer == "torch.optim.AdamW",
        optimizer.partition(".")[0]: True,
    }
    words = {job.strategy, job.recipe, job.optimizer, job.attention, job.step}
    pairs = {f"{name}={value}" for name, value in settings.items()}
    return words | pairs | {name for name in true if true[name]}


def _values(job: Job, optimizer: str) -> Mapping[str, object]:
    """What the templates may name: the run's fields, and what is made of them."""
    model, targets = job.model, job.lora_targets.split(",")
    return job.settings | {
        "stage3_param_persistence_threshold": buckets(model)["stage3_param_persistence_threshold"]
        or 100_000,
        "model": model.name,
        "nodes": ceil_div(job.world_size, _NODE),
        "replicas": job.world_size // (job.stack.shard_size or 1),
        "stage": job.strategy[-1],
        "optimizer": optimizer,
        "blocks": model.blocks[0].tensors[0].name.partition(".*")[0]
        if model.blocks
        else "model.layers",
        "embedding": model.first[0].name.removesuffix(".weight"),
        "norm": model.last[0].name.removesuffix(".weight") if model.last else "model.norm",
        "alpha": 2 * job.lora_rank,
        "list_of_targets": json.dumps(targets),
        "each_target": "\n  - ".join(targets),
    }
