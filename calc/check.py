"""Numbers in prose that are recomputed: `146.3 GB<!--= estimate 70B gpus=8 : states_bytes -->`.

The literal text is what a reader of the file and of a diff sees; the comment asks the command
line's own question again, and the two must agree to the digit.
`53 GB<!--~ text-c -->` is somebody else's number and names its source.
A query is looked up word by word and never evaluated, so a document can ask but not act.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, groupby, islice
from pathlib import Path

from calc.units import UNITS, InputError, decimal, records, unknown

MAX_FILE_BYTES = 10_000_000
MAX_NUMBERS = 10_000
MAX_MARK_LENGTH = 400
MEND = "sixteen-bytes check --fix"

#: What no mark may use: these read files, standard input or marks again, or print.
REFUSED = ("check", "oom", "help")

#: `answer(argv)` of the command line: the JSON value of one command, or an `InputError`.
Answer = Callable[[Sequence[str]], object]

_SCALES: Mapping[str, Fraction] = {name: Fraction(size) for name, size in UNITS.items()} | {
    "%": Fraction(1, 100), "million": Fraction(10**6), "billion": Fraction(10**9)
}  # fmt: skip
_DIGITS = r"(?<![\w.,])[-−]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?"
_WORD = r"(?:[^\W\d_][\w/]*|[%×])\*{0,3}"
#: A number, its unit or a few words, and what may close a phrase: what stands before a mark.
_LITERAL = re.compile(
    rf"(?P<digits>{_DIGITS})[*_]{{0,3}}(?P<unit>(?:{_WORD})?(?:(?:\s{{1,3}}|&nbsp;|-){_WORD}){{0,5}})"
    r"[*_)\]\"'”’]*\Z"
)
_QUANTITY = re.compile(
    rf"{_DIGITS}(?:[\s*_-]|&nbsp;){{1,4}}"
    r"(?:[kKMGTPE]i?B(?![\w/])|(?:bytes?|B)(?:\s?/\s?|\s+(?:per|an?|each)\s+)param\w*)"
)
_MARK = re.compile(r"<!--(?P<kind>[=~])\s*(?P<query>.*?)\s*-->", re.DOTALL)
_LIKE_A_MARK = re.compile(r"<!--\s*[=~]")
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t\r]*\n(?:.*\n)*?(?:---|\.\.\.)[ \t\r]*(?:\n|\Z)")
_FENCE = re.compile(
    r"[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(?P<fence>`{3,}(?=[^`]*\Z)|~{3,})(?P<info>.*)"
)
#: What is not prose. No alternative reads a stretch twice, so a hostile file costs what it weighs.
_OPEN = re.compile(
    r"(?P<opener><!--|<(?:math|style|script|pre|code)\b)|</?[A-Za-z][^<>]*>|\\."
    r"|(?<!`)(?P<ticks>`{1,8})(?!`)(?:(?!\n[ ]*\n)[\s\S])+?(?<!`)(?P=ticks)(?!`)"
    r"|\$\$(?:(?!<!--)[^$])+\$\$|\$(?=[^\s$])(?:(?!<!--)[^$\n])*(?<=\S)\$(?!\d)"
    r"|https?://[^\s<>)\"]+|\]\([^()<\n]*\)"
)
_TABLE_ROW = re.compile(r"[ \t>]{0,80}\|")
_CLOSERS = {"<!--": "-->"} | {
    f"<{tag}": f"</{tag}>" for tag in ("math", "style", "script", "pre", "code")
}
_SEGMENT = re.compile(r"\.?(?P<key>[^.\[\]=\s]+)|\[(?P<by>[\w-]+)=(?P<value>[^\[\]=]+)\]")
_OPTION = re.compile(r"(?:(?P<key>[a-z][a-z0-9-]*)=)?(?P<value>\w[\w.+-]*(?:[/,]\w[\w.+-]*)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number of a document: where it stands, what it says, what it should say."""

    file: str
    line: int
    column: int
    kind: str  # "true", "stale", "cited"; "unmarked"; "unreadable": a mark that asks nothing
    said: str
    computed: str | None
    message: str
    sentence: str
    start: int  # where the digits stand in the text, as they are and as they should be
    digits: tuple[str, str]

    @property
    def ok(self) -> bool:
        """Whether nothing is left to mend here."""
        return self.kind in ("true", "cited")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"

    def as_json(self) -> dict[str, object]:
        """The keys of the command line's contract, and the message."""
        names = ("file", "line", "column", "kind", "said", "computed", "ok", "message")
        return {name: getattr(self, name) for name in names}


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
    return left + right if joined[0] == "+" else left - right if joined[0] == "-" else left * right


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


