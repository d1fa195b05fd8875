"""What the step of each optimizer allocates beside weights, gradients and states: its second step.

Real tensors on the CPU; a dispatch mode counts the storages that operations make while they live.
Tensors without dimensions (norms, step counts) are left out. DTensors are on fake ranks. torchao's
step is compiled, so the buffers of the code that Inductor writes are counted; a concatenation of
bytes, which only the CPU keeps apart, is none of them. `python -m tests.oracle.step_temporaries`
rewrites `recorded/step-temporaries.json`; with the names of groups it prints them alone.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
import weakref
from collections.abc import Iterator
from itertools import groupby
from math import prod
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torchao
import transformers
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calc.optimizers import is_muon
from tests.oracle.record import RECORDED
from tests.oracle.stepped import Step, cases

BF16, FP32 = torch.bfloat16, torch.float32
LIBRARIES = (torch, transformers, torchao)
VERSIONS = {library.__name__: str(library.__version__) for library in LIBRARIES}
#: A buffer of compiled code: its name, sizes and dtype.
MADE = re.compile(r"(buf\d+) = empty_strided_cpu\(\(([\d, ]*)\), .*torch\.(\w+)\)")
PLAIN = (torch.Tensor, torch.nn.Parameter)
WORDS: dict[str, dict[str, bool]] = {"fused": {"fused": True}, "": {}}
WORDS |= {"foreach": {"foreach": True}, "for-loop": {"foreach": False}}


class Live(TorchDispatchMode):
    """Bytes of the storages that were made since it began and still live: now, and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.older = dict[int, Any](), dict[int, Any]()
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # the subclass first; its own operations come back here
        for tensor in tensors_of((args, kwargs)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.made and storage._cdata not in self.older:
                self.remember(self.older, storage)
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_of(out):
            storage = tensor.untyped_storage()
            known = storage._cdata in self.made or storage._cdata in self.older
            if tensor.dim() and not known:
                self.now += storage.nbytes()
                self.remember(self.made, storage, storage.nbytes())
        self.most = max(self.most, self.now)
        return out

    def remember(self, where: dict[int, Any], storage: Any, size: int = 0) -> None:
        key = storage._cdata

        def forget(_: Any) -> None:
            self.now -= size
            where.pop(key, None)

        where[key] = weakref.ref(storage, forget)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors under `value`."""
    return (leaf for leaf in tree_leaves(value) if type(leaf) in PLAIN)


def optimizers(case: Step, params: list[tuple[torch.nn.Parameter, str]]) -> list[Any]:
    """The optimizers of one step: Muon has a second one for what it does not take."""
    every, words = [param for param, _ in params], WORDS[case.step]
    trainer = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
    kinds = {
        "adamw": (torch.optim.AdamW, words),
        "adamw-amsgrad": (torch.optim.AdamW, words | {"amsgrad": True}),
        "sgd": (torch.optim.SGD, words | {"lr": 1e-3}),
        "sgd-momentum": (torch.optim.SGD, words | {"lr": 1e-3, "momentum": 0.9}),
        "adafactor": (torch.optim.Adafactor, words),
        "adafactor-trainer": (transformers.Adafactor, trainer),
        "adamw8bit-torchao": (torchao.optim.AdamW8bit, {}),
        "adamw4bit-torchao": (torchao.optim.AdamW4bit, {}),
    }
    if case.optimizer in kinds:
        kind, settings = kinds[case.optimizer]
        return [kind(every, **settings)]
    taken = [param for param, kind in params if is_muon(tuple(param.shape), kind)]
    rest = [param for param, kind in params if not is_muon(tuple(param.shape), kind)]
    made = [torch.optim.Muon(taken)] if taken else []
    return made + ([torch.optim.AdamW(rest, **words)] if rest else [])


def parameters(case: Step) -> Iterator[tuple[torch.nn.Parameter, str]]:
    """The tensors of the case with their kinds, layer by layer; divided where it says so."""
    torch.manual_seed(0)
    dtype = BF16 if case.dtype == "bf16" else FP32
    mesh = init_device_mesh("cpu", (case.ranks,)) if case.ranks > 1 else None
    for count, layer in groupby(case.pieces, key=lambda piece: piece[2]):
        for shape, kind, _ in list(layer) * count:
            whole = torch.randn(shape).to(dtype)
            mine = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None) if mesh else whole
            yield torch.nn.Parameter(mine), kind


def measure(case: Step) -> int:
    """Bytes at the worst instant of the second step."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if case.ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.ranks)
    params = list(parameters(case))
    steps = optimizers(case, params)
    for param, _ in params:
        param.grad = torch.ones_like(param)
    for optimizer in steps:
        if case.group == "compiled":
            _, codes = run_and_get_code(optimizer.step)
            return max(map(buffers, codes))
        optimizer.step()
    gc.collect()
    live = Live()
    with live:
        for optimizer in steps:
            optimizer.step()
    return live.most


def buffers(code: str) -> int:
    """Bytes of the buffers that compiled code makes itself, at its worst line."""
    live, most = dict[str, int](), 0
    for line in code.splitlines():
        if made := MADE.search(line):
            sizes = [int(size) for size in made[2].split(",") if size.strip()]
            live[made[1]] = prod(sizes) * getattr(torch, made[3]).itemsize
        elif moved := re.search(r"(buf\d+) = (buf\d+); del \2", line):
            live[moved[1]] = live.pop(moved[2])
        elif gone := re.search(r"^ *del (buf\d+)$", line):
            live.pop(gone[1], None)
        most = max(most, sum(live.values()))
    return most


def measured(*groups: str) -> dict[str, Any]:
    """Versions, and the bytes of each case of the groups."""
    gc.freeze()  # what the imports made need not be looked at again after each case
    found: dict[str, Any] = {"versions": VERSIONS | {"date": time.strftime("%Y-%m-%d")}}
    for case in cases():
        if case.group in groups:
            found.setdefault(case.group, {})[str(case)] = measure(case)
    return found


def record() -> None:
    """Rewrite the record, a line a case."""
    found = measured("measured", "divided", "compiled")
    rows = [f' "versions": {json.dumps(found.pop("versions"))}']
    for group, by_case in found.items():
        lines = ",\n".join(f"  {json.dumps(case)}: {size}" for case, size in by_case.items())
        rows.append(f' "{group}": {{\n{lines}\n }}')
    text = ",\n".join(rows)
    (RECORDED / "step-temporaries.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measured(*sys.argv[1:])))
    else:
        record()
