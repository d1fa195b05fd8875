"""Reads DeepSpeed's JSON: what it says about a run, its defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from calc.configs.formats import keys, known
from calc.configs.writing import buckets
from calc.models import Model
from calc.units import InputError, records, unknown, whole

_BATCH = {
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
}
_SIZES = (
    "reduce_bucket_size",
    "sub_group_size",
    "stage3_max_live_parameters",
    "stage3_prefetch_bucket_size",
)
#: Names that DeepSpeed used to have and still takes.
_OFFLOAD_ONCE = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
_GATHER = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "lion": "lion", "sgd": "sgd", "muon": "muon"}


def _known(found: Any, section: str = "") -> Mapping[str, Any]:
    """`found`, once each of its keys is one that DeepSpeed knows and that is counted."""
    config, uncounted = known("DeepSpeed", found, section), records("config-uncounted")[0]["keys"]
    for key, value in config.items():
        if key in uncounted and (value is True or value not in (False, None, 1, {})):
            name = f"{section}.{key}" if section else key
            raise InputError(f"{name} changes what DeepSpeed keeps; it is not counted")
    return config


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{key} must be true or false, not {str(value)[:40]!r}")
    return value


def read(
    config: Mapping[str, Any], world_size: int, model: Model
) -> tuple[dict[str, Any], list[str]]:
    """The fields of `Job` that a DeepSpeed config says, and what was filled in, one line each."""
    _known(config)
    zero = _known(config.get("zero_optimization", {}), "zero_optimization")
    stage = whole("zero_optimization.stage", zero.get("stage", 0), 0, 3)
    half, notes = _half(config)
    if half == "fp16":
        notes.append("fp16 counts like bf16: two bytes, and an fp32 master copy")
    whole_ranks = "ddp" if world_size > 1 else "single"
    says: dict[str, Any] = {"strategy": f"zero{stage}" if stage else whole_ranks}
    moved = [new for old, new in _OFFLOAD_ONCE.items() if _flag(old, zero.get(old, False))]
    once = {name: {"device": "cpu"} for name in moved}
    # DeepSpeed takes both names.
    zero = {**{f"stage3_{key}": value for key, value in zero.items()}, **once, **zero}
    says |= {"recipe": "zero", "offload": _offload(zero, stage)} | _batch(config, world_size, notes)
    if optimizer := config.get("optimizer", {}):
        kind = str(optimizer.get("type")) if isinstance(optimizer, Mapping) else str(optimizer)
        if kind.lower() not in _OPTIMIZERS:
            raise unknown("DeepSpeed optimizer.type", kind, _OPTIMIZERS)
        momentum = kind.lower() == "sgd" and optimizer.get("params", {}).get("momentum")
        says["optimizer"] = "sgd-momentum" if momentum else _OPTIMIZERS[kind.lower()]
    if stage == 3 and (gathers := [_flag(key, zero[key]) for key in _GATHER if key in zero]):
        says["save"] = "full" if any(gathers) else "sharded"
    if stage:
        if (overlap := zero.get("overlap_comm")) is None:
            notes.append(f"overlap_comm {str(stage == 3).lower()}: DeepSpeed default")
            overlap = stage == 3
        says["overlap_comm"] = _flag("zero_optimization.overlap_comm", overlap)
        says |= _sizes(zero, model, _SIZES if stage == 3 else _SIZES[:1], notes)
    return says, notes


def _half(config: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Which 16-bit dtype a config takes; Transformers decides on an `auto`: bf16 where it may."""
    old = config.get("bfloat16", {})  # what DeepSpeed reads where there is no bf16
    halves = {
        "bf16": old if config.get("bf16") is None else config["bf16"],
        "fp16": config.get("fp16", {}),
    }
    given = {dtype: _known(found, dtype).get("enabled", False) for dtype, found in halves.items()}
    left = [dtype for dtype, value in given.items() if value == "auto"]
    said = {dtype: value for dtype, value in given.items() if value != "auto"}
    on = [dtype for dtype, value in said.items() if _flag(f"{dtype}.enabled", value)]
    if len(on) > 1:
        raise InputError("bf16.enabled and fp16.enabled are both true; DeepSpeed takes one of them")
    if not on + left:
        raise InputError(
            "neither bf16.enabled nor fp16.enabled is true: DeepSpeed's fp32 is not counted"
        )
    taken = (on + left)[0]
    told = [f"{dtype}.enabled auto: taken as {str(dtype == taken).lower()}" for dtype in left]
    return taken, told


def _batch(config: Mapping[str, Any], world_size: int, notes: list[str]) -> dict[str, int]:
    """Micro-batch and accumulation; what the file leaves out follows from train_batch_size."""
    found = {
        _BATCH[key]: whole(key, config[key], 1, 10**6)
        for key in _BATCH
        if config.get(key, "auto") != "auto"
    }
    if config.get("train_batch_size", "auto") == "auto":
        return found
    total = whole("train_batch_size", config["train_batch_size"], 1, 10**12)
    absent = [key for key in _BATCH if key not in config]
    if absent and len(found) + len(absent) == 2:  # else Transformers fills in an `auto`
        if len(absent) == 2:
            found["accumulation"] = 1
        known = found.get("micro_batch") or found.get("accumulation") or 1
        found |= {_BATCH[absent[0]]: max(1, total // known // world_size)}
        notes += [f"{key} {found[_BATCH[key]]:,}: from train_batch_size" for key in absent]
    product = prod(found.values()) * world_size
    if len(found) == 2 and total != product:
        raise InputError(
            f"train_batch_size {total:,} is not micro-batch × accumulation × GPUs, {product:,}"
        )
    return found


def _offload(zero: Mapping[str, Any], stage: int) -> str:
    found, meant = [], {("none", "none"): "none", ("cpu", "none"): "optimizer"}
    if stage == 3:
        meant |= {("cpu", "cpu"): "all", ("nvme", "nvme"): "nvme"}
    for name in ("offload_optimizer", "offload_param"):
        device = "none"
        if zero.get(name):
            device = _known(zero[name], f"zero_optimization.{name}").get("device", "")
        if device not in ("none", "cpu", "nvme"):
            why = f"device {str(device)[:20]!r}, which is not counted" if device else "no device"
            raise InputError(f"zero_optimization.{name} has {why}; allowed: cpu, nvme, none")
        found.append(device)
    if tuple(found) not in meant:
        told = f"zero_optimization.offload_optimizer {found[0]} with offload_param {found[1]}"
        counted = " or ".join(" and ".join(pair) for pair in meant)
        raise InputError(f"{told} is not counted in stage {stage}; counted: {counted}")
    return meant[found[0], found[1]]


def _sizes(
    zero: Mapping[str, Any], model: Model, names: tuple[str, ...], notes: list[str]
) -> dict[str, int]:
    """The sizes in elements; which of them the file leaves open goes to `notes`."""
    defaults = keys("deepspeed", "zero_optimization")
    found = {}
    for key in names:
        value = zero.get(key, defaults[key])
        value = buckets(model).get(key, 0) if value == "auto" else value
        if isinstance(value, float) and value.is_integer():  # 5e8 is one
            value = int(value)
        found[key] = whole(f"zero_optimization.{key}", value, 0, 10**12)
        if key not in zero or zero[key] == "auto":
            notes.append(f"{key} {found[key]:,}: {'auto' if key in zero else 'DeepSpeed default'}")
    return found
