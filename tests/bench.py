"""What `make bench` prints: how long the build, a cold command and an estimate take here."""

import gzip
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median

from calc.activations import unsupported
from calc.estimate import Run, estimate
from calc.fit import verdict
from calc.gpus import CLIMB, known
from calc.models import Model, load
from calc.models import known as models
from calc.sharding import STRATEGIES
from calc.states import OPTIMIZERS
from calc.units import InputError
from site_build.browser import PARTS, PYODIDE, pack


def seconds(task: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        task()
        taken.append(time.perf_counter() - start)
    return median(taken)


def run(*command: str) -> Callable[[], object]:
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return lambda: subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment)


def sweep(chosen: list[Model]) -> int:
    """Judges every strategy, optimizer and count of these models on every card; returns how many verdicts."""
    cards = [gpu for gpu in known().values() if gpu.counts()]
    number = 0
    for model in chosen:
        for strategy, optimizer, count in product(STRATEGIES, OPTIMIZERS, CLIMB):
            try:
                found = estimate(Run(model=model, world_size=count, strategy=strategy, optimizer=optimizer))
            except InputError:  # a pair that does not run
                continue
            number += sum(verdict(found, gpu) is not None for gpu in cards)
    return number


def calculator(folder: Path) -> tuple[float, float]:
    """Seconds until the calculator's first answer, without the network, and for a later one, in Node."""
    packed = folder / "calc.zip"
    packed.write_bytes(pack())
    script = Path(__file__).parent / "browser" / "bench.mjs"
    command = [Path(sys.executable).with_name("node"), script, PYODIDE, packed]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(3)]
    first, later = (median(float(run[index]) for run in runs) / 1000 for index in (0, 1))
    return first, later


def transferred() -> int:
    """Bytes that the calculator's first change loads, as a server sends them that compresses what it can."""
    parts = [*((PYODIDE / part).read_bytes() for part in PARTS), pack()]
    return sum(min(len(part), len(gzip.compress(part, 6))) for part in parts)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build = seconds(run("-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", folder), 3)
    cold = seconds(run("-m", "calc", "estimate", "llama-3.3-70b", "--gpus", "8"), 7)
    bare = seconds(run("-c", "pass"), 7)
    llama = load("llama-3.3-70b")
    number = 2000
    each = seconds(lambda: [estimate(Run(model=llama, world_size=8)) for _ in range(number)], 3) / number
    with tempfile.TemporaryDirectory() as folder:
        first, later = calculator(Path(folder))
    print(f"calculator, first     {first:8.2f} s    (and {transferred() / 1e6:.1f} MB over the network)")
    print(f"calculator, later     {later * 1000:8.0f} ms")
    print(f"site built            {build:8.2f} s")
    print(f"command line, cold    {cold * 1000:8.0f} ms   (Python alone: {bare * 1000:.0f} ms)")
    print(f"estimates             {1 / each:8.0f} per second")
    every = [model for record in models() if not unsupported(model := load(record["id"]))]
    for chosen in (every[::8], every[::4], every):
        start = time.perf_counter()
        verdicts = sweep(chosen)
        taken = time.perf_counter() - start
        print(
            f"verdicts on {len(chosen):2} models {verdicts:10,} in {taken:5.1f} s, {verdicts / taken:,.0f} per second"
        )


if __name__ == "__main__":
    main()
