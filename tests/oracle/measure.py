"""What a framework really allocates: one training step on gloo ranks, every storage counted once.

Real tensors on the CPU. Bytes are those of the tensors' storages, so padding counts, and views of one
buffer count once. `python -m tests.oracle.measure OUT` reads cases from standard input as JSON and
writes what each rank held to OUT.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # torchao would compile each optimizer
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import bitsandbytes
import deepspeed
import peft
import torch
import torch.distributed as dist
import torchao.optim
import transformers
from peft.utils.other import fsdp_auto_wrap_policy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from tests.oracle.cases import CONFIGS, LORA_RANK, PERSIST, SIZES, Case

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles an operator; gloo will do
#: Cases that one group of processes measures; the frameworks never give back all of an earlier model.
PER_GROUP = 50
BF16, FP32 = torch.bfloat16, torch.float32


def storages(value: Any) -> dict[int, int]:
    """Address → bytes of every storage under `value`: tensors, subclasses, mappings, sequences."""
    if isinstance(value, torch.Tensor):
        if is_traceable_wrapper_subclass(value):  # DTensor, torchao's quantised states
            names, _ = value.__tensor_flatten__()
            return storages([getattr(value, name) for name in names])
        storage = value.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()} if storage.nbytes() else {}
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, bitsandbytes.functional.QuantState):
        value = vars(value).values()
    elif not isinstance(value, list | tuple):
        return {}
    return {at: size for item in value for at, size in storages(item).items()}


def size_of(value: Any) -> int:
    """Bytes of the distinct storages under `value`."""
    return sum(storages(value).values())


def states_of(optimizers: Iterable[Any]) -> dict[str, int]:
    """Bytes of the optimizers' states by name; a table shared by all tensors counts once."""
    by_name: dict[str, list[Any]] = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                by_name.setdefault(name, []).append(value)
    return {f"state.{name}": size for name, value in by_name.items() if (size := size_of(value))}


def build_optimizers(name: str, model: torch.nn.Module, make: Callable[..., Any] | None = None) -> list[Any]:
    """The optimizers of one step; `make` wraps each, as ZeroRedundancyOptimizer does."""
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()  # one per process: it would remember an earlier case's embedding
    params = [p for p in model.parameters() if p.requires_grad]
    make = make or (lambda params, kind, **settings: kind(params, **settings))
    match name:
        case "muon":
            embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
            matrices = [p for p in params if p.ndim == 2 and id(p) not in embeddings]
            rest = [p for p in params if p.ndim != 2 or id(p) in embeddings]
            return [make(matrices, torch.optim.Muon), make(rest, torch.optim.AdamW)]
        case "adamw8bit-trainer":
            folder = tempfile.gettempdir()
            arguments = transformers.TrainingArguments(output_dir=folder, optim="adamw_bnb_8bit", use_cpu=True)
            kind, settings = transformers.Trainer.get_optimizer_cls_and_kwargs(arguments)
            for module in model.modules():  # as Trainer.create_optimizer does
                if isinstance(module, torch.nn.Embedding):
                    manager.register_module_override(module, "weight", {"optim_bits": 32})
            return [make(params, kind, **settings)]
    kind, settings = {
        "adamw": (torch.optim.AdamW, {}),
        "adamw-amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
        "sgd": (torch.optim.SGD, {"lr": 1e-3}),
        "sgd-momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
        "adafactor": (torch.optim.Adafactor, {}),
        "adafactor-trainer": (transformers.Adafactor, {"lr": 1e-3, "scale_parameter": False, "relative_step": False}),
        "lion": (bitsandbytes.optim.Lion, {}),
        "lion8bit": (bitsandbytes.optim.Lion8bit, {}),
        "adamw32bit": (bitsandbytes.optim.AdamW32bit, {}),
        "adamw8bit": (bitsandbytes.optim.AdamW8bit, {}),
        "paged-adamw8bit": (bitsandbytes.optim.PagedAdamW8bit, {}),
        "adamw8bit-torchao": (torchao.optim.AdamW8bit, {}),
        "adamw4bit-torchao": (torchao.optim.AdamW4bit, {}),
    }[name]
    return [make(params, kind, **settings)]


