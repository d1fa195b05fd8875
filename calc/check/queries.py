"""A mark's query → the number that the command line answers, looked up word by word."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from calc.units import InputError, unknown

MAX_MARK_LENGTH = 400
#: What no mark may use: these read files, standard input or marks again, or print.
REFUSED = ("check", "oom", "help")
#: `answer(argv)` of the command line: the JSON value of one command, or an `InputError`.
Answer = Callable[[Sequence[str]], object]

_SEGMENT = re.compile(r"\.?(?P<key>[^.\[\]=\s]+)|\[(?P<by>[\w-]+)=(?P<value>[^\[\]=]+)\]")
_OPTION = re.compile(r"(?:(?P<key>[a-z][a-z0-9-]*)=)?(?P<value>\w[\w.+-]*(?:[/,]\w[\w.+-]*)*)")


def query(source: str, answer: Answer) -> Fraction:
    """The number that a mark's query returns, exactly, in the JSON's own unit (bytes, a count).

    Grammar: `subcommand [name…] key=value… : path.to.value`, or two such joined by ` + `, ` - `,
    ` * ` or ` / `; a path takes keys, positions, and `rows[gpu=h200]` for the row of that name.
    Raises `InputError` where it is no query, the command refuses, or the value is no number.

    >>> query("params 70B : params_total", lambda argv: {"params_total": 70_000_000_000})
    Fraction(70000000000, 1)
    """
    if len(source) > MAX_MARK_LENGTH:
        raise InputError(f"a mark is at most {MAX_MARK_LENGTH} characters long")
    first, *joined = re.split(r"\s([-+*/])\s", source)
    if len(joined) not in (0, 2):
        raise InputError("a mark holds one query, or two joined by one of + - * /")
    left = _ask(first, answer)
    if not joined:
        return left
    right = _ask(joined[1], answer)
    if joined[0] == "/":
        if not right:
            raise InputError(f"{joined[1].strip()!r} is 0 and divides nothing")
        return left / right
    if joined[0] == "*":
        return left * right
    return left + right if joined[0] == "+" else left - right


def _ask(source: str, answer: Answer) -> Fraction:
    words, colon, path = re.sub(r"\s+", " ", source).strip().partition(" : ")
    command, *options = words.split() or [""]
    if not colon or not path:
        raise InputError(f"no query: {source.strip()[:60]!r}; write 'subcommand key=value : path'")
    argv = [command]
    for option in options:
        found = _OPTION.fullmatch(option)
        if not found or ".." in option or command in REFUSED or found["key"] in REFUSED:
            raise InputError(
                f"a mark cannot ask {command[:20]!r} with {option[:60]!r}; write key=value"
            )
        argv += [f"--{found['key']}", found["value"]] if found["key"] else [found["value"]]
    value = _follow(answer(tuple(argv)), path)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
        return Fraction(repr(value))
    raise InputError(f"{path[:60]!r} is {json.dumps(value, default=str)[:40]}, not a number")


def _follow(value: object, path: str) -> object:
    position = 0
    while position < len(path):
        found = _SEGMENT.match(path, position)
        if not found:
            raise InputError(f"cannot read the path {path[:60]!r} from {path[position:][:20]!r} on")
        key, position = found["key"], found.end()
        if isinstance(value, Mapping):
            if not key or key not in value:
                raise unknown("key", found[0].lstrip("."), map(str, value))
            value = value[key]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            rows = [row if isinstance(row, Mapping) else {} for row in value]
            names = [str(at if key else row.get(found["by"])) for at, row in enumerate(rows)]
            if (name := key or found["value"]) not in names:
                raise unknown(found["by"] or "position", name, names[:40])
            value = value[names.index(name)]
        else:
            raise InputError(f"{path[:60]!r} goes on after {value!r:.40}, which has no parts")
    return value
