"""Runs every example in the project's documents: a pytest plugin that hands them to Sybil.

| block | what is asked of it |
|---|---|
| `python exec="1"` | runs as in the build, in a namespace of its own or of its session; only its own `print` prints |
| `python` | runs in a namespace of its own; one that imports what is not installed here is only compiled |
| `console` | each `$` line is a command of `calc`; it runs and prints what is below, if anything; `…` leaves some out |
| `sh` | is shell; its `make` targets exist, and the commands of `calc` in it are accepted |
| `json` `yaml` `toml` | parses |
| `markdown` | its marked numbers are true |
| `text` `diff` | is only shown |
| `>>>` in a docstring of `calc` | is a doctest |

`python -m tests.examples` (`make golden`) writes what the executed blocks of each page print into
`tests/golden/`, so that a change in `calc` shows as a difference of every table it moves.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from markdown_exec._internal.formatters.base import ExecutionError
from markdown_exec._internal.formatters.python import _run_python
from sybil import Document, Region, Sybil
from sybil.example import Example
from sybil.integration.pytest import SybilFile
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from calc import check, cli
from calc.units import InputError
from site_build.fences import LANGUAGES, Fence, FenceError, read_fences

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GOLDEN = ROOT / "tests" / "golden"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))
MODULES = tuple(sorted((ROOT / "calc").rglob("*.py")))
AGAIN = "\nmend the block, then run make test"


def fences(document: Document) -> Iterator[Region]:
    """Every fenced block, also those with options, which Sybil's own Markdown parser passes over."""
    try:
        known = {fence.line: fence for fence in read_fences(document.text)}
    except FenceError as error:
        fault = f"{error}{AGAIN}"
        yield Region(0, 0, evaluator=lambda example: fault)
        return
    end = 0
    lexer = RawFencedCodeBlockLexer(re.compile(r"[^\n]*\n?"))
    for region in sorted(lexer(document), key=lambda region: region.start):
        if region.start >= end:  # else it is shown inside the block before it
            end = region.end
            fence = known.get(document.text.count("\n", 0, region.start) + 1)
            yield Region(region.start, region.end, parsed=fence, evaluator=evaluate)


def evaluate(example: Example) -> str | None:
    """What is wrong with one block, or None."""
    fence: Fence = example.parsed
    try:
        fault = execute(fence, example.document) and None if fence.executed else BLOCKS[fence.language](fence.source)
    except ExecutionError as error:
        fault = str(error)
    return fault and fault + AGAIN


def execute(fence: Fence, document: Document) -> str:
    """What a block prints into its page; anything printed behind its back would miss the page."""
    name = fence.options.get("session")
    behind = io.StringIO()
    with contextlib.redirect_stdout(behind):
        # markdown-exec keeps sessions for ever; here one lives for one reading of one page.
        printed = _run_python(
            fence.source, session=name and f"{name} {id(document)}", id=f"{document.path}:{fence.line}"
        )
    if behind.getvalue():
        raise ExecutionError(f"printed by a called function, so missing from the page: {behind.getvalue()!r}")
    return printed


def python(source: str) -> None:
    code = compile(source, "<example>", "exec")
    roots = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    if roots <= sys.stdlib_module_names | {"calc"}:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, {"__name__": "example"})


def console(source: str) -> str | None:
    before, *parts = re.split(r"^\$ ", source.replace("\\\n", " "), flags=re.MULTILINE)
    if before.strip() or not parts:
        return "a console block begins with '$ ' and a command of calc"
    for part in parts:
        line, _, shown = part.partition("\n")
        argv = arguments(line)
        if argv is None:
            return f"only commands of calc are run here, not {line!r}; show others in a sh block"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            cli.main(argv)
        said = re.escape(shown.strip()).replace("…", r"[\s\S]*") or r"(?!error:)[\s\S]*"
        if not re.fullmatch(said, printed.getvalue().strip()):
            return f"$ {line}\nprints\n{printed.getvalue()}\nand not\n{shown}"
    return None


def arguments(line: str) -> list[str] | None:
    """What a command line gives to calc, or None where it calls something else."""
    found = re.fullmatch(r"(?:python3? -m calc|sixteen-bytes)\b([^|;&<>]*)", line.partition(" #")[0].strip())
    return shlex.split(found[1]) if found else None


def sh(source: str) -> str | None:
    parsed = subprocess.run(["bash", "-n"], input=source, capture_output=True, text=True)
    if parsed.returncode:
        return parsed.stderr
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in source.replace("\\\n", " ").splitlines():
        named = re.match(r"\s*make((?: [a-z][a-z-]*)+)", line)
        if named and (unknown := set(named[1].split()) - targets):
            return f"the Makefile has no target {', '.join(sorted(unknown))}"
        if argv := arguments(line):
            try:
                cli.parser().parse_args(argv)
                if argv[0] != "check":
                    cli.answer(argv)
            except InputError as error:
                return f"{line.strip()!r}: {error}"
    return None


def markdown(source: str) -> str | None:
    found = check.check(source, file="block", answer=cli.answer)
    return "\n".join(str(finding) for finding in found if not finding.ok) or None


BLOCKS: dict[str, Callable[[str], str | None]] = {
    "python": python,
    "console": console,
    "sh": sh,
    "json": lambda source: json.loads(source) and None,
    "yaml": lambda source: list(yaml.safe_load_all(source)) and None,
    "toml": lambda source: tomllib.loads(source) and None,
    "markdown": markdown,
    "text": lambda source: None,
    "diff": lambda source: None,
}
assert BLOCKS.keys() == set(LANGUAGES), "each language that a page may use is checked in some way"

SYBIL = Sybil(parsers=[DocTestParser(), fences])


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SybilFile | None:
    if file_path in PAGES or file_path in MODULES:
        return SybilFile.from_parent(parent, path=file_path, sybils=[SYBIL])
    return None


def golden(page: Path) -> Path:
    """Where the output of a page's blocks is kept."""
    return GOLDEN / page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT)


def printed(page: Path) -> str:
    """What the executed blocks of a page print, one after the other under their last lines."""
    document = SYBIL.parse(page)
    blocks = [fence for fence in read_fences(document.text) if fence.executed]
    return "\n\n".join(
        f"<!-- {number}: {fence.source.strip().splitlines()[-1]} -->\n\n{execute(fence, document).strip()}"
        for number, fence in enumerate(blocks, start=1)
    )


def rewrite_goldens() -> None:
    texts = {golden(page): text for page in PAGES if (text := printed(page))}
    for path in set(GOLDEN.rglob("*.md")) - texts.keys():
        path.unlink()
        print(f"{path.relative_to(ROOT)}: removed, its page prints nothing")
    for path, text in texts.items():
        if not path.is_file() or path.read_text() != text + "\n":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
            print(f"{path.relative_to(ROOT)}: rewritten")


if __name__ == "__main__":
    rewrite_goldens()
