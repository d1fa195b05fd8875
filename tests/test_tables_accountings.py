"""Accountings, growth, rounding and thresholds: the tables say what the rooms below compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calc.models import load
from calc.optimizers import get_optimizer
from calc.precision import RECIPES
from calc.tables import accountings

LLAMA = load("llama-3.3-70b")
PAGES = Path(__file__).parents[1] / "docs/how-it-works"


def beside(name: str) -> list[dict[str, str]]:
    """Rows that stand beside the page that shows them."""
    found: list[dict[str, str]] = json.loads((PAGES / f"{name}.json").read_text("utf-8"))
    return found


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_the_accountings_are_the_seven_sums_in_order() -> None:
    rows = cells(accountings.accountings_table(beside("accountings")))
    totals = [int(row[0].strip("* ")) for row in rows]
    assert totals == sorted(totals)
    assert sorted(set(totals)) == [6, 8, 10, 12, 16, 18, 20]
    for total, row in zip(totals, rows, strict=True):
        assert sum(int(cell) for cell in row[1:5] if cell != "–") == total


def test_each_set_up_names_a_recipe_and_says_yes_where_that_has_a_master() -> None:
    set_ups = beside("set-ups")
    for record, row in zip(set_ups, cells(accountings.set_ups_table(set_ups)), strict=True):
        recipe = RECIPES[record["recipe"]]
        sizes = sum(recipe.itemsize(line) for line in ("weights", "master", "gradients"))
        assert int(row[-2]) == sizes + get_optimizer("adamw").nominal_bytes(recipe.state_dtype)
        assert record["master"].startswith("yes") == bool(recipe.itemsize("master"))
        assert record["master"].startswith("the fp32") == (recipe.itemsize("weights") == 4)


def test_the_same_sum_has_other_parts() -> None:
    totals = {row[0].strip(): (row[-2], row[-1]) for row in cells(accountings.parts_table(LLAMA, 8))}
    assert totals == {  # the second is what more GPUs leave as it is
        "DeepSpeed ZeRO-1": ("5.5", "4"),
        "DeepSpeed ZeRO-2": ("3.75", "2"),
        "DeepSpeed ZeRO-3": ("2", "–"),
        "FSDP, weights left gathered": ("4", "2"),
        "FSDP, fully sharded": ("2", "–"),
    }


def test_what_does_not_shrink_is_what_is_left_on_a_million_gpus() -> None:
    (row,) = (row for row in cells(accountings.growth_table(LLAMA, (1_000_000,))) if row[0].strip() == "ZeRO-1")
    assert row[1] == "282.2 GB"
    assert row[2] == "**282.2 GB** (4 per parameter)"


@pytest.mark.parametrize(
    ("model", "count", "fsdp2", "whole_tensors"),
    [
        ("llama-3.1-8b", 8, "+0.000 %", "+0.284 %"),
        ("mixtral-8x7b-v0.1", 16, "+96.564 %", "+1.052 %"),
        ("gpt2", 8, "+0.004 %", "+148.135 %"),
    ],
)
def test_rounding_adds_most_where_tensors_are_few(model: str, count: int, fsdp2: str, whole_tensors: str) -> None:
    ((_, _, *found),) = cells(accountings.rounding_table([(load(model), count)]))
    assert found == [fsdp2, "+0.000 %", "+0.000 %", whole_tensors]


def test_the_formulas_of_the_zero_paper_and_of_megatron() -> None:
    rows = {row[0].strip(): row[1:] for row in cells(accountings.formulas_table())}
    assert rows["`zero`"] == ["16", "4 + 12/N", "2 + 14/N", "16/N"]
    assert rows["`deepspeed`"] == ["–", "4 + 16/N", "2 + 18/N", "20/N"]
    assert rows["`megatron`"] == ["18", "6 + 12/N", "–", "–"]
    assert rows.keys() == {f"`{name}`" for name in RECIPES}


def test_a_shard_below_the_threshold_holds_more_than_the_whole() -> None:
    whole, *_, third = cells(accountings.shards_table(8192, (1, 3)))
    assert (whole[3], third[1], third[3]) == ("16,640", "2,731", "21,848")
