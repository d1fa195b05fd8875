"""The climb: text B's rule over the counts that a card offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calc.cli import answer
from calc.estimate import estimate
from calc.fit import climb, fit, label_limit, largest, verdict
from calc.formula import one_line
from calc.gpus import get, known
from calc.job import Job
from calc.models import from_config, load
from calc.units import InputError

RUN = Job.of(model=load("llama-3.3-70b"), world_size=8)


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
    passing = [n for n in gpu.counts() if one_line(RUN.but(world_size=n)).total <= label_limit(gpu)]  # type: ignore[operator]
    assert row.num_gpus_one_line == (passing[0] if passing else None)
    assert row.one_line_bytes == one_line(RUN.but(world_size=row.tried)).total


def test_single_is_tried_on_one_gpu_and_ddp_on_the_count_given() -> None:
    small = load("qwen2.5-0.5b")
    h100 = get("h100-sxm5-80gb")
    assert climb(Job.of(model=small), h100).num_gpus_one_line == 1
    assert climb(Job.of(model=small, world_size=6, strategy="ddp"), h100).num_gpus_one_line == 6
    too_many = climb(Job.of(model=small, world_size=16, strategy="ddp"), get("l40s"))
    assert (too_many.num_gpus_one_line, too_many.note) == (None, "one node holds 8")


def test_what_cannot_be_bought_is_left_out_and_a_bare_count_refused() -> None:
    assert {row.gpu.topology for row in fit(RUN)} == {"single-node", "multi-node", "rack-scale"}
    with pytest.raises(InputError, match="bare count '70B'"):
        fit(Job.of(model=load("70B"), world_size=8))


def test_the_climb_by_peak_goes_on_where_nodes_can_be_joined() -> None:
    run = Job.of(model=load("llama-3.3-70b"), world_size=8, strategy="fsdp2")
    old = climb(run, get("v100-sxm2-32gb"))
    assert (old.num_gpus, old.num_gpus_one_line, old.near_miss.num_gpus) == (128, 64, 64)  # type: ignore[union-attr]
    assert climb(run, get("v100-sxm2-32gb"), most=64).num_gpus is None
    assert climb(run, get("l40s")).near_miss.num_gpus == 8  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({"tp": 8, "pp": 4, "world_size": 32, "strategy": "zero3"}, {32, 64, 128, 256, 512, 1024}),
        ({"strategy": "hsdp", "world_size": 16, "shard_size": 16}, {16, 32, 64, 128, 256, 512, 1024}),
        ({"cp": 2, "world_size": 2}, {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}),
    ],
)
def test_only_counts_that_the_degrees_divide_are_tried(settings: dict[str, object], counts: set[int]) -> None:
    run = Job.of(model=load("llama-3.3-70b"), **settings)
    tried = set()
    for most in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        miss = climb(run, get("a100-sxm4-40gb"), most=most).near_miss
        tried |= {miss.num_gpus} if miss else set()
    row = climb(run, get("a100-sxm4-40gb"))
    assert tried | ({row.num_gpus} - {None}) <= counts
    assert min(tried | ({row.num_gpus} - {None})) == min(counts)  # type: ignore[type-var]


@pytest.mark.parametrize("field", ["seq_len", "micro_batch"])
@pytest.mark.parametrize("settings", [{"strategy": "fsdp2"}, {"strategy": "zero3", "checkpointing": "none"}])
def test_the_largest_that_fits_is_the_last_that_fits(field: str, settings: dict[str, str]) -> None:
    run, gpu = Job.of(model=load("llama-3.1-8b"), world_size=8, **settings), get("h100-sxm5-80gb")
    most = largest(run, gpu, field)
    assert most > 1
    assert verdict(estimate(run.but(**{field: most})), gpu) == "fits"
    assert verdict(estimate(run.but(**{field: most + 1})), gpu) != "fits"
    assert largest(run, get("t4"), field) == 0


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama-3.1-8b", {"attention": "eager"}),  # its scores grow with the square of the sequence
        ("gemma-2-2b", {"attention": "eager", "checkpointing": "none"}),
        ("gemma-2-2b", {}),  # beyond its window the peak has another slope
    ],
)
def test_the_longest_sequence_is_found_where_the_peak_is_no_straight_line(model: str, settings: dict[str, str]) -> None:
    run, gpu = Job.of(model=load(model), world_size=8, strategy="fsdp2", **settings), get("h100-sxm5-80gb")
    most = largest(run, gpu, "seq_len")
    assert most > 1
    assert verdict(estimate(run.but(seq_len=most)), gpu) == "fits"
    assert verdict(estimate(run.but(seq_len=most + 1)), gpu) != "fits"


def test_a_count_is_not_given_where_it_is_what_is_asked_for() -> None:
    with pytest.raises(InputError, match="fit finds the number of GPUs for strategy 'zero3'; --gpus goes with"):
        answer(["fit", "llama-3.1-8b", "--gpus", "4"])
    answer(["fit", "llama-3.1-8b", "--gpus", "4", "--strategy", "ddp", "--gpu", "h100-sxm5-80gb"])


def test_filters_and_what_is_not_modelled() -> None:
    rows = answer(["fit", "llama-3.1-8b", "--strategy", "fsdp2", "--vendor", "amd", "--max-gpus", "4"])["rows"]
    assert {row["gpu"].split()[0] for row in rows} == {"Instinct"}
    assert all("AMD: the band is that of NVIDIA's" in row["note"] for row in rows)
    assert max(row["num_gpus"] for row in rows) <= 4
    (row,) = answer(["fit", "llama-3.1-8b", "--gpu", "h100-sxm5-80gb", "--largest"])["rows"]
    assert row["largest_seq_len"] >= 2048
    assert row["largest_micro_batch"] >= 1
    with pytest.raises(InputError, match="unknown vendor 'nvidai'; allowed: NVIDIA, AMD, Intel"):
        answer(["fit", "llama-3.1-8b", "--vendor", "nvidai"])


def test_the_verdict_changes_at_the_byte() -> None:
    h100, found = get("h100-sxm5-80gb"), estimate(Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="fsdp2"))
    assert found.peak
    for visible, said in (
        (found.peak.high, "fits"),
        (found.peak.high - 1, "tight"),
        (found.peak.low, "tight"),
        (found.peak.low - 1, "does not fit"),
        (None, None),
    ):
        assert verdict(found, replace(h100, visible_bytes=visible)) == said
    assert verdict(estimate(Job.of(model=load("8B"), world_size=8)), h100) is None


def test_text_b_s_rule_changes_at_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    need = one_line(RUN.but(world_size=16)).total
    for limit, count in ((need, 16), (need - 1, 32)):  # type: ignore[operator]
        monkeypatch.setattr("calc.fit.label_limit", lambda gpu, limit=limit: limit)
        assert climb(RUN, get("h100-sxm5-80gb")).num_gpus_one_line == count


def test_the_near_miss_lacks_what_the_count_before_it_has_too_much() -> None:
    run, h100 = Job.of(model=load("llama-3.3-70b"), world_size=8, strategy="fsdp2"), get("h100-sxm5-80gb")
    row = climb(run, h100)
    before = estimate(run.but(world_size=16)).peak
    assert row.near_miss
    assert (row.num_gpus, row.near_miss.num_gpus) == (32, 16)
    assert row.near_miss.over_bytes == before.low - h100.visible_bytes  # type: ignore[operator,union-attr]
    lines = row.found.phases[row.found.peak.phase].lines  # type: ignore[index,union-attr]
    assert {line.bytes for line in lines if line.line == row.limiting_line} == {max(line.bytes for line in lines)}


def test_every_power_of_two_is_tried_up_to_1024() -> None:
    run = Job.of(model=load("llama-3.1-405b"), world_size=8)
    rows = [climb(run, get("v100-sxm2-16gb"), most=2**power) for power in range(11)]
    assert [row.near_miss and row.near_miss.num_gpus for row in rows] == [2**power for power in range(11)]


def test_a_card_without_counts_is_never_tried() -> None:
    row = climb(RUN, get("tpu-v5p"))
    assert (row.num_gpus, row.num_gpus_one_line, row.tried, row.one_line_bytes) == (None, None, 0, 0)
    assert row.note == "not offered as a GPU here"


def test_ddp_may_fill_the_node() -> None:
    full = climb(Job.of(model=load("qwen2.5-0.5b"), world_size=8, strategy="ddp"), get("l40s"))
    assert (full.num_gpus, full.num_gpus_one_line) == (8, 8)


def test_the_largest_may_be_one() -> None:
    run = Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="fsdp2", seq_len=24_576)
    assert largest(run, get("h100-sxm5-80gb"), "micro_batch") == 1


def test_the_largest_may_be_all_that_there_is() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 2}
    tiny = Job.of(model=from_config(config, "tiny"), seq_len=1)
    assert largest(tiny, get("b200-sxm"), "micro_batch") == 1_000_000


def test_single_is_not_tried_on_more_gpus() -> None:
    row = climb(Job.of(model=load("llama-3.3-70b"), recipe="pure-bf16"), get("h100-sxm5-80gb"))
    assert (row.num_gpus, row.tried, str(row.verdict)) == (None, 1, "does not fit")
