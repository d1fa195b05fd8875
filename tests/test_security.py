"""What SECURITY.md promises of the code: nothing evaluates input, opens a connection or starts a process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Runs the pages' own examples, as the build does, and the snippets that the site offers.
RUNS_PAGES = {"tests/examples.py", "tests/oracle/test_configs.py", "tests/oracle/test_notebook.py"}
CALLS = {"eval", "exec", "__import__"}
UNPACKS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
REACHES = {"socket", "ssl", "urllib", "http", "ftplib", "smtplib", "asyncio", "requests", "subprocess", "ctypes"}
UNSAFE = {"load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all"}
SOURCES = sorted(
    str(path.relative_to(ROOT)) for folder in ("calc", "site_build", "tests") for path in (ROOT / folder).rglob("*.py")
)


def walk(name: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / name).read_text("utf-8"))))


def modules(nodes: list[ast.AST]) -> set[str]:
    """The top-level names of what is imported."""
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in RUNS_PAGES])
def test_nothing_evaluates_or_unpickles(name: str) -> None:
    nodes = walk(name)
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & CALLS
    assert not modules(nodes) & UNPACKS


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("calc/")])
def test_calc_reaches_for_nothing_outside(name: str) -> None:
    nodes = walk(name)
    assert not modules(nodes) & REACHES
    attributes = {
        f"{n.value.id}.{n.attr}" for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    }
    assert not {name for name in attributes if name.startswith(("os.system", "os.exec", "os.spawn", "os.popen"))}


@pytest.mark.parametrize("name", SOURCES)
def test_yaml_is_loaded_safely(name: str) -> None:
    nodes = walk(name)
    if not any(isinstance(node, ast.Import) and node.names[0].name == "yaml" for node in nodes):
        return  # not PyYAML; `calc.configs.yaml` is a reader of our own
    used = {
        n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "yaml"
    }
    assert not used & UNSAFE
