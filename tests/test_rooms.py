"""One way only: each room of `calc` imports from rooms above it, and from nothing else of ours."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from calc.models.families import FILES
from calc.stacks import STACKS

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
    """The tokens of code: no layout, no comments and no docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found, inside = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # From Python 3.12 on an f-string is many tokens; it counts as one everywhere.
        kind = tokenize.tok_name[token.type]
        if not inside and token.type not in skipped and not token.string.startswith('"""'):
            found.append(token)
        inside += (kind == "FSTRING_START") - (kind == "FSTRING_END")
    return found


#: One more stack, family or library of optimizers is one more file, and costs what is here nothing.
LIBRARIES = {f"calc.optimizers.{path.stem}" for path in (CALC / "optimizers").glob("[a-z]*.py") if path.stem != "base"}
BY_RECIPE = {stack.__module__ for stack in STACKS} | {f"{FAMILIES}.{name}" for name in FILES} | LIBRARIES


def size_of(*rooms: str) -> int:
    paths = {path: path.relative_to(CALC).with_suffix("").parts for path in CALC.rglob("*.py")}
    counted = [path for path, at in paths.items() if at[0] in rooms and ".".join(("calc", *at)) not in BY_RECIPE]
    return sum(len(code(path.read_text("utf-8"))) for path in counted)


@pytest.mark.parametrize(("last", "limit"), [("estimate", 30_000), ("cli", 70_000)])
def test_calc_stays_small(last: str, limit: int) -> None:
    """In tokens, without the files that one adds by recipe: the arithmetic, and all of `calc`."""
    over = size_of(*ROOMS[: ROOMS.index(last) + 1]) - limit
    assert over < 0, f"calc has {over} tokens too many up to {last}: remove something first (CONTRIBUTING, Code)"


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


SOURCES = {str(path.relative_to(CALC)): path.read_text("utf-8") for path in sorted(CALC.rglob("*.py"))}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}


def attributes_known_as_bool() -> set[str]:
    """Fields and properties of the classes of `calc` that are `bool` wherever the name is one."""
    kinds: dict[str, set[str]] = {}
    for tree in TREES.values():
        for node in (node for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in each.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kinds.setdefault(node.target.id, set()).add(ast.unparse(node.annotation))
            elif isinstance(node, ast.FunctionDef) and node.returns:
                kinds.setdefault(node.name, set()).add(ast.unparse(node.returns))
    return {name for name, found in kinds.items() if found == {"bool"}}


BOOLS = attributes_known_as_bool()
CALLS = {"all", "any", "bool", "callable", "hasattr", "isinstance"}


def is_bool(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a truth value, as far as its form and the names known as `bool` say."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.BoolOp):  # `a or b` of two numbers is one
        return all(is_bool(value, names) for value in node.values)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CALLS
    if isinstance(node, ast.Attribute):
        return node.attr in BOOLS
    return (isinstance(node, ast.Name) and node.id in names) or (
        isinstance(node, ast.Constant) and isinstance(node.value, bool)
    )


def names_known_as_bool(function: ast.AST) -> set[str]:
    """The arguments annotated as `bool`, and the names given nothing but a truth value."""
    found: dict[str, list[bool]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            told = node.annotation is not None and ast.unparse(node.annotation) == "bool"
            found.setdefault(node.arg, []).append(told)
        elif isinstance(node, ast.Assign):
            pairs: list[tuple[ast.expr, ast.expr | None]] = []
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
            for target, value in pairs:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(value is not None and is_bool(value, set()))
    return {name for name, told in found.items() if all(told)}


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_is_read_in_one_sitting(name: str) -> None:
    """At most 100 columns, 300 lines a file, 40 lines a function without its docstring."""
    lines = SOURCES[name].splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert len(lines) <= 300
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
            assert (node.end_lineno or 0) - first.lineno < 40, node.name


@pytest.mark.parametrize("name", SOURCES)
def test_no_condition_stands_inside_another(name: str) -> None:
    """`a if x else b if y else c`, or a conditional expression anywhere in one."""
    for outer in ast.walk(TREES[name]):
        if isinstance(outer, ast.IfExp):
            inner = [node for node in ast.walk(outer) if isinstance(node, ast.IfExp) and node is not outer]
            assert inner == [], ast.unparse(outer)


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_is_multiplied_by_a_condition(name: str) -> None:
    """`size * flag` and `"text" * condition` are conditions in disguise."""
    functions = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.FunctionDef)]
    for scope in (TREES[name], *functions):
        known = names_known_as_bool(scope) if scope is not TREES[name] else set()
        for node in ast.walk(scope):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                for side in (node.left, node.right):
                    assert not isinstance(side, ast.BoolOp), ast.unparse(node)
                    assert not is_bool(side, known), ast.unparse(node)


def test_no_function_is_too_complex() -> None:
    """At most ten ways through a function, as ruff counts them."""
    limit = ["--select", "C901", "--config", "lint.mccabe.max-complexity=10"]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--output-format=concise"]
    found = subprocess.run([*command, *limit, str(CALC)], capture_output=True, text=True)
    assert (found.returncode, found.stdout.strip()) == (0, "All checks passed!")


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
