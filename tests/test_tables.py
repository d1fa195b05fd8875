"""Tables and figures are strings that hold what `calc` computed, and nothing else."""

from __future__ import annotations

import re

import pytest

from calc import gpus, models
from calc.estimate import estimate
from calc.gpus import get
from calc.job import Job
from calc.models import load
from calc.tables import memory, peak, reference
from calc.tables.figures import bars
from calc.tables.text import markdown, per_param, size

LLAMA = load("llama-3.3-70b")
RUNS = [Job.of(model=LLAMA, world_size=8, strategy=name) for name in ("ddp", "zero1", "zero2", "zero3")]


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]


def test_markdown_aligns_and_makes_the_total_bold() -> None:
    table = markdown(["Line", ">GB"], [["a|b", "1"], ["sum", "1"]], total=True)
    assert table.splitlines() == ["| Line | GB |", "| --- | --: |", "| a\\|b | 1 |", "| **sum** | **1** |"]


@pytest.mark.parametrize("table", [memory.one_copy(estimate(RUNS[0])), memory.paper_total(estimate(RUNS[3]))])
def test_the_total_row_is_the_sum_of_the_rows(table: str) -> None:
    amounts = [int(row[-2].strip("*").replace(",", "")) for row in cells(table)[2:]]
    assert sum(amounts[:-1]) == amounts[-1] > 0


def test_by_strategy_says_what_does_not_shrink() -> None:
    rows = cells(memory.by_strategy(RUNS))[2:]
    assert [(row[0], *row[-2:]) for row in rows] == [
        ("DDP", "**1,128.9 GB**", "1,128.9 GB"),
        ("ZeRO-1", "**388.0 GB**", "282.2 GB"),
        ("ZeRO-2", "**264.6 GB**", "141.1 GB"),
        ("ZeRO-3", "**141.1 GB**", "0.0 GB"),
    ]


def test_every_registry_has_its_row() -> None:
    tables = (reference.models_table(), reference.gpus_table())
    rows = [cells(table)[2:] for table in tables]
    assert [len(found) for found in rows] == [len(models.known()), len(gpus.known())]
    assert len({tuple(row) for row in rows[0]}) == len(rows[0])


def test_bars_are_to_scale_and_described() -> None:
    figure = bars({"a": {"weights": 50, "optimizer": 30}}, 100, "card", "A title", "What it shows.")
    widths = re.findall(r'class="fig-bar [^"]*" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', figure)
    assert widths == [("0.00", "50.00"), ("50.00", "30.00")]
    assert 'x1="100.00%"' in figure
    assert "<title id=" in figure
    assert ">What it shows.</desc>" in figure


def test_no_limit_is_drawn_where_there_is_none() -> None:
    figure = bars(
        {"a": {"weights": 50}, "b": {"weights": 25}}, 0, "", "A title", "What it shows.", whole={"a": 0, "b": 5}
    )
    assert "fig-limit" not in figure
    assert "fig-card" not in figure
    assert re.findall(r'fig-whole" x="0" y="(\d+)" width="([\d.]+)%"', figure) == [("87", "10.00")]


def test_what_a_stage_leaves_whole_does_not_shrink() -> None:
    figure = memory.state_bars(RUNS, get("h100-sxm5-80gb"), "A title")
    told = re.findall(r"([\w-]+) ([\d,.]+ GB), of it whole on every GPU ([\d,.]+ GB)", figure)
    assert told == [
        ("DDP", "1,128.9 GB", "1,128.9 GB"),
        ("ZeRO-1", "388.0 GB", "282.2 GB"),
        ("ZeRO-2", "264.6 GB", "141.1 GB"),
        ("ZeRO-3", "141.1 GB", "0.0 GB"),
    ]
    assert "ZeRO-3 · 141.1 GB · 56.1 GB too much" in figure


def test_more_gpus_move_only_what_is_divided() -> None:
    runs = [Job.of(model=LLAMA, world_size=count, strategy="fsdp2") for count in (8, 512)]
    figure = peak.count_bars(runs, get("h100-sxm5-80gb"), "Peak")
    assert "8 GPUs · 154.6 GB · does not fit" in figure
    assert "512 GPUs · 19.6 GB · fits" in figure
    firsts = re.findall(r"series-transient\" x=\"0.00%\"[^>]*><title>[^:]*: ([\d.]+ GB)", figure)
    assert firsts == ["14.9 GB", "14.9 GB"]


def test_a_dash_stands_for_what_is_not_known() -> None:
    assert size(None) == "–"
    assert per_param(16, 8) == "2"
