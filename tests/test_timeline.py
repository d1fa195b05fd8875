"""The laws of a timeline: turns that repeat are skipped without a trace, and the peak is affine in the batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.curve import Recorded, curve, timeline
from calc.estimate import estimate
from calc.fit import affine_until, peaks
from calc.job import Job
from calc.memory.timeline import Timeline, patterns
from calc.models import load

LINES = ("weights", "activations", "gradients", "buffer")
#: What a layer does: the line, and how many bytes of it are allocated, freed or there for a moment.
moves = st.lists(
    st.tuples(st.sampled_from(("alloc", "free", "burst")), st.sampled_from(LINES), st.integers(0, 50)), max_size=6
)
orders = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(1, 9)), min_size=1, max_size=4
)


def played(order: list[int], layers: list[Any], *, every_layer: bool) -> Timeline:
    memory = Recorded() if every_layer else Timeline()
    memory.instant("layers")
    for line in LINES:
        memory.alloc(line, 10_000)

    def body(kind: int, following: int | None) -> None:
        for what, line, num_bytes in layers[kind]:
            getattr(memory, what)(line, num_bytes + (following or 0))

    memory.repeat(order, body)
    return memory


@given(orders, st.lists(moves, min_size=3, max_size=3))
def test_what_repeats_is_skipped_without_a_trace(parts: list[tuple[list[int], int]], layers: list[Any]) -> None:
    order = [kind for pattern, times in parts for kind in pattern * times]
    some, every = (played(order, layers, every_layer=each) for each in (False, True))
    assert some.peak("layers").bytes == every.peak("layers").bytes
    assert some.held == every.held
    assert some.total == every.total == sum(every.held.values())


@given(orders)
def test_patterns_cover_the_order_once(parts: list[tuple[list[int], int]]) -> None:
    order = tuple(kind for pattern, times in parts for kind in pattern * times)
    at, found = 0, []
    for size, times in patterns(order):
        found += order[at : at + size] * times
        at += size * times
    assert tuple(found) == order


def test_a_timeline_knows_its_peak_its_lines_and_when() -> None:
    memory = Recorded()
    memory.instant("forward")
    memory.alloc("weights", 30)
    memory.burst("logits", 12)
    memory.instant("backward")
    memory.alloc("gradients", 5)
    memory.move("gradients", to="kept gradients")
    assert [(phase.instant, phase.bytes) for phase in memory.instants()] == [("forward", 42), ("backward", 35)]
    assert memory.peak("forward").held == {"weights": 30, "logits": 12}
    assert [(event.line, event.bytes, event.total) for event in memory.events] == [
        ("weights", 30, 30), ("logits", 12, 42), ("logits", -12, 30), ("gradients", 5, 35),
        ("gradients", -5, 30), ("kept gradients", 5, 35),
    ]  # fmt: skip


JOBS: list[dict[str, Any]] = [
    {"model": model, "strategy": strategy, **settings}
    for model in ("llama-3.1-8b", "gemma-3-1b-it", "qwen3-30b-a3b", "deepseek-v3")
    for strategy in ("single", "ddp", "zero2", "zero3", "fsdp1", "fsdp2")
    for settings in ({}, {"checkpointing": "selective", "seq_len": 512}, {"checkpointing": "none", "accumulation": 3})
]
JOBS += [
    {"model": "llama-3.1-8b", "strategy": "fsdp2", "accumulation": 3, "no_sync": True, "seq_len": 256},
    {"model": "llama-3.2-3b", "strategy": "fsdp2", "lora_rank": 16, "base_dtype": "nf4", "checkpointing": "none"},
    {"model": "llama-3.1-8b", "strategy": "zero3", "offload": "all"},
    {"model": "llama-3.1-8b", "strategy": "fsdp2", "pp": 2, "accumulation": 4},
    {"model": "llama-3.1-8b", "strategy": "zero1", "recipe": "megatron", "attention": "eager"},
]


def made(given: dict[str, Any], **more: Any) -> Job:
    words = {**given, **more}
    return Job.of(**{**words, "model": load(words["model"]), "world_size": 1 if words["strategy"] == "single" else 8})


@pytest.mark.parametrize("given", JOBS, ids=lambda given: " ".join(map(str, given.values())))
def test_a_step_is_as_if_every_layer_were_played(given: dict[str, Any]) -> None:
    found, memory = estimate(made(given)), timeline(made(given))
    assert memory
    assert found.phases
    every = {phase.instant: phase.bytes for phase in memory.instants()}
    assert {phase.instant: phase.bytes for phase in (*found.instants, found.phases["step"])} == every
    assert max(moment.bytes for moment in curve(memory)) == max(every.values())
    assert all(sum(moment.held.values()) == moment.bytes for moment in curve(memory))


@pytest.mark.parametrize("given", JOBS[::4], ids=lambda given: " ".join(map(str, given.values())))
def test_the_envelope_is_the_peak_at_every_batch(given: dict[str, Any]) -> None:
    """Up to a sliding window, above which attention needs a mask."""
    for field, values in (("seq_len", (1, 77, 511, 4096, 100_000)), ("micro_batch", (1, 2, 9, 300))):
        found = peaks(made(given), field)
        assert found
        peak, most = found
        for value in (value for value in values if value <= most):
            job = made(given, **{field: value})
            exact = estimate(job).peak
            assert exact
            assert peak(value) == exact.bytes


def test_eager_attention_is_affine_in_the_micro_batch_alone() -> None:
    eager = made({"model": "llama-3.1-8b", "strategy": "fsdp2", "attention": "eager"})
    assert affine_until(eager) == 0
    assert affine_until(made({"model": "gemma-3-1b-it", "strategy": "fsdp2"})) == 512
    found = peaks(eager, "micro_batch")
    assert found
    assert found[0](7) == estimate(eager.but(micro_batch=7)).peak.bytes  # type: ignore[union-attr]
