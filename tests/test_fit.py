"""The climb: text B's rule over the counts that a card offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calc.estimate import Run, one_line
from calc.fit import climb, fit, label_limit
from calc.gpus import get, known
from calc.models import load
from calc.units import InputError

RUN = Run(model=load("llama-3.3-70b"), world_size=8)


@pytest.mark.parametrize(
    ("gpu", "count"),
    [
        ("b200-sxm", 8),
        ("h200-sxm5", 16),
        ("h100-sxm5-80gb", 16),  # 75.84 GB against 76.0: by a hair
        ("h100-nvl-94gb", None),  # on PCIe, one node of eight
        ("gb300-nvl72", 16),  # rack scale starts above eight
        ("t4", None),
    ],
)
def test_70b_with_adamw_and_zero3(gpu: str, count: int | None) -> None:
    assert climb(RUN, get(gpu)).num_gpus_one_line == count


@pytest.mark.parametrize("gpu", [gpu for gpu in known().values() if gpu.counts()], ids=lambda gpu: gpu.slug)
def test_the_answer_is_the_first_count_that_passes(gpu) -> None:  # type: ignore[no-untyped-def]
    row = climb(RUN, gpu)
    passing = [n for n in gpu.counts() if one_line(replace(RUN, world_size=n)).total <= label_limit(gpu)]  # type: ignore[operator]
    assert row.num_gpus_one_line == (passing[0] if passing else None)
    assert row.one_line_bytes == one_line(replace(RUN, world_size=row.tried)).total


def test_single_is_tried_on_one_gpu_and_ddp_on_the_count_given() -> None:
    small = load("qwen2.5-0.5b")
    h100 = get("h100-sxm5-80gb")
    assert climb(Run(model=small), h100).num_gpus_one_line == 1
    assert climb(Run(model=small, world_size=6, strategy="ddp"), h100).num_gpus_one_line == 6
    too_many = climb(Run(model=small, world_size=16, strategy="ddp"), get("l40s"))
    assert (too_many.num_gpus_one_line, too_many.note) == (None, "one node holds 8")


def test_what_cannot_be_bought_is_left_out_and_a_bare_count_refused() -> None:
    assert {row.gpu.topology for row in fit(RUN)} == {"single-node", "multi-node", "rack-scale"}
    with pytest.raises(InputError, match="bare count '70B'"):
        fit(Run(model=load("70B"), world_size=8))
