"""`make fuzz`: hostile input until the count or the time is up; each fault is one that a user can cause.

python -m tests.fuzz --count 100000 --seconds 900 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz import KINDS, attempt

MEMORY_BYTES = 2_000_000_000


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--seconds", type=int, default=1800)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kind", choices=list(KINDS), action="append")
    args = options.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    kinds, faults = args.kind or list(KINDS), collections.Counter[str]()
    ended, slowest, start, done = collections.Counter[int](), (0.0, ""), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        while done < args.count and time.monotonic() - start < args.seconds:
            kind, seed, before = kinds[done % len(kinds)], f"{args.seed}-{done}", time.process_time()
            try:
                ended[attempt(kind, seed, Path(folder))] += 1
            except BaseException as error:  # a fault, whatever it is; Ctrl-C ends the run
                if isinstance(error, KeyboardInterrupt):
                    raise
                last = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
                if not faults[place]:
                    print(f"{kind} {seed}: {place}: {str(error)[:200]}", flush=True)
                faults[place] += 1
            slowest = max(slowest, (time.process_time() - before, f"{kind} {seed}"))
            done += 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{done:,} inputs in {time.monotonic() - start:.0f} s: {sum(faults.values())} faults of {len(faults)} kinds")
    print(f"exit status: {dict(sorted(ended.items()))}")
    print(f"slowest: {slowest[0]:.2f} s ({slowest[1]}); memory: {memory:.0f} MiB at most")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
