"""Installed, `sixteen-bytes` answers as in the repository: with its data, and with nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.planted

ROOT = Path(__file__).parents[2]
RUN = ("llama-3.1-8b", "--gpus", "8")
FORMATS = {
    **dict.fromkeys(("deepspeed", "accelerate", "trainer", "axolotl", "llamafactory"), ("--strategy", "zero3")),
    "fsdp2": ("--strategy", "fsdp2"),
    "peft": ("--strategy", "ddp", "--recipe", "pure-bf16", "--lora-rank", "16"),
}
QUESTIONS = [
    ("params", "llama-3.1-8b", "--lora-rank", "16"),
    ("estimate", *RUN, "--strategy", "zero3"),
    ("fit", "llama-3.3-70b"),
    ("communication", *RUN),
    ("oom", "Tried to allocate 3.92 GiB", *RUN, "--strategy", "fsdp2"),
    *(("config", *RUN, *options, "--format", name) for name, options in FORMATS.items()),
    *((name,) for name in ("claims", "models", "gpus", "optimizers", "recipes", "strategies")),
]
NEWER = (f"python3.{minor}" for minor in range(11, 20) if minor != sys.version_info.minor)
#: This Python, and each other from 3.11 on that the path has.
PYTHONS = [sys.executable, *filter(None, map(shutil.which, NEWER))]


def call(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install .` makes; setuptools is that of the lock, since an isolated build would fetch another."""
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-build-isolation", "--no-deps", "--no-index")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", *offline, "--wheel-dir", folder, untouched)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_calc_and_needs_nothing(wheel: Path, untouched: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    files = {str(p.relative_to(untouched)) for p in (untouched / "calc").rglob("*") if p.is_file()}
    assert names == files - {"calc/ruff.toml"}  # how the code is written, not what it needs
    assert {"calc/py.typed", "calc/data/gpus.json"} < names
    assert "Requires-Dist" not in metadata
    assert "Requires-Python: >=3.11" in metadata


@pytest.mark.parametrize("python", PYTHONS)
def test_it_answers_in_a_fresh_environment(wheel: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")
    if subprocess.run([python, "-c", "import venv"], capture_output=True).returncode:
        pytest.skip(f"{python} does not run here, or has no venv")
    call(python, "-m", "venv", "--without-pip", "venv", cwd=home)
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "--python", home / "venv/bin/python", "install", "--quiet", *offline, wheel)
    installed, here = [home / "venv/bin/sixteen-bytes"], [sys.executable, "-m", "calc"]
    for question in QUESTIONS:
        answers = [call(*program, *question, "--json", cwd=cwd) for program, cwd in ((installed, home), (here, ROOT))]
        assert json.loads(answers[0]) == json.loads(answers[1])
    (home / "README.md").write_text("7.1 GB<!--= params 70B : params_total -->")
    assert "7.1 GB → 70.0 GB" in call(*installed, "check", "--fix", "README.md", cwd=home)
