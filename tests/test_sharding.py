"""Who keeps which slice: right values of the published accountings, and the laws."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.models import Tensor, load
from calc.sharding import STRATEGIES, get_strategy, kept, largest_share, rows
from calc.states import RECIPES, get_optimizer, get_recipe
from calc.units import InputError

LLAMA = load("llama-3.3-70b")


def total(model: str, strategy: str, world_size: int, recipe: str = "zero", optimizer: str = "adamw") -> int:
    return kept(load(model), get_recipe(recipe), get_optimizer(optimizer), get_strategy(strategy), world_size).total


@pytest.mark.parametrize(
    ("strategy", "num_bytes"),
    [
        ("ddp", 16 * 70_553_706_496),
        ("zero1", 4 * 70_553_706_496 + 12 * 70_553_706_496 // 8),
        ("zero2", 2 * 70_553_706_496 + 14 * 70_553_706_496 // 8),
        ("zero3", 141_107_412_992),
    ],
)
def test_70b_on_eight_gpus(strategy: str, num_bytes: int) -> None:
    assert total("llama-3.3-70b", strategy, 8) == num_bytes


@pytest.mark.parametrize(
    ("strategy", "printed_gb", "decimals"),
    [("ddp", 120, 0), ("zero1", 31.4, 1), ("zero2", 16.6, 1), ("zero3", 1.88, 2)],
)
def test_zero_paper_figure_1_for_7_5b_on_64_gpus(strategy: str, printed_gb: float, decimals: int) -> None:
    assert round(total("7.5B", strategy, 64) / 1e9, decimals) == printed_gb


@pytest.mark.parametrize(("strategy", "gb"), [("zero1", 420), ("zero2", 297.5), ("zero3", 175)])
def test_twenty_bytes_per_parameter_of_text_c_on_a_nominal_70b(strategy: str, gb: float) -> None:
    assert total("70B", strategy, 8, "deepspeed") == gb * 10**9


def test_megatron_keeps_6_and_12_over_n() -> None:
    assert total("70B", "zero1", 8, "megatron") == 6 * 70 * 10**9 + 12 * 70 * 10**9 // 8


tensors = st.lists(
    st.builds(
        Tensor,
        name=st.sampled_from(["a", "b"]),
        shape=st.lists(st.integers(1, 700), min_size=1, max_size=3).map(tuple),
        count=st.integers(1, 5),
    ),
    min_size=1,
    max_size=6,
).map(tuple)
layouts = st.sampled_from(["rows", "each", "flat", "whole"])


@given(tensors, layouts, st.integers(1, 64))
def test_ranks_together_hold_everything_and_little_more(found: tuple[Tensor, ...], layout: str, n: int) -> None:
    elements = sum(t.count * t.numel for t in found)
    share = largest_share(found, layout, n)
    assert n * share >= elements
    if layout == "whole":
        assert share == elements
        return
    # A rank is padded by less than one row (rows), one element (each) or one in all (flat).
    padding = {"rows": sum(t.count * (t.numel // t.shape[0]) for t in found), "each": sum(t.count for t in found)}
    assert share - elements / n < padding.get(layout, 1)


@given(tensors, layouts, st.integers(1, 64), st.integers(1, 4))
def test_more_ranks_never_grow_a_share(found: tuple[Tensor, ...], layout: str, n: int, times: int) -> None:
    assert largest_share(found, layout, n * times) <= largest_share(found, layout, n)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_chunks_of_rows_cover_the_tensor_once(first: int, n: int) -> None:
    sizes = [rows((first, 3), n, rank)[0] for rank in range(n)]
    assert sum(sizes) == first
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == -(-first // n)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd-momentum", "lion"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 64])
def test_a_higher_stage_never_keeps_more(optimizer: str, n: int) -> None:
    stages = [
        kept(LLAMA, RECIPES["zero"], get_optimizer(optimizer), STRATEGIES[name], n)
        for name in ("ddp", "zero1", "zero2", "zero3")
    ]
    for lower, higher in itertools.pairwise(stages):
        assert higher.total <= lower.total + 4 * 64 * LLAMA.num_layers  # ZeRO-3 pads each tensor
    if n == 1:
        assert len({stage.total for stage in stages}) == 1


def test_an_unknown_strategy_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'zero3'"):
        get_strategy("zero-3")
