"""The keys that each library's own loader knows, read from the installed libraries.

`python -m tests.oracle.config_keys` rewrites `calc/data/config-keys.json`, which the tests without
any of these libraries check the config files against.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
FILE = Path(__file__).parents[2] / "calc" / "data" / "config-keys.json"


def record(
    library: str, section: str, keys: Iterable[str], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One record: the keys of one section in that library's version, with the defaults that are plain values."""
    plain = {key: value for key, value in (defaults or {}).items() if isinstance(value, bool | int | float | str)}
    return {
        "library": library,
        "version": version(library).partition("+")[0],
        "section": section,
        "keys": sorted(set(keys)),
        "defaults": dict(sorted(plain.items())),
    }


class Asked(dict[str, Any]):
    """A mapping that remembers which keys it was asked for: DeepSpeed keeps no list of its top-level keys."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def keys(self) -> Any:  # "key in config.keys()" asks as well
        return self

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __copy__(self) -> Asked:
        return self


def pydantic(library: str, section: str, model: Any) -> dict[str, Any]:
    fields = model.model_fields
    names = {name: field.alias or name for name, field in fields.items()}
    keys = {*fields, *names.values()}
    return record(library, section, keys, {names[name]: field.default for name, field in fields.items()})


def deepspeed() -> Iterable[dict[str, Any]]:
    from deepspeed.runtime.config import _REMOVED_TOP_LEVEL_CONFIG_KEYS, DeepSpeedConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    config = Asked({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, "zero_optimization": {}})
    DeepSpeedConfig(config)
    yield record("deepspeed", "", config.asked - _REMOVED_TOP_LEVEL_CONFIG_KEYS.keys())
    yield pydantic("deepspeed", "zero_optimization", DeepSpeedZeroConfig)
    yield pydantic("deepspeed", "zero_optimization.offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig)
    yield pydantic("deepspeed", "zero_optimization.offload_param", DeepSpeedZeroOffloadParamConfig)
    yield pydantic("deepspeed", "bf16", DeepSpeedBF16Config)
    yield pydantic("deepspeed", "fp16", DeepSpeedFP16Config)


def accelerate() -> Iterable[dict[str, Any]]:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    launch = {action.dest: action.default for action in launch_command_parser()._actions}
    deepspeed = {
        *(key for key in launch if key.startswith("deepspeed_")),
        *(
            "zero_stage",
            "zero3_init_flag",
            "zero3_save_16bit_model",
            "offload_optimizer_device",
            "offload_param_device",
        ),
        *("offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping"),
    }
    assert deepspeed <= launch.keys()
    fields = {field.name: field.default for field in dataclasses.fields(ClusterConfig)}
    yield record("accelerate", "", fields, fields)
    for section, keys in (
        ("fsdp_config", {key for key in launch if key.startswith("fsdp_")}),
        ("deepspeed_config", deepspeed),
        ("parallelism_config", {key for key in launch if key.startswith("parallelism_config_")}),
    ):
        yield record("accelerate", section, keys, {key: launch[key] for key in keys})


def parameters(library: str, function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters
    return record(library, function.__name__, found, {name: value.default for name, value in found.items()})


def python_calls() -> Iterable[dict[str, Any]]:
    import peft
    import transformers
    from torch.distributed import fsdp
    from torch.nn.parallel import DistributedDataParallel
    from transformers.training_args import OptimizerNames

    for call in (
        "FullyShardedDataParallel",
        "MixedPrecision",
        "MixedPrecisionPolicy",
        "CPUOffloadPolicy",
        "fully_shard",
    ):
        yield parameters("torch", getattr(fsdp, call))
    yield record("torch", "ShardingStrategy", (strategy.name for strategy in fsdp.ShardingStrategy))
    yield parameters("torch", DistributedDataParallel)
    yield parameters("transformers", transformers.TrainingArguments)
    yield record("transformers", "optim", (name.value for name in OptimizerNames))
    yield parameters("transformers", transformers.BitsAndBytesConfig)
    yield parameters("peft", peft.LoraConfig)


def axolotl() -> Iterable[dict[str, Any]]:
    import transformers
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from axolotl.utils.schemas.enums import CustomSupportedOptimizers
    from axolotl.utils.schemas.fsdp import FSDPConfig

    yield record("axolotl", "", AxolotlInputConfig.model_fields)
    yield record("axolotl", "fsdp_config", {*FSDPConfig.model_fields, "version"})
    # Axolotl hands these to Transformers' class as they are.
    owner = {"library": "axolotl", "version": version("axolotl"), "section": "bnb_config_kwargs"}
    yield parameters("transformers", transformers.BitsAndBytesConfig) | owner
    yield record("axolotl", "optimizer", (name.value for name in CustomSupportedOptimizers))


def llamafactory() -> Iterable[dict[str, Any]]:
    from llamafactory.hparams import parser

    classes = parser._TRAIN_ARGS
    yield record("llamafactory", "", (field.name for kind in classes for field in dataclasses.fields(kind)))


def recorded() -> list[dict[str, Any]]:
    """Every record, in the order of the file."""
    return [*deepspeed(), *accelerate(), *python_calls(), *axolotl(), *llamafactory()]


def text(records: Iterable[Mapping[str, Any]]) -> str:
    """The records as the file holds them: one a line, so that a new version shows as changed lines."""
    return "[\n" + ",\n".join(" " + json.dumps(line) for line in records) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text(recorded()), encoding="utf-8")
