"""Bytes become text here and nowhere else, and the text reads back within half a printed unit."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.units import UNITS, InputError, ceil_div, decimal, nf4_bytes, text, unknown, whole


@pytest.mark.parametrize(
    ("num_bytes", "unit", "decimals", "said"),
    [
        (141_107_412_992, "GB", 1, "141.1 GB"),
        (85_028_896_768, "GiB", 2, "79.19 GiB"),
        (133_950_000_000, "GB", 1, "134.0 GB"),  # half away from zero, not to even
        (1_128_859_303_936, "GB", 1, "1,128.9 GB"),
        (0, "MB", 0, "0 MB"),
        (-1_500_000_000, "GB", 1, "-1.5 GB"),
    ],
)
def test_text(num_bytes: int, unit: str, decimals: int, said: str) -> None:
    assert text(num_bytes, unit, decimals) == said


@given(st.integers(0, 10**18), st.sampled_from(sorted(UNITS)), st.integers(0, 6))
def test_what_is_printed_reads_back_within_half_a_printed_unit(num_bytes: int, unit: str, decimals: int) -> None:
    number, _, name = text(num_bytes, unit, decimals).rpartition(" ")
    read = Fraction(number.replace(",", "")) * UNITS[name]
    assert 2 * abs(read - num_bytes) <= Fraction(UNITS[unit], 10**decimals)


def test_decimal_puts_separators_and_rounds_half_away() -> None:
    assert decimal(1234567, 0) == "1,234,567"
    assert decimal(ceil_div(5, 2), 2) == "3.00"


@pytest.mark.parametrize(
    "value", [0, -1, 2.0, "8", True, None, float("nan"), 10**10, pytest.param(10**5000, id="5001 digits")]
)
def test_whole_names_the_field_and_the_range(value: object) -> None:
    with pytest.raises(InputError, match=r"world_size must be a whole number from 1 to 1,000,000,000, not "):
        whole("world_size", value)


def test_unknown_suggests_the_nearest_name() -> None:
    assert "did you mean 'zero3'?" in str(unknown("strategy", "zero-3", ["ddp", "zero3"]))
    assert "did you mean 'h100-sxm5-80gb'?" in str(unknown("gpu", "H100", ["a100-sxm4-80gb", "h100-sxm5-80gb"]))


def test_nf4_is_half_a_byte_and_its_scales() -> None:
    assert nf4_bytes(2**24, double_quantised=False) == 9 * 2**20 + 64  # 0.5625 bytes per element, and the code
    double = nf4_bytes(2**24, double_quantised=True)
    assert double == 2**23 + 2**18 + 4 * 2**10 + 1028 + 64
