"""One way only: each room of `calc` imports from rooms above it, and from nothing else of ours."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

from calc.models.families import FILES

CALC = Path(__file__).parent.parent / "calc"
ROOMS = ["units", "models", "gpus", "precision", "optimizers", "memory", "stacks", "settings", "job"]
ROOMS += ["assumptions", "formula", "plan", "estimate", "curve", "envelope", "fit", "communication"]
ROOMS += ["configs", "oom", "audit", "tables", "check", "answers", "options", "cli"]
FAMILIES = "calc.models.families"
#: Only the standard library, so that the same files run in a browser.
OUTSIDE = {
    "argparse", "ast", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum", "fractions",
    "functools", "heapq", "html", "importlib", "io", "itertools", "json", "math", "os", "pathlib", "re", "stat", "sys",
    "tempfile", "types", "typing",
}  # fmt: skip


def files() -> list[Path]:
    return sorted(path for path in CALC.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))


def imported(path: Path) -> set[str]:
    found, tree = set(), ast.parse(path.read_text("utf-8"))
    # What is imported for types alone may look down.
    for_types = {id(n) for node in ast.walk(tree) if isinstance(node, ast.If) for n in node.body}
    for node in (node for node in ast.walk(tree) if id(node) not in for_types):
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


def code(source: str) -> list[tokenize.TokenInfo]:
    """The tokens of code: no layout, no comments, and no docstrings, of which there cannot be too many."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token for token in found if token.type not in skipped and not token.string.startswith('"""')]


def size_of(*rooms: str) -> int:
    paths = (p for p in CALC.rglob("*.py") if p.relative_to(CALC).parts[0].removesuffix(".py") in rooms)
    return sum(len(code(path.read_text("utf-8"))) for path in paths)


def test_calc_stays_small() -> None:
    """In tokens: the arithmetic under 45,000, all of `calc` under 90,000."""
    assert size_of(*ROOMS[: ROOMS.index("estimate") + 1]) < 45_000
    assert size_of(*ROOMS) < 90_000


#: Parts of which families are made, each of parts before it; `operations` and `head` ask a finished family.
PARTS = ["fields", "kinds", "modules", "layer", "mlp", "attention", "latent", "experts", "family", "operations", "head"]
FAMILY_FILES = sorted((CALC / "models" / "families").glob("[a-z]*.py"))


@pytest.mark.parametrize("path", FAMILY_FILES, ids=lambda path: path.stem)
def test_a_family_is_made_of_parts_and_of_families_before_it(path: Path) -> None:
    order = [*PARTS, *FILES]
    tree = ast.parse(path.read_text("utf-8"))
    skipped = {id(n) for node in ast.walk(tree) if isinstance(node, ast.If) for n in node.body}  # TYPE_CHECKING
    own = order.index(path.stem)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped and (node.module or "").startswith(FAMILIES):
            names = [alias.name for alias in node.names] if node.module == FAMILIES else [str(node.module)]
            assert all(order.index(name.rpartition(".")[2]) < own for name in names)


@pytest.mark.parametrize("path", FAMILY_FILES, ids=lambda path: path.stem)
def test_a_family_is_read_in_one_sitting(path: Path) -> None:
    """At most 100 columns, 300 lines a file, 40 lines a function without its docstring."""
    lines = path.read_text("utf-8").splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 300
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
            assert (node.end_lineno or 0) - first.lineno < 40


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(CALC)))
def test_only_the_command_line_prints_or_reads_the_environment(path: Path) -> None:
    if path.name == "cli.py":
        return
    names = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)}
    assert names & {"print", "input", "eval", "exec"} == set()
    assert imported(path) & {"time", "datetime", "socket", "urllib", "pickle"} == set()


STACK_NAMES = {"Single", "DDP", "ZeroRedundancy", "FSDP1", "FSDP2", "HSDP", "DeepSpeed", "DeepSpeed1", "DeepSpeed2"}
STACK_NAMES |= {"DeepSpeed3", "Megatron", "MegatronDistributed"}


def asks_for_a_stack(node: ast.AST) -> bool:
    """Whether it compares a strategy with a word, or asks whether a stack is one of a kind."""
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        named = any(isinstance(side, ast.Attribute) and side.attr == "strategy" for side in sides)
        words = [
            c for side in sides for c in ast.walk(side) if isinstance(c, ast.Constant) and isinstance(c.value, str)
        ]
        return named and bool(words)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        return any(isinstance(name, ast.Name) and name.id in STACK_NAMES for name in ast.walk(node.args[1]))
    return isinstance(node, ast.Match) and "stack" in ast.unparse(node.subject)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(CALC)))
def test_nobody_but_a_stack_asks_which_stack_it_is(path: Path) -> None:
    if path.parent.name == "stacks":
        return
    tree = ast.parse(path.read_text("utf-8"))
    assert [ast.unparse(node) for node in ast.walk(tree) if asks_for_a_stack(node)] == []
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported & STACK_NAMES == set()
