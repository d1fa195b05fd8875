"""What `make bench` prints: how long the build, a cold command and an estimate take here."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

from calc.estimate import Run, estimate
from calc.models import load


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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build = seconds(run("-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", folder), 3)
    cold = seconds(run("-m", "calc", "estimate", "llama-3.3-70b", "--gpus", "8"), 7)
    bare = seconds(run("-c", "pass"), 7)
    llama = load("llama-3.3-70b")
    number = 2000
    each = seconds(lambda: [estimate(Run(model=llama, world_size=8)) for _ in range(number)], 3) / number
    print(f"site built            {build:8.2f} s")
    print(f"command line, cold    {cold * 1000:8.0f} ms   (Python alone: {bare * 1000:.0f} ms)")
    print(f"estimates             {1 / each:8.0f} per second")


if __name__ == "__main__":
    main()
