"""Trains a tiny Llama for one step with a published script, on gloo ranks, and counts what each rank then holds.

`python -m tests.oracle.config_ranks CONFIG WORLD_SIZE SCRIPT:DTYPE…` prints the bytes of rank 0 for each as JSON.
"""

from __future__ import annotations

import json
import runpy
import socket
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from torch.distributed import device_mesh

from tests.oracle.measure import size_of, states_of, weights_of


def held(script: str, dtype: str, config: transformers.PretrainedConfig) -> int:
    """Weights, gradients and optimizer states after one step, in bytes: the tensors' storages."""
    code = runpy.run_path(script)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model = code["shard"](model)
    optimizer = code["optimizer"](model) if "optimizer" in code else torch.optim.AdamW(model.parameters())
    tokens = torch.arange(8).reshape(1, 8)
    model(input_ids=tokens, labels=tokens).loss.backward()
    gradients = size_of([p.grad for p in model.parameters()])
    optimizer.step()
    states = states_of([optimizer])
    states.pop("state.step")
    return gradients + weights_of(model) + sum(states.values())


def run_rank(rank: int, world_size: int, port: int, config: str, scripts: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # text C's snippet asks for it
    make = device_mesh.init_device_mesh
    device_mesh.init_device_mesh = lambda _, *shape, **names: make("cpu", *shape, **names)  # HSDP's names cuda
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    loaded = transformers.AutoConfig.for_model(**json.loads(Path(config).read_text()), use_cache=False)
    found = {}
    for script in scripts:
        path, _, dtype = script.rpartition(":")
        found[script] = held(path, dtype, loaded)
    if rank == 0:
        print("\n" + json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = int(sys.argv[2])
    mp.spawn(run_rank, (size, port, sys.argv[1], sys.argv[3:]), nprocs=size)
