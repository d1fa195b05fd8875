"""The part of YAML that training configs use: nested mappings, scalars and lists of them.

Anchors, aliases and tags are refused before anything could expand, so a file costs no more than its
own size.
"""

from __future__ import annotations

import re
from typing import NoReturn

from calc.units import InputError

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][\d_]{0,30})(\.[\d_]*)?([eE][-+]\d{1,3})?")
_ODD = re.compile(r"[-+]?(?:0[\dxob_][\da-fA-F_]*|[\d_]+(?::[\d_.]+)+|\d{4}-\d\d?-\d\d?.*|\.\d.*)")
_PAIR = re.compile(r"""("[^"\\]*"|'[^']*'|[^\s\-?:,\[\]{}#&*!|>'"%@`][^:#]*?)\s*:(?:\s+(.*))?""")
_QUOTED = re.compile(r"""(?:'((?:[^']|'')*)'|"([^"\\]*)")(?:\s+#.*)?""")
_INLINE = re.compile(r"\{(?!.*,\s*- )([^{}\[\]'\"#]+)\}(?:\s+#.*)?")
_REFUSED = {
    "&": "anchors",
    "*": "aliases",
    "!": "tags",
    "{": "inline mappings",
    "[": "inline lists",
}
_MAX_DEPTH = 20

Lines = list[tuple[int, int, str]]


def load(text: str) -> dict[str, object]:
    """The mapping that a YAML text holds; `InputError`, with the line, for what is not read.

    >>> load("distributed_type: FSDP\\nfsdp_config:\\n  fsdp_version: 2\\n")
    {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_version': 2}}
    """
    lines: Lines = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare and bare[0] != "#" and not (bare == "---" and not lines):
            lines.append((number, len(line) - len(line.lstrip(" ")), bare))
    if not lines or not _PAIR.fullmatch(lines[0][2]):
        raise InputError("is no YAML mapping of keys")
    found, rest = _mapping(lines, 0, 0)
    if rest < len(lines):
        _refuse(lines[rest][0], "is indented unlike the lines before it")
    return found


def _refuse(number: int, why: str) -> NoReturn:
    raise InputError(f"line {number} {why}")


def _mapping(lines: Lines, start: int, depth: int) -> tuple[dict[str, object], int]:
    """The mapping that begins on line `start`, and the index of the line after it."""
    found: dict[str, object] = {}
    indent = lines[start][1]
    while start < len(lines) and lines[start][1] == indent:
        number, _, text = lines[start]
        pair = _PAIR.fullmatch(text)
        if not pair or depth > _MAX_DEPTH:
            _refuse(
                number, f"is not 'key: value': {text[:40]!r}" if not pair else "is nested too deep"
            )
        key = pair[1][1:-1] if pair[1][0] in "'\"" else pair[1]
        value, start = re.sub("^#.*", "", pair[2] or ""), start + 1
        if key in found or key == "<<":
            _refuse(
                number,
                f"has key {key!r}, which is {'given twice' if key in found else 'not read here'}",
            )
        found[key] = _value(value, number)
        if (
            not value
            and start < len(lines)
            and lines[start][2].startswith("- ")
            and lines[start][1] >= indent
        ):
            items, inner = [], lines[start][1]
            while (
                start < len(lines) and lines[start][1] == inner and lines[start][2].startswith("- ")
            ):
                items.append(_value(lines[start][2][2:].strip(), lines[start][0]))
                start += 1
            found[key] = items
        elif not value and start < len(lines) and lines[start][1] > indent:
            found[key], start = _mapping(lines, start, depth + 1)
    return found, start


def _value(text: str, number: int) -> object:
    if text in ("{}", "[]"):
        return {} if text == "{}" else []
    if inline := _INLINE.fullmatch(text):
        lines = [(number, 0, part.strip()) for part in inline[1].split(",")]
        return _mapping(lines, 0, _MAX_DEPTH)[0] if inline[1].strip() else {}
    if text[:1] in tuple("&*!|>?%@`{["):
        _refuse(
            number, f"has what is not read here, {_REFUSED.get(text[0], text[0])}: {text[:40]!r}"
        )
    if text[:1] in ("'", '"'):
        if not (quoted := _QUOTED.fullmatch(text)):
            _refuse(number, f"has quoted text that cannot be read: {text[:40]!r}")
        return quoted[2] if quoted[1] is None else quoted[1].replace("''", "'")
    text = re.sub(r"\s#.*", "", text).strip()
    if _ODD.fullmatch(text) or f"{text} "[:2] == "- " or ": " in f"{text} ":
        _refuse(number, f"has what is not read here: {text[:40]!r}")
    if number_found := _NUMBER.fullmatch(text):
        if number_found[1] is not None:
            return float(text.replace("_", ""))
        return text if number_found[2] else int(text.replace("_", ""))
    return None if text.lower() in ("", "null", "~") else _WORDS.get(text.lower(), text)
