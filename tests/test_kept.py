"""What the ledger says of some hundred runs is kept, so that whatever moves a byte shows as a difference.

Laws and measurements say what is right; this says what changed, and where. `python -m tests.test_kept` (`make golden`)
rewrites `tests/kept-runs.txt`: of each run the states, the one line, every phase and instant, what the host holds, what
is sent, and each line of the peak, in bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from calc.communication import collectives
from calc.estimate import estimate
from calc.job import Job
from calc.models import known, load
from calc.optimizers import OPTIMIZERS
from calc.precision import RECIPES
from calc.units import InputError

KEPT = Path(__file__).with_name("kept-runs.txt")
#: One model of each architecture, the first that is listed.
MODELS = {record["config"]["model_type"]: record["name"] for record in reversed(known())}.values()
PAIRS = [(strategy, name) for name, recipe in RECIPES.items() for strategy in recipe.strategies]
COMMON = [("single", "autocast"), ("ddp", "pure-bf16"), ("zero3", "zero"), ("fsdp2", "fsdp2-mixed")]
MOST = [
    *COMMON,
    ("zero1", "pure-bf16"),
    ("zero1", "zero"),
    ("zero2", "zero"),
    ("fsdp1", "fsdp2-mixed"),
    ("hsdp", "fp32"),
]
SETTINGS: tuple[dict[str, Any], ...] = (
    {"checkpointing": "none"}, {"checkpointing": "selective"}, {"checkpointing": "none", "attention": "eager"},
    {"attention": "eager"}, {"loss": "chunked"}, {"step": "foreach"}, {"step": "for-loop"}, {"seq_len": 8192},
    {"micro_batch": 3, "seq_len": 100}, {"accumulation": 4}, {"accumulation": 4, "no_sync": True},
    {"accumulation": 4, "overlap_comm": True}, {"overlap_comm": True}, {"reduce_dtype": "bf16"},
    {"wrap": "block+ends"}, {"load": "gpu"}, {"save": "full"}, {"load": "gpu", "save": "full", "world_size": 2},
    {"offload": "optimizer"}, {"offload": "all"}, {"offload": "nvme"}, {"offload": "all", "accumulation": 2},
    {"reshard_after_forward": False}, {"gradient_as_bucket_view": True}, {"reduce_bucket_size": 10**7},
    {"stage3_max_live_parameters": 0, "stage3_prefetch_bucket_size": 0}, {"sub_group_size": 10**8},
    {"world_size": 3}, {"world_size": 1024}, {"tp": 2, "pp": 2}, {"pp": 4, "save": "full"}, {"cp": 2}, {"ep": 4},
    {"ep": 8, "tp": 2, "world_size": 16}, {"shard_size": 2}, {"lora_rank": 16}, {"lora_rank": 16, "base_dtype": "nf4"},
    {"lora_rank": 8, "base_dtype": "fp32", "checkpointing": "none"}, {"lora_rank": 8, "lora_targets": "q_proj,v_proj"},
    {"lora_rank": 16, "base_dtype": "nf4-double", "checkpointing": "none"}, {"lora_rank": 4, "offload": "all"},
    *({"optimizer": name} for name in OPTIMIZERS),
)  # fmt: skip

#: Also asked of every architecture.
EACH: tuple[dict[str, Any], ...] = (
    {"checkpointing": "none", "seq_len": 4096},
    {"checkpointing": "selective", "attention": "eager", "seq_len": 4097},
    {"checkpointing": "none", "lora_rank": 16},
    {"lora_rank": 8, "base_dtype": "nf4", "seq_len": 1024},
)


def runs() -> Iterator[tuple[str, Job]]:
    """Every architecture as most people train it, every pair that runs, and every setting changed on its own."""
    asked = [(model, pair, {}) for model in MODELS for pair in COMMON]
    asked += [(model, pair, setting) for model in MODELS for pair in COMMON[::3] for setting in EACH]
    asked += [(model, pair, {"world_size": 7}) for model in ("llama-3.1-8b", "gemma-2-2b") for pair in PAIRS]
    asked += [
        (model, pair, setting) for setting in SETTINGS for pair in MOST for model in ("llama-3.1-8b", "qwen3-30b-a3b")
    ]
    for model, (strategy, recipe), setting in asked:
        size = {"world_size": 1 if strategy == "single" else 8, **setting}
        with contextlib.suppress(InputError):
            run = Job.of(model=load(model), strategy=strategy, recipe=recipe, **size)
            assert run.trained  # peft refuses some adapters
            yield " ".join([model, strategy, recipe, *(f"{name}={value}" for name, value in size.items())]), run


def told(run: Job) -> str:
    """One run in a line: a word and its bytes for each thing that can move."""
    found = estimate(run)
    said = {f"states.{line}": num_bytes for line, num_bytes in asdict(found.states).items()}
    said |= {"one-line": found.one_line.total, "host": found.host_per_node_bytes}
    said |= {name: phase.bytes for name, phase in (found.phases or {}).items()}
    said |= {phase.instant: phase.bytes for phase in found.instants}
    if found.phases and found.peak:
        worst = found.phases[found.peak.phase]
        said |= {f"{worst.instant}/{line.line}": line.bytes for line in worst.lines}
    with contextlib.suppress(InputError):
        said |= {f"{one.name} of {one.what}": one.num_bytes for one in collectives(run)}
    return "; ".join(f"{name} {num_bytes}" for name, num_bytes in said.items())


def text() -> str:
    return "".join(f"{name}: {told(run)}\n" for name, run in dict(runs()).items())


def by_run(kept: str) -> dict[str, dict[str, str]]:
    """What is kept, by run and then by what it is."""
    lines = (line.split(": ", 1) for line in kept.splitlines())
    return {name: dict(part.rsplit(" ", 1) for part in said.split("; ")) for name, said in lines}


def test_no_byte_moves_unseen() -> None:
    was, now = by_run(KEPT.read_text("utf-8")), by_run(text())
    moved = []
    for run in {**was, **now}:
        old, new = was.get(run, {}), now.get(run, {})
        differ = [
            f"{what} {old.get(what)} → {new.get(what)}" for what in {**old, **new} if old.get(what) != new.get(what)
        ]
        moved += [f"{run}: {'; '.join(differ)}"] if differ else []
    assert not moved, "\n".join([*moved[:9], f"{len(moved)} runs moved: look at the difference, then run make golden"])


if __name__ == "__main__":
    KEPT.write_text(text(), "utf-8")
