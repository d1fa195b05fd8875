"""One way only: each room of `calc` imports from rooms above it, and from nothing else of ours."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

CALC = Path(__file__).parent.parent / "calc"
ROOMS = ["units", "models", "gpus", "states", "sharding", "activations", "memory", "stacks", "job", "house"]
ROOMS += ["estimate", "fit", "communication", "configs", "oom", "audit", "tables", "check", "cli"]
#: Only the standard library, so that the same files run in a browser.
OUTSIDE = {
    "argparse", "ast", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum", "fractions",
    "functools", "heapq", "html", "importlib", "io", "itertools", "json", "math", "os", "pathlib", "re", "stat", "sys",
    "tempfile", "types", "typing",
}  # fmt: skip


def files() -> list[Path]:
    return sorted(path for path in CALC.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"calc.{alias.name}" for alias in node.names} if node.module == "calc" else {node.module}
            found |= names
    return found - {"__future__"}


def room(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(CALC)))
def test_a_room_imports_only_from_rooms_above_it(path: Path) -> None:
    own = path.relative_to(CALC).parts[0].removesuffix(".py")
    ours = {room(name) for name in imported(path) if name.startswith("calc.")} - {own}
    outside = {name.split(".")[0] for name in imported(path) if not name.startswith("calc.")}
    assert own in ROOMS
    assert {name for name in ours if ROOMS.index(name) >= ROOMS.index(own)} == set()
    assert outside - OUTSIDE == set()


def lines_of_code(source: str) -> int:
    """Lines that hold code: no blank lines, no comments, and no docstrings, of which there cannot be too many."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped and not token.string.startswith('"""'):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines)


def size_of(*rooms: str) -> int:
    paths = (p for p in CALC.rglob("*.py") if p.relative_to(CALC).parts[0].removesuffix(".py") in rooms)
    return sum(lines_of_code(path.read_text("utf-8")) for path in paths)


def test_calc_stays_small() -> None:
    """The arithmetic under 3,000 lines of code; what shows it, checks prose and reads argv under 1,900.

    Until the command line stands on the new core (`memory stacks job house`), it is not counted.
    """
    old = [room for room in ROOMS[: ROOMS.index("tables")] if room not in ("memory", "stacks", "job", "house")]
    assert size_of(*old) < 3000
    assert size_of(*ROOMS[ROOMS.index("tables") :]) < 1900


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(CALC)))
def test_only_the_command_line_prints_or_reads_the_environment(path: Path) -> None:
    if path.name == "cli.py":
        return
    names = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)}
    assert names & {"print", "input", "eval", "exec"} == set()
    assert imported(path) & {"time", "datetime", "socket", "urllib", "pickle"} == set()
