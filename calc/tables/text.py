"""The pieces of every table: cells, the Markdown table itself, the names of the ledger's lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from calc.units import decimal, text

#: Ledger lines in the order in which every table and figure shows them.
LINES = ("weights", "master", "gradients", "optimizer")
TITLES = {
    "weights": "Weights",
    "master": "Master copy",
    "gradients": "Gradients",
    "optimizer": "Optimizer state",
    "bucket": "Gradient bucket (DDP)",
    "activations": "Activations",
    "overhead": "Overhead",
    "transient": "Gathered and in flight",
    "allowance": "Allowance",
}


def markdown(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, total: bool = False
) -> str:
    """A Markdown table; a leading `>` aligns a column right, `total` makes the last row bold.

    >>> print(markdown(["Line", ">GB"], [["weights", "1.0"]]))
    | Line | GB |
    | --- | --: |
    | weights | 1.0 |
    """
    body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    if total and body:
        body[-1] = [f"**{cell}**" if cell else "" for cell in body[-1]]
    rule = ["--:" if column.startswith(">") else "---" for column in columns]
    lines = [[column.removeprefix(">") for column in columns], rule, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(count: int | None, decimals: int = 0) -> str:
    """A count with thousands separators, or `–` for None."""
    return "–" if count is None else decimal(count, decimals)


def size(num_bytes: int | None, unit: str = "GB", decimals: int = 1) -> str:
    """Bytes as text, or `–` where the amount is None."""
    return "–" if num_bytes is None else text(num_bytes, unit, decimals)


def per_param(num_bytes: int, num_params: int, decimals: int = 2) -> str:
    """Bytes per parameter, a derived average, without trailing zeros.

    >>> per_param(128, 8), per_param(39, 16)
    ('16', '2.44')
    """
    found = decimal(Fraction(num_bytes, num_params), decimals)
    return found.rstrip("0").rstrip(".") if "." in found else found


def over(need: int, visible: int | None) -> str:
    """By how much a need passes or leaves room under what a process sees."""
    if visible is None:
        return "not known"
    if need > visible:
        return f"{size(need - visible)} too much"
    return f"{size(visible - need)} left"


def short(name: str) -> str:
    return name.split(" (")[0]
