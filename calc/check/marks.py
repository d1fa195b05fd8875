"""Every marked number of a Markdown text, and whether it is still true."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from calc.check.markdown import FRONT_MATTER, MAX_NUMBERS, prose
from calc.check.queries import Answer, query
from calc.units import UNITS, InputError, decimal, records, unknown

MEND = "sixteen-bytes check --fix"
_SCALES: Mapping[str, Fraction] = {name: Fraction(size) for name, size in UNITS.items()} | {
    "%": Fraction(1, 100), "million": Fraction(10**6), "billion": Fraction(10**9)
}  # fmt: skip
_DIGITS = r"(?<![\w.,])[-−]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?"
_WORD = r"(?:[^\W\d_][\w/]*|[%×])\*{0,3}"
#: A number, its unit or a few words, and what may close a phrase: what stands before a mark.
_LITERAL = re.compile(
    rf"(?P<digits>{_DIGITS})[*_]{{0,3}}"
    rf"(?P<unit>(?:{_WORD})?(?:(?:\s{{1,3}}|&nbsp;|-){_WORD}){{0,5}})"
    r"[*_)\]\"'”’]*\Z"
)
_QUANTITY = re.compile(
    rf"{_DIGITS}(?:[\s*_-]|&nbsp;){{1,4}}"
    r"(?:[kKMGTPE]i?B(?![\w/])|(?:bytes?|B)(?:\s?/\s?|\s+(?:per|an?|each)\s+)param\w*)"
)
_MARK = re.compile(r"<!--(?P<kind>[=~])\s*(?P<query>.*?)\s*-->", re.DOTALL)
_TABLE_ROW = re.compile(r"[ \t>]{0,80}\|")


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


@dataclass(frozen=True, slots=True)
class _Page:
    """A text with all that is not prose blanked, and where its lines and its front matter end."""

    file: str
    text: str
    visible: str
    newlines: Sequence[int]
    front: int

    def finding(
        self, at: int, kind: str, said: str, message: str, digits: tuple[str, str]
    ) -> Finding:
        line = bisect_left(self.newlines, at)
        start, stop = self.newlines[line - 1] + 1, self.newlines[line]
        around = self.text[max(start, at - 200) : min(stop, at + 200)]
        computed = said.replace(*digits, 1) if kind in ("true", "stale") else None
        return Finding(
            file=self.file, line=line, column=at - start + 1, kind=kind, said=said,
            computed=computed, message=message, sentence=_MARK.sub("", around).strip(),
            start=at, digits=digits,
        )  # fmt: skip

    def mark(self, start: int, end: int) -> re.Match[str]:
        """The mark that stands there; raises `InputError` where none is read."""
        row = self.newlines[bisect_left(self.newlines, start) - 1] + 1
        if start < self.front:
            raise InputError("marks are not read in front matter; leave the number out")
        before = self.visible[max(row, start - 200) : start]
        if _TABLE_ROW.match(self.visible, row) or " | " in before:
            raise InputError("marks are not read in table cells; let calc print the table")
        found = _MARK.fullmatch(self.text, start, end)
        if not found:
            raise InputError("this mark is never closed, or has a space after <!--")
        return found


def check(text: str, *, file: str, answer: Answer, mend: str = MEND) -> tuple[Finding, ...]:
    """Every marked number of a Markdown text, and every quantity of bytes without a mark, in order.

    `<!--~ id -->` names one of `calc/data/sources.json`, or an address (https://…).
    `mend` is the command that a message tells. Raises `InputError` for what cannot be read at all.
    """
    visible, spans = prose(text)
    front = FRONT_MATTER.match(text)
    newlines = [-1, *(found.start() for found in re.finditer("\n", visible)), len(visible)]
    page = _Page(file, text, visible, newlines, front.end() if front else 0)
    quantities = list(islice(_QUANTITY.finditer(visible), 2 * MAX_NUMBERS + 1))
    if len(quantities) > 2 * MAX_NUMBERS:
        raise InputError(f"more than {2 * MAX_NUMBERS:,} quantities of bytes; split the text")
    ask = lru_cache(maxsize=4096)(answer)
    marked = (_marked(page, start, end, ask, mend) for start, end in spans)
    findings = {finding.start: finding for finding in marked}
    advice = f"write <!--= query --> behind it, or <!--~ source -->, then run {mend}"
    for found in quantities:
        at, said = found.start(), " ".join(found[0].split())
        if at not in findings:
            message = f"{said} has no mark: {advice}"
            findings[at] = page.finding(at, "unmarked", said, message, ("", ""))
    return tuple(findings[at] for at in sorted(findings))


def _marked(page: _Page, start: int, end: int, ask: Answer, mend: str) -> Finding:
    """The number right before a mark: is it true, stale, cited, or is the mark unreadable?"""
    literal = _LITERAL.search(page.visible, max(0, start - 160), start)
    digits, unit = (literal["digits"], literal["unit"]) if literal else ("", "")
    at = literal.start() if literal else start
    said = " ".join(re.sub(r"[*_]{1,3}|&nbsp;", " ", digits + unit).split())
    try:
        mark = page.mark(start, end)
        if not literal:
            raise InputError("no number stands right before this mark")
        source = " ".join(mark["query"].split())
        if mark["kind"] == "~":
            _named_source(source)
            return page.finding(at, "cited", said, f"{said}, from {source}", (digits, digits))
        computed = _written(query(source, ask), digits, unit)
    except InputError as error:
        message = f"{error}; mend this mark by hand, then run {mend}"
        return page.finding(at, "unreadable", said, message, (digits, digits))
    kind = "true" if computed == digits else "stale"
    asks = f"computed {said.replace(digits, computed, 1)} ({source}); run {mend}"
    return page.finding(at, kind, said, f"said {said}, {asks}", (digits, computed))


def _named_source(source: str) -> None:
    known = [str(record["id"]) for record in records("sources")]
    if source not in known and not re.fullmatch(r"https?://\S+", source):
        raise unknown("source", source, known)


def _written(value: Fraction, said: str, unit: str) -> str:
    """`value` in the unit, with the decimals and the thousands separators of what is said."""
    word = re.match(r"(?:[\s*_-]|&nbsp;)*([^\W\d_]+|%)?", unit)
    name = (word and word[1]) or ""
    if re.fullmatch(r"[kKMGTPE]i?[bB]", name) and name not in UNITS:
        raise unknown("unit", name, UNITS)
    head, _, decimals = said.partition(".")
    text = decimal(value / _SCALES.get(name, Fraction(1)), len(decimals))
    return text if "," in said or len(head) < 4 else text.replace(",", "")
