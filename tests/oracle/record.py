"""The recorded measurements: reading them, taking them again, rewriting them.

`python -m tests.oracle.record [WORD…]` measures every case in this environment, or those whose names
contain a word, and rewrites `recorded/`: the difference in version control is what the frameworks changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from tests.oracle.cases import CASES, Case

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
#: The lone tensors, and the small models on ranks.
FILES = ("optimizers", "ranks")


def file_of(case: Case) -> str:
    """The record that holds this case."""
    return "optimizers" if case.model == "sizes" else "ranks"


@cache
def recorded(name: str) -> dict[str, Any]:
    """One record: `versions`, and by case the bytes of each line on each rank, or the error."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def measured(cases: Iterable[Case]) -> tuple[dict[str, str], dict[str, Any]]:
    """Versions, and what the frameworks of this environment allocate in each case."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.oracle.measure", str(out)],
            input=json.dumps([asdict(case) for case in cases]),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=1800,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the measurement ended with {done.returncode}:\n{done.stderr[-2000:]}")
        versions, *lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    return versions, dict(lines)


def main(*words: str) -> None:
    """Rewrite the records, a line a case; with words, only the cases whose names contain one of them."""
    versions, found = measured(case for case in CASES if not words or any(word in str(case) for word in words))
    for name in FILES:
        old = recorded(name)["cases"] if words else {}
        rows = ",\n".join(
            f"  {json.dumps(str(case))}: {json.dumps(found.get(str(case), old.get(str(case))))}"
            for case in CASES
            if file_of(case) == name
        )
        text = f'{{\n "versions": {json.dumps(versions)},\n "cases": {{\n{rows}\n }}\n}}\n'
        (RECORDED / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