def prose(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """`text` with all that is not prose blanked, and the span of every mark, also a malformed one.

    Blanked character for character: front matter, code, comments, tags, addresses, formulas.
    Raises `InputError` for a fence that is never closed: it would hide all that follows.
    """
    text = text.replace("\r\n", " \n").replace("\r", "\n")
    front = _FRONT_MATTER.match(text)
    start = front.end() if front else 0
    marks = [found.span() for found in _LIKE_A_MARK.finditer(text, 0, start)]
    pieces, fence, opened = [_blank(text[:start])], "", 0
    for line in re.compile(r"[^\n]*\n?").finditer(text, start):
        found = _FENCE.fullmatch(line[0].rstrip("\n"))
        pieces.append(_blank(line[0]) if found or fence else line[0])
        if found and not fence:
            fence, opened = found["fence"], line.start()
        elif fence and found and found["fence"].startswith(fence) and not found["info"].strip():
            fence = ""
    if fence:
        line_number = text.count("\n", 0, opened) + 1
        raise InputError(f"the fence opened in line {line_number} is never closed")

    text, pieces, position, missing = "".join(pieces), [], 0, set[str]()
    while found := _OPEN.search(text, position):
        start, end = found.span()
        closer = _CLOSERS.get(found["opener"], "")
        if closer and closer not in missing:
            close = text.find(closer, end)
            end = close + len(closer) if close >= 0 else end
            missing |= {closer} if close < 0 else set()
        if _LIKE_A_MARK.match(text, start):
            marks.append((start, end))
            if len(marks) > MAX_NUMBERS:
                raise InputError(f"more than {MAX_NUMBERS:,} marked numbers; split the text")
        pieces += text[position:start], _blank(text[start:end])
        position = end
    return "".join((*pieces, text[position:])), tuple(marks)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def check(text: str, *, file: str, answer: Answer, mend: str = MEND) -> tuple[Finding, ...]:
    """Every marked number of a Markdown text, and every quantity of bytes without a mark, in order.

    `<!--~ id -->` names one of `calc/data/sources.json`, or an address (https://…).
    `mend` is the command that a message tells. Raises `InputError` for what cannot be read at all.
    """
    visible, spans = prose(text)
    front = _FRONT_MATTER.match(text)
    newlines = [-1, *(found.start() for found in re.finditer("\n", visible)), len(visible)]
    ask = lru_cache(maxsize=4096)(answer)
    findings = dict[int, Finding]()

    def note(at: int, kind: str, said: str, message: str, digits: tuple[str, str]) -> None:
        line = bisect_left(newlines, at)
        start, stop = newlines[line - 1] + 1, newlines[line]
        sentence = _MARK.sub("", text[max(start, at - 200) : min(stop, at + 200)]).strip()
        computed = said.replace(*digits, 1) if kind in ("true", "stale") else None
        findings[at] = Finding(
            file=file, line=line, column=at - start + 1, kind=kind, said=said, computed=computed,
            message=message, sentence=sentence, start=at, digits=digits,
        )  # fmt: skip

    quantities = list(islice(_QUANTITY.finditer(visible), 2 * MAX_NUMBERS + 1))
    if len(quantities) > 2 * MAX_NUMBERS:
        raise InputError(f"more than {2 * MAX_NUMBERS:,} quantities of bytes; split the text")
    for start, end in spans:
        literal = _LITERAL.search(visible, max(0, start - 160), start)
        digits, unit = (literal["digits"], literal["unit"]) if literal else ("", "")
        at = literal.start() if literal else start
        said = " ".join(re.sub(r"[*_]{1,3}|&nbsp;", " ", digits + unit).split())
        row = newlines[bisect_left(newlines, start) - 1] + 1
        try:
            mark = _MARK.fullmatch(text, start, end)
            if front and start < front.end():
                raise InputError("marks are not read in front matter; leave the number out")
            if _TABLE_ROW.match(visible, row) or " | " in visible[max(row, start - 200) : start]:
                raise InputError("marks are not read in table cells; let calc print the table")
            if not mark:
                raise InputError("this mark is never closed, or has a space after <!--")
            if not literal:
                raise InputError("no number stands right before this mark")
            source = " ".join(mark["query"].split())
            if mark["kind"] == "=":
                computed = _written(query(source, ask), digits, unit)
                kind = "true" if computed == digits else "stale"
                asks = f"computed {said.replace(digits, computed, 1)} ({source}); run {mend}"
                note(at, kind, said, f"said {said}, {asks}", (digits, computed))
            else:
                sources = [str(record["id"]) for record in records("sources")]
                if source not in sources and not re.fullmatch(r"https?://\S+", source):
                    raise unknown("source", source, sources)
                note(at, "cited", said, f"{said}, from {source}", (digits, digits))
        except InputError as error:
            note(
                at,
                "unreadable",
                said,
                f"{error}; mend this mark by hand, then run {mend}",
                (digits, digits),
            )
    for found in quantities:
        if found.start() not in findings:
            advice = f"write <!--= query --> behind it, or <!--~ source -->, then run {mend}"
            said = " ".join(found[0].split())
            note(found.start(), "unmarked", said, f"{said} has no mark: {advice}", ("", ""))
    return tuple(findings[at] for at in sorted(findings))


def _written(value: Fraction, said: str, unit: str) -> str:
    """`value` in the unit, with the decimals and the thousands separators of what is said."""
    word = re.match(r"(?:[\s*_-]|&nbsp;)*([^\W\d_]+|%)?", unit)
    name = (word and word[1]) or ""
    if re.fullmatch(r"[kKMGTPE]i?[bB]", name) and name not in UNITS:
        raise unknown("unit", name, UNITS)
    head, _, decimals = said.partition(".")
    text = decimal(value / _SCALES.get(name, Fraction(1)), len(decimals))
    return text if "," in said or len(head) < 4 else text.replace(",", "")


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
