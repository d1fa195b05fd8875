"""A Markdown file or a notebook: what its marks say, and its stale numbers rewritten."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path

from calc.check.marks import MEND, Finding, check
from calc.check.queries import Answer
from calc.units import InputError

MAX_FILE_BYTES = 10_000_000


def check_file(
    path: str, *, answer: Answer, fix: bool = False, mend: str = MEND
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What a Markdown file or notebook says now, and what of it `fix` has rewritten.

    `fix` replaces the digits of stale numbers and nothing else, all of a file's or none.
    Raises `InputError` for a file that is missing, too large, no text, or no notebook.
    """
    ask = lru_cache(maxsize=4096)(answer)
    findings = list[Finding]()
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
        mode = target.stat().st_mode
        if not stat.S_ISREG(mode) or target.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"not a file of at most {MAX_FILE_BYTES:,} bytes")
        raw = target.read_bytes().decode()
        if "\0" in raw:
            raise InputError("holds a NUL character, so it is no text")
        newlines = [-1, *(found.start() for found in re.finditer("\n", raw))]
        texts = _cells(raw) if path.endswith(".ipynb") else [(raw, range(len(raw) + 1))]
        for text, offsets in texts:
            for found in check(text, file=path, answer=ask, mend=mend):
                at = offsets[found.start]
                line = bisect_left(newlines, at)
                column = at - newlines[line - 1]
                findings.append(replace(found, start=at, line=line, column=column))
        stale = tuple(found for found in findings if found.kind == "stale")
        if not fix or not stale:
            return tuple(findings), ()
        pieces, position = list[str](), 0
        for found in stale:
            pieces += raw[position : found.start], found.digits[1]
            position = found.start + len(found.digits[0])
        _write(target, "".join((*pieces, raw[position:])), stat.S_IMODE(mode))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not valid UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (InputError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    return check_file(path, answer=ask, mend=mend)[0], stale


def _cells(raw: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Each Markdown cell of a notebook, and where each of its characters stands in the file."""
    try:
        tokens = re.finditer(r'"(?:[^"\\]|\\.)*"', raw)
        pairs = list(zip(tokens, _strings(json.loads(raw)), strict=True))
    except (ValueError, RecursionError):
        raise InputError("not a notebook") from None
    char = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\?.")
    for is_prose, group in groupby(pairs, key=lambda pair: pair[1]):
        if is_prose:
            cell = [token for token, _ in group]
            inner = [char.finditer(raw, token.start() + 1, token.end() - 1) for token in cell]
            offsets = [found.start() for found in chain(*inner)]
            text = "".join(json.loads(token[0]) for token in cell)
            yield re.sub(r"[\ud800-\udfff]", "?", text), [*offsets, cell[-1].end()]


def _strings(value: object, inside: bool = False) -> Iterator[bool]:
    """For each string of a JSON document, in the file's order: is it Markdown source?"""
    if isinstance(value, str):
        yield inside
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, inside)
    elif isinstance(value, dict):
        markdown = value.get("cell_type") == "markdown"
        for key, item in value.items():
            yield False
            yield from _strings(item, inside or (markdown and key == "source"))


def _write(target: Path, text: str, mode: int) -> None:
    """Puts `text` in the place of `target` in one step, so that no reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(handle, "wb") as new:  # noqa: PTH123 (a descriptor, not a path)
            new.write(text.encode())
        Path(name).chmod(mode)
        Path(name).replace(target)
    except OSError:
        Path(name).unlink()
        raise
