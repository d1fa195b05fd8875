"""Bytes on the wire: the textbook's values, the published ones, the laws, and the time that links need."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.cli import answer
from calc.communication import Collective, collectives, flops_per_token, waits
from calc.gpus import get
from calc.job import Job
from calc.models import load
from calc.tables import communication
from calc.units import InputError

LLAMA = load("llama-3.3-70b")
PARAMS = 70_553_706_496
ROOT = 2 * 128_256 * 8192 + 8192
H100 = get("h100-sxm5-80gb")


def moved(strategy: str, world_size: int = 8, **settings: object) -> int:
    run = Job.of(model=LLAMA, world_size=world_size, strategy=strategy, **settings)  # type: ignore[arg-type]
    return sum(found.num_bytes for found in collectives(run))


@pytest.mark.parametrize(
    ("found", "num_bytes", "gb"),
    [
        (moved("ddp"), 2 * 2 * PARAMS * 7 // 8, 246.9),
        (moved("zero1"), 2 * 2 * PARAMS * 7 // 8, 246.9),
        (moved("zero2"), 2 * 2 * PARAMS * 7 // 8, 246.9),
        (moved("zero3"), 3 * 2 * PARAMS * 7 // 8, 370.4),
        (moved("fsdp2", reduce_dtype="bf16"), 2 * (3 * PARAMS - ROOT) * 7 // 8, 366.7),
        (moved("fsdp2", reduce_dtype="bf16", wrap="block+ends"), 6 * PARAMS * 7 // 8, 370.4),
        (moved("fsdp2", wrap="block+ends"), 8 * PARAMS * 7 // 8, 493.9),
        (moved("fsdp2"), (8 * PARAMS - 2 * ROOT) * 7 // 8, 490.2),
        (moved("fsdp1"), (8 * PARAMS - 2 * ROOT) * 7 // 8, 490.2),
        (moved("ddp", recipe="fp32"), 8 * PARAMS * 7 // 8, 493.9),
        (moved("zero1", recipe="fp32"), 12 * PARAMS * 7 // 8, 740.8),
        (moved("fsdp2", recipe="fp32", wrap="block+ends"), 12 * PARAMS * 7 // 8, 740.8),
        (moved("fsdp2", reduce_dtype="bf16", reshard_after_forward=False), 4 * PARAMS * 7 // 8, 246.9),
        (moved("zero1", recipe="megatron"), 6 * PARAMS * 7 // 8, 370.4),
        (moved("zero1", recipe="pure-bf16"), 6 * PARAMS * 7 // 8, 370.4),  # torch: all-reduce, then broadcast
    ],
)
def test_70b_on_eight_gpus(found: int, num_bytes: int, gb: float) -> None:
    assert found == num_bytes
    assert round(found / 1e9, 1) == gb


@pytest.mark.parametrize(
    ("strategy", "settings", "names"),
    [
        ("ddp", {}, ["all-reduce gradients"]),
        ("zero1", {}, ["reduce-scatter gradients", "all-gather new weights"]),
        ("zero1", {"recipe": "megatron"}, ["reduce-scatter gradients", "all-gather new weights"]),
        ("zero1", {"recipe": "fp32"}, ["all-reduce gradients", "broadcast new weights"]),
        ("zero1", {"recipe": "pure-bf16"}, ["all-reduce gradients", "broadcast new weights"]),
        ("fsdp2", {}, ["all-gather weights, forward", "all-gather weights, backward", "reduce-scatter gradients"]),
        ("fsdp2", {"reshard_after_forward": False}, ["all-gather weights, forward", "reduce-scatter gradients"]),
    ],
)
def test_what_is_sent(strategy: str, settings: dict[str, object], names: list[str]) -> None:
    run = Job.of(model=LLAMA, world_size=8, strategy=strategy, **settings)  # type: ignore[arg-type]
    assert [f"{found.name} {found.what}" for found in collectives(run)] == names


def test_experts_of_their_own_ranks_are_not_counted() -> None:
    with pytest.raises(InputError, match="only data parallelism"):
        answer(["communication", "mixtral-8x7b-v0.1", "--gpus", "8", "--ep", "2", "--strategy", "fsdp2"])


def test_published_10b_moves_60_gb_under_zero3_and_40_under_ddp() -> None:
    """ml-engineering, model parallelism: it leaves (N−1)/N out."""
    for strategy, gb in (("zero3", 60), ("ddp", 40), ("zero1", 40)):
        run = Job.of(model=load("10B"), world_size=16, strategy=strategy)
        assert sum(found.num_bytes for found in collectives(run)) * 16 == gb * 10**9 * 15


def test_published_seconds_of_zero3_between_nodes() -> None:
    """DeepSpeed issue 2928: a node moves about six bytes per parameter; 10 and 100 Gb/s, without (M−1)/M."""
    run = Job.of(model=LLAMA, world_size=8 * 1024, strategy="zero3")
    links = {wait.link: wait for wait in waits(run, collectives(run), H100)}
    whole = Fraction(1024, 1023)
    assert round(links["ethernet-10"].seconds * whole, 1) == Fraction("338.7")
    assert round(links["ethernet-100"].seconds * whole, 1) == Fraction("33.9")


@pytest.mark.parametrize("micro_steps", [1, 2, 8, 64])
def test_accumulation(micro_steps: int) -> None:
    """DDP and ZeRO-1 wait for the last micro-step, ZeRO-2 scatters in each, ZeRO-3 also gathers in each."""
    once = moved("ddp")
    assert moved("ddp", accumulation=micro_steps) == moved("zero1", accumulation=micro_steps) == once
    assert 2 * moved("zero2", accumulation=micro_steps) == (micro_steps + 1) * once
    assert 2 * moved("zero3", accumulation=micro_steps) == 3 * micro_steps * once
    bf16 = {"reduce_dtype": "bf16", "wrap": "block+ends", "accumulation": micro_steps}
    assert 2 * moved("fsdp2", **bf16) == 3 * micro_steps * once
    assert 2 * moved("fsdp2", no_sync=True, **bf16) == (2 * micro_steps + 1) * once


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"])
def test_one_gpu_talks_to_nobody_and_the_volume_grows_towards_its_limit(strategy: str) -> None:
    assert moved(strategy, 1) == 0
    volumes = [moved(strategy, 2**power) for power in range(1, 8)]
    assert volumes == sorted(volumes)
    assert volumes[-1] < 2 * volumes[0]


def test_lora_moves_gradients_of_adapters_alone_and_gathers_the_whole_base() -> None:
    adapters = 207_093_760
    assert moved("ddp", lora_rank=16) == 2 * 2 * adapters * 7 // 8
    gathers = [c for c in collectives(Job.of(model=LLAMA, world_size=8, lora_rank=16)) if c.name == "all-gather"]
    assert [c.num_bytes for c in gathers] == [2 * (PARAMS + adapters) * 7 // 8] * 2


@pytest.mark.parametrize("base_dtype", ["nf4", "nf4-double"])
def test_a_four_bit_base_is_gathered_in_four_bits(base_dtype: str) -> None:
    run = Job.of(model=LLAMA, world_size=8, strategy="fsdp2", lora_rank=16, base_dtype=base_dtype)
    norms = 80 * 2 * 8192
    packed, kept = PARAMS - ROOT - norms, ROOT + norms
    assert collectives(run)[0].num_bytes == (packed // 2 + 2 * kept + 2 * 207_093_760) * 7 // 8


@given(st.integers(2, 64), st.integers(1, 16), st.integers(1, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_a_node_takes_in_nothing_where_one_node_holds_all_ranks(
    ranks: int, nodes: int, shard_bytes: int, node_gpus: int
) -> None:
    found = Collective(name="all-reduce", what="", ranks=ranks, shard_bytes=shard_bytes, times=nodes)
    assert found.between_nodes(ranks) == 0
    assert found.between_nodes(1) == found.num_bytes
    assert found.between_nodes(node_gpus) <= found.num_bytes


@pytest.mark.parametrize("world_size", [8, 16, 64])
def test_break_even_is_the_first_number_of_tokens_that_hides_the_link(world_size: int) -> None:
    run = Job.of(model=LLAMA, world_size=world_size, strategy="fsdp2", accumulation=4)
    found = collectives(run)
    for wait in waits(run, found, H100):
        at = {w.link: w for w in waits(run.but(seq_len=wait.break_even_tokens), found, H100)}[wait.link]
        before = {w.link: w for w in waits(run.but(seq_len=wait.break_even_tokens - 1), found, H100)}[wait.link]
        assert before.compute_seconds < wait.seconds <= at.compute_seconds
        assert at.overlapped == 1 > before.overlapped > before.serial


def test_floating_point_operations_per_token() -> None:
    run = Job.of(model=LLAMA, world_size=8)
    assert flops_per_token(run) == 8 * PARAMS
    assert flops_per_token(run.but(checkpointing="selective")) == 7 * PARAMS
    assert flops_per_token(run.but(checkpointing="none")) == 6 * PARAMS
    lora = run.but(lora_rank=16, checkpointing="none")
    assert flops_per_token(lora) == 4 * (PARAMS + 207_093_760) + 2 * 207_093_760
    experts = load("mixtral-8x7b-v0.1")
    assert flops_per_token(Job.of(model=experts, world_size=8)) == 8 * experts.num_active < 3 * experts.num_params


@pytest.mark.parametrize("micro_steps", [1, 3])
def test_computing_takes_all_micro_steps(micro_steps: int) -> None:
    run = Job.of(model=LLAMA, world_size=8, accumulation=micro_steps)
    seconds = {wait.compute_seconds for wait in waits(run, collectives(run), H100, mfu_percent=50)}
    assert seconds == {Fraction(8 * PARAMS * 2048 * micro_steps * 2) / (Fraction("989.4") * 10**12)}


def test_only_a_run_of_several_nodes_uses_the_network() -> None:
    inside = Job.of(model=LLAMA, world_size=8)
    assert [wait.link for wait in waits(inside, collectives(inside), H100)] == ["nvlink", "pcie"]
    assert [wait.link for wait in waits(inside, collectives(inside), get("l40s"))] == ["pcie"]
    rack = Job.of(model=LLAMA, world_size=64)
    assert [wait.link for wait in waits(rack, collectives(rack), get("gb200-nvl72"))] == ["nvlink", "pcie"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--tp", "2"], "only data parallelism is counted here"),
        (["--pp", "2"], "only data parallelism is counted here"),
        (["--cp", "2"], "only data parallelism is counted here"),
        (["--mfu", "0"], "mfu_percent must be a whole number from 1 to 100"),
        (["--gpu", "t4"], "no bf16 rate is known for 'T4'"),
        (["--gpu", "amd-mi455x"], "no node size is known for 'AMD MI455X'"),
    ],
)
def test_bad_input(argv: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        answer(["communication", "llama-3.3-70b", "--gpus", "8", *argv])


def test_the_command_line_gives_the_same_numbers() -> None:
    found = answer(["communication", "llama-3.3-70b", "--gpus", "16", "--mfu", "50", "--gpu", "h100-sxm5-80gb"])
    assert found["bytes_per_step"] == moved("zero3", 16) == sum(row["bytes"] for row in found["collectives"])
    links = {row["link"]: row for row in found["links"]}
    assert links["ethernet-10"]["bytes"] == found["between_nodes_bytes"] == 6 * PARAMS // 2
    assert round(links["ethernet-10"]["utilisation"] * 100, 1) == 0.7


def test_the_bars_are_the_volumes() -> None:
    figure = communication.volume_bars(LLAMA, 8, "Sent")
    assert "DDP · 246.9 GB · 1.00 × DDP" in figure
    assert "ZeRO-3 · 370.4 GB · 1.50 × DDP" in figure
    assert "FSDP2, reduced in fp32 · 490.2 GB · 1.99 × DDP" in figure
