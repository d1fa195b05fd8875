"""What `make bench` prints as JSON: how long the build, a cold command, an import and estimates take here.

Times are medians, in seconds. Where Accelerate and DeepSpeed are installed (`make verify` does so),
their own estimators are asked the same question, from a config to the bytes of training state.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from calc.cli import answer, calculated
from calc.estimate import estimate
from calc.fit import fit
from calc.job import Job
from calc.models import from_config, known, load

ROOT = Path(__file__).parents[1]
ORACLE = ROOT / ".venv-oracle" / "bin" / "python"
QUESTION = ("estimate", "llama-3.3-70b", "--gpus", "8")
#: MkDocs with a watch on the rendering of each page.
BUILD = """
import json, sys, time
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.structure.pages import Page
render, taken = Page.render, {}
def timed(page, *args):
    start = time.perf_counter()
    render(page, *args)
    taken[page.file.src_uri] = round(time.perf_counter() - start, 3)
Page.render = timed
start = time.perf_counter()
build(load_config("mkdocs.yml", site_dir=sys.argv[1], strict=False))
print(json.dumps({"total": round(time.perf_counter() - start, 2), "pages": taken}))
"""
#: The question as their users put it: a model on the meta device, Adam, mixed precision, eight GPUs.
ESTIMATORS = """
import json, sys, time, logging
logging.disable()
from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from transformers import AutoConfig, AutoModelForCausalLM
def model():
    with init_empty_weights():
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(sys.argv[1])))
def accelerate():
    # Its table names the largest of four figures, for one GPU.
    return max(estimate_training_usage(calculate_maximum_sizes(model())[0], "float16").values()) // 8
def deepspeed():
    # As its own `model_to_params`, which tells parameters apart by addresses that a meta tensor lacks.
    sizes = [sum(p.numel() for p in module.parameters(recurse=False)) for module in model().modules()]
    total, largest = sum(sizes), max(sizes)
    return int(estimate_zero3_model_states_mem_needs(
        total, largest, 8, 1, cpu_offload=False, cpu_offload_params=False, additional_buffer_factor=1)[1])
found = {}
for ask in (accelerate, deepspeed):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        answer = ask()
        times.append(time.perf_counter() - start)
    found[ask.__name__] = {"seconds": sorted(times)[1], "bytes": answer}
print(json.dumps(found))
"""


def seconds(task: Callable[[], object], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        task()
        taken.append(time.perf_counter() - start)
    return round(median(taken), 6)


def run(*command: str, python: Path | str = sys.executable) -> str:
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run([python, *command], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return ended.stdout


def build() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        found = [json.loads(run("-c", BUILD, folder).splitlines()[-1]) for _ in range(3)]
    middle: dict[str, object] = sorted(found, key=lambda one: one["total"])[1]
    return middle


def estimates() -> dict[str, object]:
    llama = load("llama-3.3-70b")

    def per_second(size: int, **given: str) -> int:
        return round(1 / seconds(lambda: estimate(Job.of(model=llama, world_size=size, **given))))

    config = next(record["config"] for record in known() if record["name"] == "llama-3.3-70b")
    return {
        "per_second": per_second(8),
        "per_second_by_gpus": {size: per_second(size, strategy="zero3") for size in (2, 8, 64, 1024, 1_000_000)},
        "per_second_by_strategy": {
            name: per_second(8, strategy=name) for name in ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
        },
        "seconds_by_layers": {
            number: seconds(
                lambda config=config | {"num_hidden_layers": number}: estimate(
                    Job.of(model=from_config(config, "m"), world_size=8)
                )
            )
            for number in (80, 800, 8000)
        },
        "fit_all_cards_seconds": seconds(lambda: fit(Job.of(model=llama, world_size=1, strategy="zero3")), 3),
        "largest_on_all_cards_seconds": seconds(lambda: answer(("fit", "llama-3.3-70b", "--largest")), 3),
        "calculator_seconds": seconds(lambda: calculated((*QUESTION, "--gpu", "h100-sxm5-80gb"))),
    }


#: Complete estimates per second of Llama 70B, sequences that differ, the best of five rounds.
RATES = """
import json, sys, time
from dataclasses import replace
from calc.estimate import estimate
from calc.models import load
try:
    from calc.job import Job
    make = Job.of
except ImportError:
    from calc.estimate import Run as make
llama, found = load("llama-3.3-70b"), {}
for name in ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"):
    asked = make(model=llama, world_size=8, strategy=name)
    jobs, best = [replace(asked, seq_len=1000 + count) for count in range(300)], 0
    for _ in range(5):
        start = time.perf_counter()
        for job in jobs:
            estimate(job)
        best = max(best, len(jobs) / (time.perf_counter() - start))
    found[name] = round(best)
print(json.dumps(found))
"""
#: The last commit of the core before this one.
BEFORE = "53e0d40"


def rates() -> dict[str, object] | None:
    """Estimates per second now and before the core was rebuilt, in one run, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        command = f"git archive {BEFORE} calc | tar -x -C {folder}"
        if subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=ROOT, capture_output=True).returncode:
            return None  # a copy without history
        found = {}
        for name, where in (("before", folder), ("now", str(ROOT))):
            path = os.environ | {"PYTHONPATH": where}
            ended = subprocess.run(
                [sys.executable, "-c", RATES], cwd=where, env=path, check=True, stdout=subprocess.PIPE, text=True
            )
            found[name] = json.loads(ended.stdout)
    before, now = found["before"], found["now"]
    return {**found, "times_as_many": {name: round(now[name] / before[name], 1) for name in now}}


def estimators() -> dict[str, object] | None:
    """Theirs over ours: time from a config to an answer, and the bytes of state per GPU."""
    if not ORACLE.exists():
        return None
    record = next(record for record in known() if record["name"] == "llama-3.1-8b")
    theirs = json.loads(run("-c", ESTIMATORS, json.dumps(record["config"]), python=ORACLE).splitlines()[-1])

    def ours() -> int:
        return estimate(Job.of(model=from_config(record["config"], record["id"]), world_size=8)).states.total

    ours_seconds, ours_bytes = seconds(ours), ours()
    return {"ours": {"seconds": ours_seconds, "bytes": ours_bytes}} | {
        name: {
            **one,
            "times_our_seconds": round(one["seconds"] / ours_seconds, 1),
            "times_our_bytes": round(one["bytes"] / ours_bytes, 3),
        }
        for name, one in theirs.items()
    }


def main() -> None:
    bare = seconds(lambda: run("-c", "pass"), 9)
    print(
        json.dumps(
            {
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
                "python_alone_seconds": bare,
                "import_seconds": round(seconds(lambda: run("-c", "import calc.cli"), 9) - bare, 4),
                "cold_command_seconds": seconds(lambda: run("-m", "calc", *QUESTION), 9),
                "estimates": estimates(),
                "estimates_per_second": rates(),
                "build_seconds": build(),
                "estimators": estimators(),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
