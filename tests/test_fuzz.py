"""A small, fixed part of `make fuzz`: whatever the input, an answer, or one line and status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from calc.cli import main
from tests.fuzz import KINDS, attempt


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_answered_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    ended = {attempt(kind, f"kept-{number}", tmp_path) for number in range(80)}
    assert {0, 2} <= ended, "neither all nor nothing is refused"


@pytest.mark.parametrize(
    ("command", "name", "limit"),
    [
        (["params"], "config.json", "larger than 1 MB"),
        (["estimate", "8B", "--gpus", "8", "--config-file"], "ds.json", "larger than 1 MB"),
        (["estimate", "8B", "--gpus", "8", "--config-file"], "accelerate.yaml", "larger than 1 MB"),
        (["oom"], "log", "longer than 10,000,000 characters"),
        (["check"], "page.md", "at most 10,000,000 bytes"),
        (["check"], "page.ipynb", "at most 10,000,000 bytes"),
    ],
)
def test_a_file_of_50_mb_is_refused_with_the_limit(
    command: list[str], name: str, limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    with file.open("wb") as stream:
        stream.truncate(50_000_000)
    assert main([*command, str(file)]) == 2
    assert limit in capsys.readouterr().err
