"""Reads the fenced blocks of a Markdown text, and refuses what the site would misread in silence.

SuperFences turns a fence with a malformed header into inline code and markdown-exec ignores a
misspelt option, both without a word. Here either is an error with its line number.
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LANGUAGES = ("python", "console", "sh", "json", "yaml", "toml", "diff", "text", "markdown")
SWITCHES = ("1", "true", "on")
SOURCES = ("above", "below", "block", "tabbed-left", "tabbed-right")

_LINE = re.compile(r"(?P<indent>[ >]*)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)")
_INFO = re.compile(r'(?P<language>[a-z]+)(?P<options>( [a-z_]+="[^"]*")*)')
_OPTION = re.compile(r' ([a-z_]+)="([^"]*)"')
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_ANYTHING = re.compile(r".+")

_SHOWN = {
    "title": _ANYTHING,
    "linenums": re.compile(r"[1-9]\d*"),
    "hl_lines": re.compile(r"\d+(-\d+)?( \d+(-\d+)?)*"),
}
_EXECUTED = {
    "exec": re.compile("|".join(SWITCHES)),
    "html": re.compile("|".join(SWITCHES)),
    "source": re.compile("|".join(SOURCES)),
    "result": re.compile("|".join(LANGUAGES)),
    "session": _NAME,
    "id": _NAME,
    "idprefix": re.compile(r"([a-z0-9-]*)"),
    "tabs": re.compile(r"[^|]+\|[^|]+"),
    "title": _ANYTHING,
}


class FenceError(ValueError):
    """A fenced block that would not be published as it was meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fenced block: the line of its opening, its language, its options and its dedented text."""

    line: int
    language: str
    options: Mapping[str, str]
    source: str

    @property
    def executed(self) -> bool:
        """Whether the build runs this block and publishes what it prints."""
        return "exec" in self.options


def read_fences(markdown: str) -> tuple[Fence, ...]:
    """Return every fenced block of a Markdown text, in order; raise FenceError for the first bad one.

    A header is a language and options, separated by one space: `python exec="1" source="above"`.
    """
    fences: list[Fence] = []
    opening: re.Match[str] | None = None
    start = 0
    body: list[str] = []
    for number, line in enumerate(markdown.splitlines(), start=1):
        match = _LINE.fullmatch(line.rstrip())
        if opening is None:
            if match:
                opening, start, body = match, number, []
        elif match and not match["info"] and _closes(match, opening):
            fences.append(_fence(start, opening, body))
            opening = None
        else:
            body.append(line.removeprefix(opening["indent"]))
    if opening is not None:
        raise FenceError(f"line {start}: this fence is never closed with {opening['ticks']}")
    return tuple(fences)


def _closes(closing: re.Match[str], opening: re.Match[str]) -> bool:
    return closing["indent"] == opening["indent"] and closing["ticks"].startswith(opening["ticks"])


def _fence(line: int, opening: re.Match[str], body: list[str]) -> Fence:
    info = _INFO.fullmatch(opening["info"])
    if not info:
        raise FenceError(
            f"line {line}: cannot read the fence header {opening['info']!r}; "
            'it is a language and then options, as in: python exec="1" source="above"'
        )
    language = info["language"]
    if language not in LANGUAGES:
        raise FenceError(f"line {line}: unknown fence language {language!r}; known: {', '.join(LANGUAGES)}")
    pairs = _OPTION.findall(info["options"])
    options = dict(pairs)
    if len(options) < len(pairs):
        raise FenceError(f"line {line}: a fence option is given twice in {opening['info']!r}")
    allowed = _EXECUTED if "exec" in options else _SHOWN
    for name, value in options.items():
        if name not in allowed:
            raise FenceError(f"line {line}: unknown fence option {name!r}; allowed here: {', '.join(allowed)}")
        if not allowed[name].fullmatch(value):
            raise FenceError(f"line {line}: fence option {name}={value!r} is not of the form {allowed[name].pattern}")
    if "exec" in options and language != "python":
        raise FenceError(f"line {line}: only python blocks are executed, not {language}")
    return Fence(
        line=line,
        language=language,
        options=MappingProxyType(options),
        source=textwrap.dedent("\n".join(body)) + "\n",
    )
