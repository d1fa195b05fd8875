"""Hands config files to each framework's own loader, and prints what it understood as JSON.

`python -m tests.oracle.config_loaders FORMAT FILE…`, one framework in one process: they do not share one well.
Each function returns the values that its library read, so that a test can compare them with the run.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}

#: What an empty Llama of the right hidden size says to Transformers, which fills `auto` from it.
HIDDEN = {"8b": 4096, "70b": 8192, "3b": 2048}


def one_rank(world_size: int = 8) -> None:
    """This process as rank 0 of `world_size`, with collectives that do nothing."""
    import deepspeed
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        deepspeed.init_distributed(dist_backend="fake", verbose=False)


def deepspeed(path: Path) -> dict[str, Any]:
    from deepspeed.runtime.config import DeepSpeedConfig

    one_rank()
    config = json.loads(path.read_text())
    if config["bf16"]["enabled"] == "auto":
        config = _filled(path)
    found = DeepSpeedConfig(config)
    zero = found.zero_config
    return {
        "stage": int(zero.stage),
        "bf16": found.bfloat16_config.enabled,
        "micro_batch": found.train_micro_batch_size_per_gpu,
        "accumulation": found.gradient_accumulation_steps,
        "train_batch": found.train_batch_size,
        "reduce_bucket_size": zero.reduce_bucket_size,
        "prefetch": zero.prefetch_bucket_size,
        "live": zero.max_live_parameters,
        "overlap_comm": zero.overlap_comm,
        "offload_optimizer": bool(zero.offload_optimizer and zero.offload_optimizer.device == "cpu"),
        "offload_param": bool(zero.offload_param and zero.offload_param.device == "cpu"),
        "optimizer": found.optimizer_name,
    }


def _filled(path: Path) -> dict[str, Any]:
    """The config once Transformers has filled in what `auto` leaves to it."""
    from types import SimpleNamespace

    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    args = TrainingArguments(output_dir="/tmp/out", use_cpu=True, per_device_train_batch_size=1, bf16=True)
    found = HfTrainerDeepSpeedConfig(json.loads(path.read_text()))
    found.trainer_config_process(args)
    hidden = HIDDEN[path.parent.name.partition("-")[0]]
    found.trainer_config_finalize(args, SimpleNamespace(config=SimpleNamespace(hidden_size=hidden)), 100)
    config: dict[str, Any] = found.config
    # Outside of a launch the Trainer sees one process.
    config.pop("train_batch_size", None)
    return config


def accelerate(path: Path) -> dict[str, Any]:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    load_config_from_file(str(path))
    os.chdir(path.parent)
    given = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, defaults, told = _validate_launch_command(given)
    found: dict[str, Any] = {"processes": args.num_processes, "machines": args.num_machines}
    found["precision"] = args.mixed_precision
    if args.use_deepspeed:
        fields = [*defaults.deepspeed_config, *["mixed_precision"] * told]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, env = prepare_deepspeed_cmd_env(args)
        os.environ |= {key: value for key, value in env.items() if key.startswith("ACCELERATE_")}
        plugin = DeepSpeedPlugin()
        return found | {"kind": "DEEPSPEED", "stage": plugin.zero_stage, "config": plugin.deepspeed_config}
    if not args.use_fsdp:
        return found | {"kind": "MULTI_GPU" if args.multi_gpu else "NO"}
    env = prepare_multi_gpu_env(args)
    os.environ |= {key: value for key, value in env.items() if key.startswith(("FSDP_", "ACCELERATE_"))}
    # Both ask for a GPU as soon as they are made; they are read above.
    os.environ |= {"FSDP_SYNC_MODULE_STATES": "false", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}
    plugin = FullyShardedDataParallelPlugin()
    if args.mixed_precision != "no":
        plugin.set_mixed_precision(args.mixed_precision)
    policy = plugin.mixed_precision_policy
    return found | {
        "kind": "FSDP",
        "version": plugin.fsdp_version,
        "reshard": str(plugin.sharding_strategy or plugin.reshard_after_forward).rpartition(".")[2],
        "offload": type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
        or getattr(plugin.cpu_offload, "offload_params", False),
        "wrap": plugin.auto_wrap_policy.__name__,
        "checkpointing": plugin.activation_checkpointing,
        "reduce": str(policy.reduce_dtype) if policy else None,
        "state_dict": plugin.state_dict_type.name,
        "groups": [args.parallelism_config_dp_replicate_size, args.parallelism_config_dp_shard_size],
    }


def trainer(path: Path) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, TrainingArguments  # noqa: F401 (loads all that the file imports)

    class Arguments(TrainingArguments):
        """The real ones, made on a machine without GPUs."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings, use_cpu=True)

    os.chdir(path.parent)
    transformers = sys.modules["transformers"]
    transformers.TrainingArguments = Arguments  # type: ignore[attr-defined]
    args = runpy.run_path(str(path))["args"]
    transformers.TrainingArguments = TrainingArguments  # type: ignore[attr-defined]
    found = {"optim": args.optim.value, "bf16": args.bf16, "micro_batch": args.per_device_train_batch_size}
    found |= {"accumulation": args.gradient_accumulation_steps}
    if args.fsdp:
        found |= {key: args.fsdp_plugin_args[key] for key in ("fsdp_version", "reshard_after_forward")}
        found["checkpointing"] = args.fsdp_plugin_args["activation_checkpointing"]
    else:
        found["checkpointing"] = args.activation_checkpointing
    if args.deepspeed:
        found["stage"] = args.hf_deepspeed_config.config["zero_optimization"]["stage"]
    return found


def axolotl(path: Path) -> dict[str, Any]:
    import yaml
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    os.chdir(path.parent)
    capabilities = {"bf16": True, "fp8": True, "n_gpu": 8, "n_node": 1, "compute_capability": "sm_90"}
    found = validate_config(DictDefault(yaml.safe_load(path.read_text())), capabilities, {"torch_version": "2.13.0"})
    keys = ("adapter", "load_in_4bit", "lora_r", "lora_target_linear", "sequence_len", "micro_batch_size", "optimizer")
    keys += ("gradient_accumulation_steps", "bf16", "gradient_checkpointing", "fsdp_version", "deepspeed")
    return {key: found[key] for key in keys} | {"fsdp_config": dict(found.fsdp_config or {})}


def llamafactory(path: Path) -> dict[str, Any]:
    import yaml

    os.chdir(path.parent)
    given = yaml.safe_load(path.read_text())
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29533",
    }
    if "deepspeed" in given:
        os.environ["FORCE_TORCHRUN"] = "1"
    from llamafactory.hparams import get_train_args

    model, data, args, tuning, _ = get_train_args(given | {"use_cpu": True, "output_dir": tempfile.mkdtemp()})
    return {
        "type": tuning.finetuning_type,
        "rank": tuning.lora_rank,
        "target": tuning.lora_target,
        "pure_bf16": tuning.pure_bf16,
        "bf16": args.bf16,
        "optim": args.optim.value,
        "bits": model.quantization_bit,
        "cutoff_len": data.cutoff_len,
        "micro_batch": args.per_device_train_batch_size,
        "deepspeed": bool(args.deepspeed),
        "dtype": str(model.compute_dtype),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    load = globals()[sys.argv[1]]
    answers = {}
    for name in sys.argv[2:]:
        try:
            answers[name] = load(Path(name).resolve())
        except Exception as error:  # the test wants to see whatever the library says
            answers[name] = {"refused": f"{type(error).__name__}: {error}"}
    print("\n" + json.dumps(answers, default=str))