def llama(case: Case) -> torch.nn.Module:
    """Transformers' own Llama of that configuration; `lora` and `qlora` with peft's adapters on a frozen base."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**CONFIGS[case.model], attn_implementation="sdpa", use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=BF16 if case.dtype == "bf16" else FP32)
    if case.model == "qlora":
        for layer in model.model.layers:
            for parent in (layer.self_attn, layer.mlp):
                for name, linear in list(parent.named_children()):
                    if isinstance(linear, torch.nn.Linear):
                        setattr(parent, name, packed(linear))
    if case.is_adapted:
        adapters = peft.LoraConfig(r=LORA_RANK, target_modules="all-linear")
        model = peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)
    return model


def packed(linear: torch.nn.Linear) -> torch.nn.Module:
    """The layer in double-quantised NF4, stored as bf16 so that FSDP can divide it."""
    settings = {"quant_type": "nf4", "compress_statistics": True, "quant_storage": BF16}
    new = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, False, BF16, **settings)
    new.weight = bitsandbytes.nn.Params4bit(linear.weight.data, False, module=new, **settings)._quantize("cpu")
    new.quant_state = new.weight.quant_state
    return new


def weights_of(model: torch.nn.Module) -> int:
    """Bytes of the parameters, whole or a shard of each, and of the scales and code books of packed ones."""
    states = [getattr(module, "quant_state", None) for module in model.modules()]
    return size_of([[p.data, getattr(p, "ds_tensor", None)] for p in model.parameters()] + states)


def backward(model: torch.nn.Module, case: Case, step: Callable[..., Any] = torch.Tensor.backward) -> None:
    """Forward and backward over eight tokens."""
    tokens = torch.arange(8).reshape(1, 8)
    autocast = case.dtype == "mixed" and case.stack in ("single", "ddp", "ddp-view", "zero-redundancy")
    with torch.autocast("cpu", BF16) if autocast else contextlib.nullcontext():
        loss = model(input_ids=tokens, labels=tokens).loss
    step(loss)


def divided(case: Case) -> torch.nn.Module:
    """The model of the case under a stack that PyTorch itself provides."""
    model = llama(case)
    reduced = BF16 if case.dtype == "mixed-reduce-bf16" else FP32
    match case.stack:
        case "ddp" | "ddp-view" | "zero-redundancy":
            return DistributedDataParallel(model, gradient_as_bucket_view=case.stack == "ddp-view")
        case "fsdp1" | "fsdp1-grad-op":
            full = case.stack == "fsdp1"
            mixed = MixedPrecision(param_dtype=BF16, reduce_dtype=reduced) if case.is_mixed else None
            return FullyShardedDataParallel(
                model,
                sharding_strategy=ShardingStrategy.FULL_SHARD if full else ShardingStrategy.SHARD_GRAD_OP,
                mixed_precision=mixed,
                auto_wrap_policy=fsdp_auto_wrap_policy(model)
                if case.is_adapted
                else ModuleWrapPolicy({LlamaDecoderLayer}),
                use_orig_params=True,
                device_id=torch.device("cpu"),
            )
        case "fsdp2" | "fsdp2-keep" | "hsdp":
            shape = (2, case.world_size // 2) if case.stack == "hsdp" else (case.world_size,)
            shard = partial(
                fully_shard,
                mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :]),
                reshard_after_forward=case.stack != "fsdp2-keep",
                mp_policy=MixedPrecisionPolicy(BF16, reduced) if case.is_mixed else MixedPrecisionPolicy(),
            )
            for layer in [module for module in model.modules() if isinstance(module, LlamaDecoderLayer)]:
                shard(layer)
            return shard(model)
    return model


def measure_torch(case: Case) -> dict[str, int]:
    """One step of a stack that PyTorch itself provides."""
    model = divided(case)
    dealt = partial(ZeroRedundancyOptimizer) if case.stack == "zero-redundancy" else None
    optimizers = build_optimizers(case.optimizer, model, dealt)
    backward(model, case)
    lines = {"gradients": size_of([p.grad for p in model.parameters()])}
    if case.stack in ("ddp", "zero-redundancy"):
        sizes = str(model._get_ddp_logging_data()["bucket_sizes"])
        lines["bucket"] = sum(map(int, sizes.split(",")))
    for optimizer in optimizers:
        optimizer.step()
    lines["weights"] = weights_of(model)
    return lines | states_of(getattr(optimizer, "optim", optimizer) for optimizer in optimizers)


def measure_deepspeed(case: Case) -> dict[str, int]:
    """Two micro-batches and one step of a DeepSpeed engine.

    `gradients.first` is what is kept after the first micro-batch, `gradients` after the last, and
    `gradients.step` the fp32 copy that the optimizer is handed. `-persist` keeps small tensors whole.
    """
    stage = int(case.stack.removeprefix("deepspeed")[0])
    model = llama(case)
    optimizer = build_optimizers(case.optimizer, model)[0]
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": case.dtype == "bf16"},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 500_000,
            "stage3_prefetch_bucket_size": 100_000,
            "stage3_param_persistence_threshold": PERSIST if case.stack.endswith("-persist") else 0,
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    zero, params, lines = engine.optimizer, list(model.parameters()), {}
    for line in ("gradients.first", "gradients"):
        backward(engine, case, engine.backward)
        held = [zero.averaged_gradients, zero.all_grad_tensors] if stage < 3 else zero.grad_partitions_flat_buffer
        lines[line] = size_of([held, [p.grad for p in params], [getattr(p, "grad_accum", None) for p in params]])
        if line == "gradients.first":
            engine.step()  # not a boundary: counts the micro-batch
    step = optimizer.step

    def observed(*args: Any, **kwargs: Any) -> Any:
        lines["gradients.step"] = size_of([p.grad for group in optimizer.param_groups for p in group["params"]])
        return step(*args, **kwargs)

    optimizer.step = observed
    engine.step()
    lines["weights"] = weights_of(model)
    masters = zero.single_partition_of_fp32_groups if stage < 3 else zero.fp32_partitioned_groups_flat
    lines["master"] = size_of(masters)
    engine.destroy()
    return lines | states_of([optimizer])


def measure_sizes(case: Case) -> dict[str, Any]:
    """Optimizer state, or NF4 bytes, of each lone tensor; and of the tables that all of them share."""
    dtype = BF16 if case.dtype == "bf16" else FP32
    model = torch.nn.Module()
    model.tensors = torch.nn.ParameterList(torch.ones(shape, dtype=dtype) for shape in SIZES)
    if case.optimizer.startswith("nf4"):
        settings = {"quant_type": "nf4", "compress_statistics": case.optimizer == "nf4-double"}
        states = [bitsandbytes.nn.Params4bit(p.data, False, **settings)._quantize("cpu") for p in model.tensors]
        states = [{"data": p.data, **vars(p.quant_state)} for p in states]
        shared = []
    else:
        optimizers = build_optimizers(case.optimizer, model)
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        for optimizer in optimizers:
            optimizer.step()
        found = {p: o.state[p] for o in optimizers for group in o.param_groups for p in group["params"]}
        states = [
            {k: v for k, v in found[p].items() if k not in ("step", "RMS") and k[:4] != "qmap"}
            for p in model.parameters()
        ]
        shared = [{k: v for k, v in state.items() if k.startswith("qmap")} for state in found.values()]
    return {"by_tensor": [size_of(state) for state in states], "shared": size_of(shared)}


def measure(case: Case) -> dict[str, Any]:
    """What this rank holds, or the first words of the error that refuses the combination."""
    try:
        if case.model == "sizes":
            return measure_sizes(case)
        return measure_deepspeed(case) if case.stack.startswith("deepspeed") else measure_torch(case)
    except Exception as error:  # the refusal is the measurement
        if "ORACLE_TRACE" in os.environ:
            raise
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:72].strip()}"}
    finally:
        gc.collect()


def run_rank(rank: int, world_size: int, cases: list[Case], out: str, port: int) -> None:
    """Measure the cases as one rank of a gloo group; rank 0 writes what each found, a line a case."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    deepspeed.init_distributed("gloo", verbose=False)
    for case in cases:
        ranks: list[Any] = [None] * world_size
        dist.all_gather_object(ranks, measure(case))
        if rank == 0:
            failed = [found for found in ranks if "error" in found]
            lines = dict.fromkeys(name for found in ranks for name in found)
            merged = {name: [found.get(name, 0) for found in ranks] for name in lines}
            merged = {name: on[0] if on == on[:1] * world_size else on for name, on in merged.items()}
            with Path(out).open("a") as file:
                print(json.dumps([str(case), failed[0] if failed else merged]), file=file)
    dist.destroy_process_group()


def main(out: str) -> None:
    """Run the cases of standard input, in groups of ranks forked from here: one import for all."""
    names = ("torch", "deepspeed", "bitsandbytes", "torchao", "transformers", "peft")
    versions = {name: version(name) for name in names}
    versions |= {"python": platform.python_version(), "machine": platform.machine()}
    Path(out).write_text(json.dumps(versions) + "\n")
    cases = sorted(Case(**record) for record in json.load(sys.stdin))
    gc.freeze()  # what the imports made need not be looked at again after each case
    for world_size, group in groupby(cases, key=lambda case: case.world_size):
        mine = list(group)
        for start in range(0, len(mine), PER_GROUP):
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
            torch.multiprocessing.start_processes(
                run_rank,
                (world_size, mine[start : start + PER_GROUP], out, port),
                nprocs=world_size,
                start_method="fork",
            )


if __name__ == "__main__":
    main(sys.argv[1])
