"""`make mutation`: plants one small fault after the other in the arithmetic, and expects a test to fail.

    python -m tests.mutation --sample 300 --room stacks

Operators, numbers, conditions and the names in comparisons are changed, one at a time; messages and docstrings not.
Each mutant runs in a fork of its own, so no file is written. `tests/survivors.txt` says of each known survivor
why no test tells it apart; the score counts it as a survivor all the same.
"""

from __future__ import annotations

import argparse
import ast
import collections
import os
import random
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.machinery import SourceFileLoader
from pathlib import Path

import hypothesis  # noqa: F401  (imported before the forks, like pytest; nothing of calc is)
import pytest

ROOT = Path(__file__).parents[1]
#: What counts bytes: the parts of which families are made, and the rooms after them.
ROOMS = tuple(
    f"models/families/{part}" for part in ("layer", "operations", "mlp", "attention", "latent", "experts", "head")
)
ROOMS += ("precision", "optimizers", "memory", "stacks", "job", "formula", "plan", "estimate", "fit", "communication")
CPU_SECONDS = 200
PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.BitOr, ast.BitAnd)),
)
SWAPS = {old: new for pair in PAIRS for old, new in (pair, pair[::-1])} | {ast.Div: ast.Mult, ast.Mod: ast.Mult}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: Tried first, and then, on what they let live, the tests of what is built on the arithmetic.
QUICK = (
    "models",
    "kept",
    "states",
    "optimizers",
    "timeline",
    "stacks",
    "parallelism",
    "activations",
    "estimate",
    "fit",
    "communication",
    "cli",
    "oom",
)
SLOW = ("test_audit.py", "test_configs.py", "test_tables.py", "oracle/test_records.py", "test_docs.py")


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and all below it that may be changed: no docstrings, annotations, decorators or messages."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list") and not isinstance(node, ast.Raise | ast.JoinedStr):
            for child in value if isinstance(value, list) else [value]:
                text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
                if isinstance(child, ast.AST) and not text:
                    yield from parts(child)


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str, object]]:
    """Each change of one node: what is changed, in which field, to what."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield node, "op", SWAPS[type(op)]()
        case ast.Compare(ops=ops, comparators=comparators):
            for at, op in enumerate(ops):
                yield node, "ops", [*ops[:at], SWAPS[type(op)](), *ops[at + 1 :]]
            for word in (word for side in comparators for word in ast.walk(side)):
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    yield word, "value", f"{word.value}?"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield node, "test", ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=ifs):
            yield from ((node, "ifs", ifs[:at] + ifs[at + 1 :]) for at in range(len(ifs)))
        case ast.Constant(value=int(value)):
            yield node, "value", not value if isinstance(value, bool) else value + 1
        case ast.Name(id=name) if name in NAMES:
            yield node, "id", NAMES[name]


def mutants(path: Path) -> Iterator[tuple[str, str]]:
    """Each mutant of a file: its line with the change, and its whole source."""
    tree = ast.parse(path.read_text("utf-8"))
    whole = ast.unparse(tree).splitlines()
    for node, field, new in [change for part in parts(tree) for change in changes(part)]:
        old = getattr(node, field)
        setattr(node, field, new)
        source = ast.unparse(ast.fix_missing_locations(tree))
        setattr(node, field, old)
        before, after = next(pair for pair in zip(whole, source.splitlines(), strict=False) if pair[0] != pair[1])
        at = next(at for at, pair in enumerate(zip(before, f"{after} ", strict=False)) if len({*pair}) > 1)
        at = before.rfind(" ", 0, at) + 1  # where the changed word begins
        yield f"{path.relative_to(ROOT / 'calc')}: {before.strip()} → {after[at : at + 60]}", source


def killed(path: Path, source: str) -> bool:
    """Whether a test fails on the mutant, in a fork that imports it in place of the file."""
    if not (child := os.fork()):
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        load = SourceFileLoader.get_code
        SourceFileLoader.get_code = lambda self, name: (  # type: ignore[method-assign]
            self.source_to_code(source.encode(), str(path)) if self.path == str(path) else load(self, name)
        )
        quick = [f"tests/test_{name}.py" for name in QUICK] + ["tests/oracle/test_tracker.py"]
        # With its own assertions pytest would load `path` past us.
        flags = ["-x", "-q", "-pno:cacheprovider", "--hypothesis-seed=1", "--assert=plain"]
        status = pytest.main([*flags, "-oaddopts=", "-mnot oracle", "--doctest-modules", str(path), *quick])
        os._exit(bool(status or pytest.main([*flags, *(f"tests/{name}" for name in SLOW)])))
    return os.waitpid(child, 0)[1] != 0


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--room", choices=ROOMS, action="append")
    options.add_argument("--sample", type=int, default=10**6, help="so many mutants, chosen at random but always alike")
    args = options.parse_args()
    paths = [
        path
        for room in args.room or ROOMS
        for glob in (f"{room}.py", f"{room}/*.py")
        for path in sorted((ROOT / "calc").glob(glob))
    ]
    assert not killed(paths[0], paths[0].read_text("utf-8")), "a test fails without any fault"
    assert killed(paths[0], ""), "no test notices that a file is empty"
    found = [(path, *mutant) for path in paths for mutant in mutants(path)]
    chosen = random.Random(1).sample(found, min(args.sample, len(found)))
    known = (ROOT / "tests" / "survivors.txt").read_text("utf-8")
    alive = collections.Counter[str]()
    paths, names, sources = zip(*sorted(chosen), strict=True)
    with ProcessPoolExecutor() as pool:
        for path, name, dead in zip(paths, names, pool.map(killed, paths, sources), strict=True):
            if not dead:
                alive[path.stem] += 1
                print(f"{'explained' if name in known else 'NEW'}  {name}", flush=True)
    for stem, number in collections.Counter(path.stem for path, *_ in chosen).items():
        print(f"{stem:16}{number - alive[stem]:5} of {number:5} killed")
    score = 100 * (1 - alive.total() / len(chosen))
    print(f"{len(chosen):,} of {len(found):,} mutants: score {score:.1f} %")
    return score < 90


if __name__ == "__main__":
    raise SystemExit(main())
