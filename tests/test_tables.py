"""Tables and figures are strings that hold what `calc` computed, and nothing else."""

from __future__ import annotations

import re

import html5lib
import pytest

from calc import gpus, models
from calc.curve import curve, timeline
from calc.estimate import estimate
from calc.gpus import get
from calc.job import Job
from calc.models import load
from calc.tables import memory, peak, reference
from calc.tables.curves import before_and_after, curve_figure, series
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


CURVED = Job.of(model=load("llama-3.2-3b"), world_size=8, strategy="fsdp2", recipe="fsdp2-mixed", checkpointing="none")


def test_a_curve_names_its_peak_and_says_in_words_what_it_draws() -> None:
    found, drawn = estimate(CURVED), curve_figure(CURVED, get("h100-sxm5-80gb"), "One step & its <peak>")
    assert found.peak
    figure = html5lib.parse(drawn, namespaceHTMLElements=False).find(".//figure")
    svg = figure.find("{http://www.w3.org/2000/svg}svg")
    words = {each.get("id"): "".join(each.itertext()) for each in svg}
    title, description = (words[ident] for ident in svg.get("aria-labelledby").split())
    assert title == "One step & its <peak>"
    assert f"The peak is {size(found.peak.bytes)}" in description
    assert f"peak {size(found.peak.bytes)}: " in "".join(svg.itertext())
    assert {"forward", "backward"} <= {
        "".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")
    }
    assert "H100" in "".join(figure.find("ul").itertext())


def test_a_curve_has_no_line_that_its_legend_lacks() -> None:
    memory = timeline(CURVED)
    assert memory
    moments = curve(memory)
    assert all(sum(series(moment).values()) == moment.bytes for moment in moments)
    drawn = curve_figure(CURVED, get("h100-sxm5-80gb"), "Step")
    used = {name for moment in moments for name, num_bytes in series(moment).items() if num_bytes}
    assert {*re.findall(r'<path class="series-(\w+)"', drawn)} == used
    assert {*re.findall(r'fig-key series-(\w+)"', drawn)} == used


def test_two_curves_stand_on_one_scale() -> None:
    both = before_and_after(CURVED, CURVED.but(checkpointing="full"), get("h100-sxm5-80gb"), "checkpointing")
    limits = re.findall(r'class="fig-limit" x1="0" x2="100%" y1="(\d+)"', both)
    peaks = [int(y) for y in re.findall(r'class="fig-peak" cx="[\d.]+%" cy="(\d+)"', both)]
    assert len(limits) == 2
    assert len({*limits}) == 1
    assert peaks[0] < peaks[1]  # the lower peak is further down
    ids = re.findall(r' id="([^"]+)"', both)
    assert len(ids) == len({*ids})
