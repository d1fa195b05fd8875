"""Questions that people asked in public, each with its numbers: recomputed, or replaced by a better assumption.

`tests/data/questions.json` holds a case a line: where it was asked, the question in our words, what was run, and
values with the queries that give them, as in the marks of our pages; several queries are added up. `said` is what
arithmetic in or about the thread gives, `computed` what ours gives instead, `because` of what.
"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from calc import cli
from calc.check import query
from calc.job import Job
from calc.models import load
from calc.units import UNITS, InputError, decimal

ROOT = Path(__file__).parents[1]
CASES = json.loads((ROOT / "tests" / "data" / "questions.json").read_text("utf-8"))
VALUES = [(case, value) for case in CASES for value in case.get("values", ())]
ASKED = [(case, value) for case, value in VALUES if "asks" in value]
PAGES = [
    path.read_text("utf-8") for folder in ("how-to", "how-it-works") for path in (ROOT / "docs" / folder).glob("*.md")
]


@cache
def ask(source: str) -> Fraction:
    """What a query returns, or a quantity as it is written, in bytes or as a count."""
    if " : " in source:
        return query(source, lambda argv: cli.answer(argv))
    number, unit = source.split()
    return Fraction(number.replace(",", "")) * UNITS[unit]


@pytest.mark.parametrize(("case", "value"), ASKED, ids=[f"{case['id']} {value['name']}" for case, value in ASKED])
def test_a_number_that_people_asked_about(case: dict[str, Any], value: dict[str, Any]) -> None:
    expected = value.get("computed", value["said"])
    number, _, unit = expected.partition(" ")
    found = sum(map(ask, value["asks"])) / UNITS.get(unit, 1)
    assert decimal(found, len(number.partition(".")[2])) == number, case["question"]
    if "computed" in value:
        assert value["because"]
        assert value["computed"] != value["said"]


def test_each_case_says_where_it_was_asked_what_was_run_and_why_a_value_is_not_computed() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 60
    for case in CASES:
        assert case["link"].startswith("https://")
        assert case["question"].endswith("?")
        assert "\n" not in case["question"]
        assert ("values" in case) != ("not_computed" in case), case["id"]
        for value in case.get("values", ()):
            assert ("asks" in value) != bool(value.get("not_computed")), value
    assert sum(any("asks" in value for value in case.get("values", ())) for case in CASES) >= 55
    better = [value for _, value in ASKED if "computed" in value]
    assert 20 <= len(better) < len(ASKED) // 4


def test_a_paged_optimizer_does_not_run_under_fsdp2() -> None:
    """The one case that asks for no amount (torchao issue 1213)."""
    with pytest.raises(InputError, match=r"'paged-adamw8bit' does not run under strategy 'fsdp2'.*DTensor"):
        Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="fsdp2", optimizer="paged-adamw8bit")


def test_the_instructive_ones_are_on_pages_with_their_links() -> None:
    shown = [case["id"] for case in CASES if any(case["link"] in page for page in PAGES)]
    assert len(shown) >= 12, shown
