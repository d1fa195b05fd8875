"""The gate before a job queue: the page's own script, run with a queue that only writes down what it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calc.cli import answer, main
from site_build.fences import read_fences

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "command-line-and-api.md"
RUN = ["estimate", "llama-3.3-70b", "--strategy", "fsdp2", "--gpu", "h100-sxm5-80gb"]


def submit(folder: Path, script: str) -> tuple[int, str, list[str]]:
    """Runs the script; its exit status, what it says on standard error, and the jobs that it submitted."""
    for name, text in (
        ("sbatch", f'#!/bin/sh\necho "$@" >> {folder}/jobs\n'),
        ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "submit.sh").write_text(script)
    done = subprocess.run(
        ["sh", folder / "submit.sh"],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    jobs = (folder / "jobs").read_text().splitlines() if (folder / "jobs").exists() else []
    return done.returncode, done.stderr, jobs


def test_the_page_s_script_submits_what_fits_and_nothing_else(tmp_path: Path) -> None:
    (script,) = (f.source for f in read_fences(PAGE.read_text()) if f.options.get("title") == "submit.sh")
    assert submit(tmp_path, script) == (0, "", ["train.slurm"])
    (tmp_path / "jobs").unlink()
    status, said, jobs = submit(tmp_path, script.replace("--gpus 32", "--gpus 8"))
    assert (status, jobs) == (1, [])
    assert said.startswith("gate: does not fit: needs 155.2 GB to 163.3 GB, H100 SXM5 80GB shows 85.0 GB")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("gpus", "gate", "status"),
    [("8", "fits", 1), ("8", "tight", 1), ("32", "fits", 0), ("32", "tight", 0)],
)
def test_the_gate_follows_the_verdict(gpus: str, gate: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*RUN, "--gpus", gpus, "--gate", gate, "--json"]
    assert main(argv) == status
    assert (answer(argv)["verdict"] == "fits") == (status == 0)
    assert (capsys.readouterr().err == "") == (status == 0)


def test_tight_passes_one_gate_only() -> None:
    argv = [*RUN, "--gpus", "17"]
    assert answer(argv)["verdict"] == "tight"
    assert (main([*argv, "--gate", "tight"]), main([*argv, "--gate", "fits"])) == (0, 1)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["estimate", "70B", "--gpus", "8", "--gpu", "b200-sxm", "--gate", "fits"], "no verdict on 70B and B200 SXM"),
        (["estimate", "llama-3.1-8b", "--gpus", "8", "--gate", "fits"], "--gate needs --gpu"),
        (["estimate", "llama-3.1-8b", "--gpus", "8", "--gpu", "t4", "--gate", "maybe"], "'maybe'"),
    ],
)
def test_a_gate_without_a_verdict_stays_shut(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err
