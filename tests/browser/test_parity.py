"""Python as WebAssembly gives CPython's bytes and error lines, run by run over a grid, in Node."""

import subprocess
import sys
from itertools import compress
from operator import ne
from pathlib import Path

import pytest

from site_build.browser import PYODIDE, pack
from tests.browser import grid

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent


def test_webassembly_gives_the_bytes_of_cpython(tmp_path: Path) -> None:
    packed = tmp_path / "calc.zip"
    packed.write_bytes(pack())
    command = [Path(sys.executable).with_name("node"), HERE / "parity.mjs", PYODIDE, packed, HERE / "grid.py"]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    here = grid.results()
    out, err = node.communicate(timeout=900)
    assert node.returncode == 0, err[-3000:]
    there = out.split("\n")[: len(here)]
    assert len(there) == len(here) > 3000
    different = list(compress(zip(grid.runs(), here, there, strict=True), map(ne, here, there)))
    assert different == []


def test_the_grid_meets_answers_and_errors() -> None:
    found = grid.results(every=37)
    refused = sum(line.startswith("error: ") for line in found)
    assert len(set(found)) > len(found) // 2
    assert 0 < refused < len(found) // 4
