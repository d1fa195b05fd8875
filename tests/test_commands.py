"""The reference page misses no command, no option and no public name."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from calc.cli import parser
from site_build.commands import commands_table, options_table, own_options_table
from site_build.reference import api

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "command-line-and-api.md"
ROOMS = re.findall(r'^print\(api\("(calc\.[\w.]+)"\)\)$', PAGE.read_text(), re.MULTILINE)


def test_every_room_of_the_arithmetic_is_told() -> None:
    rooms = {path.name.removesuffix(".py") for path in (ROOT / "calc").iterdir() if path.name[0] not in "_."}
    shown = {name.split(".")[1] for name in ROOMS}
    told_elsewhere = {"answers", "audit", "check", "cli", "configs", "options", "settings", "tables"}
    assert rooms - shown == {*told_elsewhere, "data", "py.typed", "ruff.toml"}
    assert shown <= rooms


def test_every_option_of_every_command_is_listed() -> None:
    (commands,) = (action.choices for action in parser()._actions if isinstance(action.choices, dict))
    text = commands_table(parser()) + options_table(parser()) + own_options_table(parser())
    for name, sub in commands.items():
        assert f"`{name}" in text
        for action in sub._actions:
            if action.option_strings and action.dest not in ("help", "json"):
                assert re.search(rf"`{action.option_strings[-1]}[` ]", text)
                assert action.help
                assert action.help in text


def test_an_option_shared_by_two_commands_is_their_own() -> None:
    made = argparse.ArgumentParser()
    subs = made.add_subparsers()
    for index, name in enumerate(("estimate", "fit", "oom")):
        sub = subs.add_parser(name, description=name)
        sub.add_argument("--shared", metavar="S", default=7, help="by all")
        if index:
            sub.add_argument("--two", action="store_true", help="by two")
    assert options_table(made).splitlines()[2:] == ["| `--shared S` | `7` | by all |"]
    rows = ["| `fit` | `--two` |  | by two |", "| `oom` | `--two` |  | by two |"]
    assert own_options_table(made).splitlines()[2:] == rows


@pytest.mark.parametrize("name", ROOMS)
def test_every_public_name_has_its_signature_and_its_docstring(name: str) -> None:
    entries = re.split(r"^<h4 ", api(name), flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        head = r'id="calc\.[\w.]+"><code>\w+</code></h4>'
        assert re.fullmatch(head + r"\n\n```python\n[^`]+\n```\n\n\S[\s\S]*", entry), entry
        assert ": '" not in entry.split("```")[1].replace(" = '", "")
