"""Figures as inline SVG that follows the colour scheme and stays readable on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from html import escape

from calc.tables.text import TITLES, size
from calc.units import decimal

_ROW = 46


def bars(
    rows: Mapping[str, Mapping[str, int]],
    limit: int,
    limit_name: str,
    title: str,
    description: str,
    *,
    notes: Mapping[str, str] | None = None,
    whole: Mapping[str, int] | None = None,
) -> str:
    """Stacked bars as inline SVG with a legend: one per row, the card's limit through each.

    Widths are per cent of the frame and text keeps its size, so that it is readable on a phone;
    colours are CSS variables of the scheme. Bytes in, GB in the labels; no limit is drawn where it
    is 0.
    `notes` says something after a row's size, `whole` underlines the first bytes of a bar.
    """
    widest = max(limit, *(sum(parts.values()) for parts in rows.values()))
    ident = "fig-" + "".join(c if c.isalnum() else "-" for c in title.lower())
    height = _ROW * len(rows)
    out = [
        f'<figure class="fig"><svg class="fig-bars" role="img" width="100%" height="{height}" '
        f'aria-labelledby="{ident}-t {ident}-d">',
        f'<title id="{ident}-t">{escape(title)}</title>',
        f'<desc id="{ident}-d">{escape(description)}</desc>',
    ]
    if limit:
        width = _share(limit, widest)
        out.append(f'<rect class="fig-card" x="0" y="0" width="{width}" height="{height}"/>')
    labels = []
    for index, (name, parts) in enumerate(rows.items()):
        top = _ROW * index
        said = " · ".join(filter(None, (name, size(sum(parts.values())), (notes or {}).get(name))))
        labels.append(f'<text class="fig-label" x="0" y="{top + 15}">{escape(said)}</text>')
        out += _bar(parts, top, widest)
        if whole and whole[name]:
            width, low = _share(whole[name], widest), top + 41
            out.append(f'<rect class="fig-whole" x="0" y="{low}" width="{width}" height="3"/>')
    used = dict.fromkeys(
        line for parts in rows.values() for line, amount in parts.items() if amount
    )
    keys = {f"series-{line}": TITLES.get(line, line) for line in used}
    if whole:
        keys["fig-whole"] = "Whole on every GPU"
    if limit:
        out += _limit(_share(limit, widest), len(rows))
        keys["fig-limit"] = f"{limit_name} · {size(limit, 'GB', 2)}"
    legend = "".join(
        f'<li><span class="fig-key {key}"></span>{escape(said)}</li>' for key, said in keys.items()
    )
    return "".join((*out, *labels)) + f'</svg><ul class="fig-legend">{legend}</ul></figure>'


def _share(num_bytes: int, widest: int) -> str:
    return f"{decimal(Fraction(100 * num_bytes, widest), 2).replace(',', '')}%"


def _bar(parts: Mapping[str, int], top: int, widest: int) -> Iterator[str]:
    start = 0
    for line, amount in parts.items():
        if amount:
            yield (
                f'<rect class="fig-bar series-{line}" x="{_share(start, widest)}" y="{top + 21}" '
                f'width="{_share(amount, widest)}" height="18">'
                f"<title>{escape(TITLES.get(line, line))}: {size(amount)}</title></rect>"
            )
        start += amount


def _limit(at: str, count: int) -> Iterator[str]:
    """The card's limit, beside the bars only, so that it strikes out no label."""
    for index in range(count):
        top = _ROW * index + 18
        yield f'<line class="fig-limit" x1="{at}" x2="{at}" y1="{top}" y2="{top + 24}"/>'
