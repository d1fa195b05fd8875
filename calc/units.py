"""Bytes are integers; this is the only room where they become text.

GB is 10⁹ bytes and GiB is 2³⁰ bytes, as in ISO/IEC 80000-13.
A gigabyte figure without its unit is how the published numbers came to disagree.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

Entry = TypeVar("Entry")

DATA = Path(__file__).parent / "data"

#: Bytes in one unit. Decimal units for payloads and card labels, binary ones for allocators.
UNITS: Mapping[str, int] = MappingProxyType(
    {
        "B": 1,
        **{name: 1000**power for power, name in enumerate(("kB", "MB", "GB", "TB", "PB"), 1)},
        **{name: 1024**power for power, name in enumerate(("KiB", "MiB", "GiB", "TiB", "PiB"), 1)},
    }
)

#: Bytes of one element. `nf4` is a block format: see `nf4_bytes`.
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"fp32": 4, "bf16": 2})


class InputError(ValueError):
    """What the caller asked for cannot be computed; the message is one line that says why."""


def unknown(field: str, value: object, allowed: Iterable[str]) -> InputError:
    """An `InputError` that names the field, the value, the nearest known name and what is allowed.

    >>> str(unknown("optimizer", "adamv", ["adamw", "sgd"]))
    "unknown optimizer 'adamv'; did you mean 'adamw'? allowed: adamw, sgd"
    """
    names, said = list(allowed), str(value).lower()
    near = difflib.get_close_matches(said, names, n=1) or [
        name for name in names if len(said) > 1 and said in name
    ]
    hint = f" did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {field} {str(value)[:80]!r};{hint} allowed: {', '.join(names)}")


def named(field: str, name: str, known: Mapping[str, Entry]) -> Entry:
    """The entry of `known` under `name`; raises the `InputError` of `unknown`.

    >>> named("unit", "GiB", UNITS)
    1073741824
    """
    if name not in known:
        raise unknown(field, name, known)
    return known[name]


def whole(field: str, value: object, low: int = 1, high: int = 10**9) -> int:
    """`value` as an int in low..high, or an `InputError` that names the field.

    >>> whole("world_size", 8)
    8
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        # An int of thousands of digits has no decimal text at all in Python.
        huge = isinstance(value, int) and abs(value) > 10**39
        text = "a number of more than 39 digits" if huge else repr(value)
        text = text if len(text) <= 40 else text[:37] + "..."
        raise InputError(f"{field} must be a whole number from {low:,} to {high:,}, not {text}")
    return value


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer ≥ numerator / denominator.

    >>> ceil_div(7, 2)
    4
    """
    return -(-numerator // denominator)


def text(num_bytes: int, unit: str = "GB", decimals: int = 1) -> str:
    """`num_bytes` written in `unit` with `decimals` digits, rounded half up on exact integers.

    Exact arithmetic, so that every Python and every browser prints the same digits.
    Raises `InputError` for an unknown unit.

    >>> text(141_107_412_992)
    '141.1 GB'
    >>> text(85_028_896_768, "GiB", 2)
    '79.19 GiB'
    """
    return f"{decimal(Fraction(num_bytes, named('unit', unit, UNITS)), decimals)} {unit}"


def decimal(value: Fraction | int, decimals: int) -> str:
    """`value` with `decimals` digits and thousands separators, rounded half away from zero.

    >>> decimal(Fraction(2469, 2), 0)
    '1,235'
    """
    scaled = abs(Fraction(value)) * 10**decimals
    digits = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    head, tail = divmod(digits, 10**decimals)
    sign = "-" if value < 0 and digits else ""
    return f"{sign}{head:,}" + (f".{tail:0{decimals}d}" if decimals else "")


def nf4_bytes(numel: int, *, double_quantised: bool) -> int:
    """Bytes of a bitsandbytes NF4 matrix: 4 bits an element, a scale per block of 64, a code book.

    Formula: ⌈numel/2⌉ + 4·⌈numel/64⌉ + 64; double-quantised, the scales become one byte each plus
    an fp32 per 256 of them, a 256-entry code book of their own and one fp32 offset.
    Source: bitsandbytes `Params4bit` / `QuantState`, measured; `qlora-paper`, section 3.

    >>> nf4_bytes(4096 * 4096, double_quantised=False)
    9437248
    >>> nf4_bytes(4096 * 4096, double_quantised=True)
    8655940
    """
    scales = ceil_div(numel, 64)
    packed = ceil_div(numel, 2) + 4 * 16
    if not double_quantised:
        return packed + 4 * scales
    return packed + scales + 4 * ceil_div(scales, 256) + 4 * 256 + 4


def records(name: str) -> list[dict[str, Any]]:
    """The fact records of `calc/data/<name>.json`, in file order.

    >>> records("gpus")[0]["name"]
    'V100 SXM2 16GB'
    """
    found: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    return found
