"""What of a Markdown text is prose, and where its marks stand."""

from __future__ import annotations

import re

from calc.units import InputError

MAX_NUMBERS = 10_000
_LIKE_A_MARK = re.compile(r"<!--\s*[=~]")
FRONT_MATTER = re.compile(r"\ufeff?---[ \t\r]*\n(?:.*\n)*?(?:---|\.\.\.)[ \t\r]*(?:\n|\Z)")
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
_CLOSERS = {"<!--": "-->"} | {
    f"<{tag}": f"</{tag}>" for tag in ("math", "style", "script", "pre", "code")
}


def prose(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """`text` with all that is not prose blanked, and the span of every mark, also a malformed one.

    Blanked character for character: front matter, code, comments, tags, addresses, formulas.
    Raises `InputError` for a fence that is never closed: it would hide all that follows.
    """
    text = text.replace("\r\n", " \n").replace("\r", "\n")
    front = FRONT_MATTER.match(text)
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
