"""argv → text or JSON. The only room that prints, reads argv or ends a process.

`answer` is the JSON value of a command; `main` prints it, as text unless `--json` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from calc import gpus
from calc.answers import ANSWERS, Json, runs
from calc.options import parser
from calc.tables.plain import plain
from calc.units import InputError, named
from calc.units import text as written

__all__ = ["answer", "calculated", "main", "parser"]


def answer(argv: Sequence[str]) -> Json:
    """The JSON value of a command, as `--json` prints it; `InputError` for bad input.

    >>> answer(["estimate", "70B", "--gpus", "8"])["states_bytes"]
    140000000000
    """
    args = parser().parse_args(list(argv))
    return named("question", args.command, ANSWERS)(args)


def calculated(argv: Sequence[str]) -> tuple[str, str]:
    """What the calculator page shows for `estimate … --gpu G`: `html`, or `error` and the line."""
    from calc.tables.calculator import calculator

    try:
        args = parser().parse_args(list(argv))
        return "html", calculator(runs.estimate_of(args), gpus.get(args.gpu))
    except InputError as error:
        return "error", f"error: {_line(error)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and print its answer; 0, or 2 with one `error:` line for bad input."""
    for stream in (sys.stdin, sys.stdout):
        # Input that was read before keeps its errors; what cannot be written becomes \u2192.
        with contextlib.suppress(io.UnsupportedOperation):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
    try:
        status = _main(argv)
        if sys.stdout:
            sys.stdout.flush()  # here, and not at Python's end, where a full disk is a traceback
    except InputError as error:
        print(f"error: {_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: cannot print the answer: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _main(argv: Sequence[str] | None) -> int:
    args = parser().parse_args(argv)
    if args.command == "check":
        return _check(args)
    found = ANSWERS[args.command](args)
    print(json.dumps(found, indent=2) if args.json else plain(args.command, found))
    if getattr(args, "gate", None):
        return _gate(args.gate, found)
    if args.command == "config" and isinstance(found, dict) and not args.json:
        beside = "".join(f"# {line}\n" for line in found["beside"])  # JSON has no comments
        print(beside, end="", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print what is not true, and each mended number as old → new; 0 true, 1 stale, 2 unreadable.

    A file that cannot be read is told on stderr and left alone; the others are checked.
    """
    from calc import check

    ask, status, findings = cache(answer), 0, list[check.Finding]()
    for path in args.files:
        try:
            left, rewritten = check.check_file(path, answer=ask, fix=args.fix)
        except InputError as error:
            print(f"error: {_line(error)}", file=sys.stderr)
            status = 2
            continue
        findings += (f for f in left if not args.only_marked or f.kind != "unmarked")
        for stale in rewritten if not args.json else ():
            place, mended = f"{stale.file}:{stale.line}", f"{stale.said} → {stale.computed}"
            print(_line(f"{place}: {mended} in: {stale.sentence}"))
    if args.json:
        print(json.dumps([finding.as_json() for finding in findings], indent=2))
    for finding in findings if not args.json else ():
        if not finding.ok:
            print(_line(finding))
    wrong = [2 if found.kind == "unreadable" else 1 for found in findings if not found.ok]
    return max(status, *wrong, 0)


def _line(told: object) -> str:
    """One line that no terminal reads as a command, whatever was put into a message."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(told))


def _gate(least: str, answer: Any) -> int:
    """0 where the verdict is `least` or better, else 1 and a line on stderr that says why."""
    if answer["verdict"] in ("fits", least):
        return 0
    phase, low = answer["peak"]["phase"], answer["peak"]["low"]
    line = max(answer["phases"][phase]["lines"], key=lambda line: line["bytes"])
    print(
        f"gate: {answer['verdict']}: needs {written(low)} to {written(answer['peak']['high'])}, "
        f"{answer['gpu']} shows {written(answer['visible_bytes'])}; "
        f"most of it is {line['line']}, {written(line['bytes'])} in {phase}",
        file=sys.stderr,
    )
    return 1
