"""Reads Accelerate's YAML: what it says about a run, its defaults filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calc.configs.formats import keys, known
from calc.units import InputError, named, whole

Found = tuple[dict[str, Any], dict[str, Any], list[str]]


#: FSDP1's ways to keep copies of groups, each of which divides everything.
_HYBRID = ("hybrid_shard", "4", "hybrid_shard_zero2", "5")
Reader = Callable[[Any], tuple[dict[str, Any], list[str]]]


def read(config: Mapping[str, Any], world_size: int, other: Reader) -> Found:
    """The fields of `Job` that a config says, those it leaves to the library, and notes.

    `other` reads a DeepSpeed config, given as its path or its keys.
    """
    config = known("Accelerate", config)
    kind = str(config.get("distributed_type"))
    named("distributed_type", kind, dict.fromkeys(("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")))
    processes = config.get("num_processes", 1 if kind == "NO" else world_size)
    count = whole("num_processes", processes, 1, 1_000_000)
    if count != world_size:
        raise InputError(f"num_processes {count:,} contradicts --gpus {world_size:,}")
    precision = str(config.get("mixed_precision") or "no")  # YAML takes a bare no for false
    named("mixed_precision", precision, dict.fromkeys(("no", "bf16", "fp16")))
    if kind == "DEEPSPEED":
        return _deepspeed(_section(config, "deepspeed_config"), precision, other)
    if kind == "FSDP":
        says, leaves, notes = _fsdp(_section(config, "fsdp_config"), precision)
        return says | _groups(_section(config, "parallelism_config")), leaves, notes
    note = "the file does not say the weights' dtype: bf16, as in the checkpoint"
    notes = [f"{note}, unless --recipe says otherwise"]
    return {"strategy": "single" if kind == "NO" else "ddp"}, {"recipe": "pure-bf16"}, notes


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section whose keys Accelerate knows; its launcher adds a missing `fsdp_`."""
    found = config.get(name, {})
    if name == "fsdp_config" and isinstance(found, Mapping):
        found = {"fsdp_" + key.removeprefix("fsdp_"): value for key, value in found.items()}
    return known("Accelerate", found, name)


def _groups(given: Mapping[str, Any]) -> dict[str, Any]:
    """HSDP: copies of groups, each of which divides everything."""
    sizes = {
        key.removeprefix("parallelism_config_"): value
        for key, value in given.items()
        if key.endswith("_size")
    }
    shard = sizes.pop("dp_shard_size", 1)
    if sizes.pop("dp_replicate_size", 1) == 1:
        return {}
    if others := [key for key, value in sizes.items() if value != 1]:
        raise InputError(f"parallelism_config_{others[0]} beside dp_replicate_size is not counted")
    return {
        "strategy": "hsdp",
        "shard_size": whole("parallelism_config_dp_shard_size", shard, 2, 1_000_000),
    }


def _fsdp(given: Mapping[str, Any], precision: str) -> Found:
    config = {**keys("accelerate", "fsdp_config"), **given}
    filled = {key: str(value).lower() for key, value in config.items()}
    asked = filled["fsdp_version"]
    version = whole("fsdp_version", int(asked) if asked.isdigit() else 0, 1, 2)
    reshard = "fsdp_sharding_strategy" if version == 1 else "fsdp_reshard_after_forward"
    _counted(given, filled, version, reshard)
    says: dict[str, Any] = {
        "strategy": f"fsdp{version}",
        "reshard_after_forward": filled[reshard] in ("full_shard", "1", "true"),
        "offload": "all" if filled["fsdp_offload_params"] == "true" else "none",
        "wrap": "block+ends" if version == 2 else "block",
    }
    if "fsdp_activation_checkpointing" in given:
        full = filled["fsdp_activation_checkpointing"] == "true"
        says["checkpointing"] = "full" if full else "none"
    if "fsdp_state_dict_type" in given:
        says["save"] = "full" if filled["fsdp_state_dict_type"] == "full_state_dict" else "sharded"
    used = ("fsdp_version", reshard, "fsdp_offload_params", "fsdp_auto_wrap_policy")
    notes = [f"{key} {filled[key]}: Accelerate default" for key in used if key not in given]
    if precision == "no":
        note = (
            "mixed_precision no: weights in the checkpoint's bf16, unless --recipe says otherwise"
        )
        return says, {"recipe": "pure-bf16"}, [*notes, note]
    if precision == "fp16":
        notes.append("fp16 counts like bf16: two bytes in compute, fp32 shards")
    return says | {"recipe": "fsdp2-mixed", "reduce_dtype": "bf16"}, {}, notes


def _counted(
    given: Mapping[str, Any], filled: Mapping[str, str], version: int, reshard: str
) -> None:
    """Raises `InputError` for a value of FSDP's keys that is none, or that is not counted."""
    for key in ("fsdp_offload_params", "fsdp_activation_checkpointing"):
        if filled.get(key, "none") not in ("true", "false", "none"):
            raise InputError(f"{key} must be true or false, not {filled[key][:40]!r}")
    ways = ("full_shard", "1", "shard_grad_op", "2") if version == 1 else ("true", "false")
    for key, allowed in {
        "fsdp_auto_wrap_policy": ("transformer_based_wrap",),
        reshard: ways,
    }.items():
        if filled[key] not in allowed:
            told, counted = given.get(key, "left out"), ", ".join(allowed).upper()
            hybrid = filled[key] in _HYBRID and key == reshard
            near = "; with FSDP2 it is --strategy hsdp" if hybrid else ""
            raise InputError(f"{key} {told} is not counted; counted: {counted}{near}")


def _deepspeed(given: Mapping[str, Any], precision: str, other: Reader) -> Found:
    if path := given.get("deepspeed_config_file"):
        extra = [key for key in given if key.startswith(("zero_", "offload_", "gradient_"))]
        if extra or precision != "no":
            key = [*extra, "mixed_precision"][0]
            raise InputError(f"{key} belongs into {path}, the deepspeed_config_file")
        says, notes = other(str(path))
        return says, {}, notes
    zero: dict[str, Any] = {"stage": given.get("zero_stage", 2)}
    names = ("offload_optimizer", "offload_param")
    devices = {name: given.get(f"{name}_device", "none") for name in names}
    zero |= {name: {"device": device} for name, device in devices.items() if device != "none"}
    steps = given.get("gradient_accumulation_steps", 1)
    config = {"zero_optimization": zero, "gradient_accumulation_steps": steps}
    says, notes = other(config if precision == "no" else config | {precision: {"enabled": True}})
    if "zero_stage" not in given:
        notes = [f"zero_stage {zero['stage']}: Accelerate default", *notes]
    return says, {}, notes
