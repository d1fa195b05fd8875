"""The new core (`memory stacks job house`) answers as the old one, byte for byte and line by line of each instant.

The command line still stands on the old one. Where they differ on purpose, it is said here: the forward
of an FSDP2 layer ends with what it keeps beside its gathered weights; the embedding's backward under
DeepSpeed ZeRO-1 has the gradient that comes in; on one rank ZeRO-2's last gradients belong to the layer
that made them; and a pipeline stage without an embedding adds no gradient of the head twice.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

from calc.estimate import Run
from calc.estimate.walk import Phase
from calc.estimate.whole import _rank
from calc.house import rank
from calc.job import job
from calc.models import load
from calc.sharding import STRATEGIES
from calc.states import OPTIMIZERS, RECIPES
from calc.units import InputError
from tests.test_kept import runs

MODELS = ["llama-3.1-8b", "llama-3.2-3b", "qwen2.5-0.5b", "qwen3-30b-a3b", "gemma-2-2b", "gemma-3-1b-it", "deepseek-v3"]
MODELS += ["mixtral-8x7b-v0.1", "phi-4-mini", "olmo-2-1124-7b", "minimax-m2.5", "glm-4.5-air", "llama-3.3-70b"]
LINES = ("weights", "master", "gradients", "optimizer")
CHOICES: dict[str, tuple[Any, ...]] = {
    "optimizer": tuple(OPTIMIZERS),
    "seq_len": (1, 7, 256, 1000, 4097, 32768, 131072),
    "micro_batch": (1, 2, 3, 8),
    "accumulation": (1, 2, 3, 8),
    "checkpointing": ("full", "selective", "matmuls", "none"),
    "attention": ("sdpa", "eager"),
    "loss": ("full", "chunked"),
    "step": ("fused", "foreach", "for-loop"),
    "reduce_dtype": ("fp32", "bf16"),
    "wrap": ("block", "block+ends"),
    "load": ("cpu", "gpu"),
    "save": ("sharded", "full"),
    "offload": ("none", "optimizer", "all", "nvme"),
    "reshard_after_forward": (True, False),
    "no_sync": (True, False),
    "overlap_comm": (True, False),
    "reduce_bucket_size": (10**6, 10**8),
    "stage3_max_live_parameters": (0, 10**8),
    "stage3_prefetch_bucket_size": (0, 10**7),
    "sub_group_size": (10**7, 10**9),
    "lora_rank": (0, 8, 16),
    "lora_targets": ("all-linear", "q_proj,v_proj"),
    "base_dtype": ("bf16", "fp32", "nf4", "nf4-double"),
    "tp": (1, 2),
    "pp": (1, 2, 4),
    "cp": (1, 2),
    "ep": (1, 2, 4),
    "shard_size": (0, 2, 4),
}


def drawn(seed: int, count: int) -> Iterator[Run]:
    draw = random.Random(seed)
    while count:
        strategy = draw.choice(list(STRATEGIES))
        words = {"model": load(draw.choice(MODELS)), "strategy": strategy}
        words["recipe"] = draw.choice([r for r in RECIPES if strategy in RECIPES[r].strategies])
        words["world_size"] = 1 if strategy == "single" else draw.choice((1, 2, 3, 8, 16, 64, 1024))
        words |= {name: draw.choice(CHOICES[name]) for name in draw.sample(list(CHOICES), draw.choice((1, 2, 3, 6)))}
        with contextlib.suppress(InputError):
            run = Run(**words)
            assert run.trained
            yield run
            count -= 1


def same(run: Run, was: Phase, now: Any) -> bool:
    if was.instant == "fwd_layers" or (run.strategy, was.instant) == ("zero1", "root_bwd"):
        return bool(now.bytes >= was.bytes)
    if (run.strategy, run.ranks, was.instant) == ("zero2", 1, "layers_bwd"):
        return bool(now.bytes >= was.bytes)
    if run.no_sync and run.pp > 1 and was.instant == "root_bwd":
        return bool(now.bytes <= was.bytes)
    return bool(was.bytes == now.bytes)


def differs(run: Run) -> str:
    found = job(**{name: getattr(run, name) for name in run.__dataclass_fields__})
    for (stage, part), (again, slice_) in zip(run.parts(), found.parts(), strict=True):
        (states, phases, instants), new = _rank(run, stage, part), rank(found, again, slice_)
        if any(
            getattr(states, line) != getattr(new.states, line)
            for line in ("weights", "master", "gradients", "optimizer")
        ):
            return f"states {states} {new.states}"
        if phases is None or new.phases is None:
            return "" if phases is new.phases else "phases"
        pairs = [
            *zip(instants, new.instants, strict=True),
            *((phases[n], new.phases[n]) for n in ("load", "step", "save")),
        ]
        for was, now in pairs:
            if was.instant != now.instant or not same(run, was, now):
                return f"{was.instant} {was.bytes:,} {now.bytes:,}"
    return ""


def test_the_new_core_answers_as_the_old_one() -> None:
    asked = [run for run in dict(runs()).values() if not (run.strategy == "single" and run.gradient_as_bucket_view)]
    for run in (*asked, *drawn(1, 2000)):
        assert not differs(run), (run.model.name, run)
