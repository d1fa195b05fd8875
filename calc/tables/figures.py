"""Figures as inline SVG that follows the colour scheme and stays readable on a phone."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from html import escape

from calc.tables.text import TITLES, size
from calc.units import decimal


def bars(rows: Mapping[str, Mapping[str, int]], limit: int, limit_name: str, title: str, description: str) -> str:
    """A stacked-bar figure as inline SVG with its legend: one bar per row, the card's limit drawn in.

    Widths are per cent of the frame and text keeps its size, so that it is readable on a phone;
    colours are CSS variables of the scheme. Bytes in, GB in the labels.
    """
    widest = max(limit, *(sum(parts.values()) for parts in rows.values()))

    def share(num_bytes: int) -> str:
        return f"{decimal(Fraction(100 * num_bytes, widest), 2).replace(',', '')}%"

    ident = "fig-" + "".join(c if c.isalnum() else "-" for c in title.lower())
    height = 46 * len(rows) + 26
    at, flip = share(limit), limit * 2 > widest
    out = [
        f'<figure class="fig"><svg class="fig-bars" role="img" width="100%" height="{height}" '
        f'aria-labelledby="{ident}-t {ident}-d">',
        f'<title id="{ident}-t">{escape(title)}</title>',
        f'<desc id="{ident}-d">{escape(description)}</desc>',
    ]
    for index, (name, parts) in enumerate(rows.items()):
        top, start = 46 * index, 0
        out.append(f'<text class="fig-label" x="0" y="{top + 15}">{escape(name)} · {size(sum(parts.values()))}</text>')
        for line, amount in parts.items():
            if amount:
                out.append(
                    f'<rect class="fig-bar series-{line}" x="{share(start)}" y="{top + 21}" '
                    f'width="{share(amount)}" height="18"><title>{escape(TITLES.get(line, line))}: '
                    f"{size(amount)}</title></rect>"
                )
            start += amount
        out.append(f'<line class="fig-limit" x1="{at}" x2="{at}" y1="{top + 18}" y2="{top + 42}"/>')
    out.append(
        f'<text class="fig-limit-label" x="{at}" y="{height - 6}" dx="{-4 if flip else 4}" '
        f'text-anchor="{"end" if flip else "start"}">{escape(limit_name)} · {size(limit, "GB", 2)}</text>'
    )
    used = dict.fromkeys(line for parts in rows.values() for line, amount in parts.items() if amount)
    legend = "".join(
        f'<li><span class="fig-key series-{line}"></span>{escape(TITLES.get(line, line))}</li>' for line in used
    )
    return "".join(out) + f'</svg><ul class="fig-legend">{legend}</ul></figure>'
