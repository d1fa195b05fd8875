"""Who keeps which slice: right values of the published accountings, and the laws."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from math import prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calc.models import Tensor, load, with_adapters
from calc.optimizers import Optimizer, get_optimizer, state_bytes
from calc.precision import RECIPES, get_recipe
from calc.stacks import STACKS, STRATEGIES, Stack, choose, get_strategy
from calc.stacks.ddp import DDP
from calc.stacks.deepspeed3 import DeepSpeed3
from calc.stacks.deepspeed12 import DeepSpeed1, DeepSpeed2, edge_elements
from calc.stacks.fsdp1 import FSDP1
from calc.stacks.fsdp2 import FSDP2
from calc.stacks.shards import gather_units, rows
from calc.stacks.single import Single
from calc.stacks.zero_redundancy import ZeroRedundancy
from calc.units import InputError
from tests.stacks import handed, kept

LLAMA = load("llama-3.3-70b")


def total(model: str, strategy: str, world_size: int, recipe: str = "zero", optimizer: str = "adamw") -> int:
    return kept(choose(strategy, recipe), load(model), recipe, world_size, optimizer).total


def cut(stack: type[Stack], tensors: Iterable[Tensor], ranks: int, recipe: str = "pure-bf16") -> int:
    """Elements of `tensors` that the fullest of `ranks` stores."""
    return stack(ranks=ranks).cut(tensors, ranks, get_recipe(recipe))


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
stacks = st.sampled_from([FSDP2, DeepSpeed3, DeepSpeed1, DDP])


@given(tensors, stacks, st.integers(1, 64))
def test_ranks_together_hold_everything_and_little_more(found: tuple[Tensor, ...], stack: type[Stack], n: int) -> None:
    elements = sum(t.count * t.numel for t in found)
    share = cut(stack, found, n)
    assert n * share >= elements
    if stack is DDP:
        assert share == elements
        return
    # A rank is padded by less than a row a tensor (FSDP2), an element a tensor (ZeRO-3) or two in all (ZeRO-1).
    row, each = sum(t.count * (t.numel // t.shape[0]) for t in found), sum(t.count for t in found)
    assert share - elements / n < {FSDP2: row, DeepSpeed3: each}.get(stack, 2)


ALIGNED = {"fp32": 4, "pure-bf16": 8}


@given(tensors, st.integers(1, 64), st.sampled_from(list(ALIGNED)))
def test_fsdp1_aligns_each_tensor_but_the_first(found: tuple[Tensor, ...], n: int, recipe: str) -> None:
    elements, num_tensors, align = sum(t.count * t.numel for t in found), sum(t.count for t in found), ALIGNED[recipe]
    share = cut(FSDP1, found, n, recipe)
    assert elements <= n * share < elements + (align - 1) * (num_tensors - 1) + n


@given(tensors, st.sampled_from([DDP, FSDP2, DeepSpeed1, DeepSpeed3, ZeroRedundancy]), st.integers(1, 16))
def test_the_optimizers_of_all_ranks_are_handed_every_element(
    found: tuple[Tensor, ...], stack: type[Stack], n: int
) -> None:
    model = replace(LLAMA, first=found, blocks=(), last=())
    held = handed(stack, model, "pure-bf16", n)
    elements = sum(t.count * t.numel for t in model.tensors)
    on = [sum(num * prod(shape) for shape, _, num in each) for each in held]
    if stack is ZeroRedundancy:
        assert sum(on) == elements
        assert max(on) - min(on) <= max(t.numel for t in found)
    else:
        assert n * max(on) >= elements


@given(tensors, st.integers(2, 40), st.sampled_from(list(ALIGNED)))
@example(
    (Tensor(name="a", shape=(4,)), Tensor(name="a", shape=(16,))), 3, "fp32"
)  # the second rank has one whole piece
def test_the_pieces_of_flat_shards_are_those_of_every_rank(found: tuple[Tensor, ...], n: int, recipe: str) -> None:
    model, align = replace(LLAMA, first=found, blocks=(), last=()), ALIGNED[recipe]
    share, end, on = cut(FSDP1, found, n, recipe), 0, [[] for _ in range(n)]
    for tensor in (t for t in found for _ in range(t.count)):
        start = -(-end // align) * align
        end = start + tensor.numel
        for rank, held in enumerate(on):
            if (part := min(end, (rank + 1) * share) - max(start, rank * share)) > 0:
                held.append(((part,), tensor.kind, 1))
    some = handed(FSDP1, model, recipe, n)
    assert {tuple(held) for held in some} | {()} == {tuple(held) for held in on} | {()}
    assert len(some) <= n


matrices = st.builds(
    lambda height, width, count: Tensor(name="w", shape=(height, width), count=count),
    st.integers(1, 200),
    st.sampled_from([1, 64, 128, 256, 1000, 4096]),
    st.integers(1, 3),
)


@given(st.lists(matrices, min_size=1, max_size=4).map(tuple), st.integers(1, 40))
def test_the_pieces_of_rows_hold_the_fullest_of_every_rank(found: tuple[Tensor, ...], n: int) -> None:
    """Not always the first: a short last chunk can fall under a block optimizer's threshold, and so hold more."""
    model = replace(LLAMA, first=found, blocks=(), last=())
    every = [[(rows(t.shape, n, rank), t.kind, t.count) for t in found] for rank in range(n)]
    for name in ("adamw", "adamw8bit", "adamw8bit-torchao", "adamw4bit-torchao"):
        optimizer = get_optimizer(name)

        def priced(held: Iterable[tuple[tuple[int, ...], str, int]], optimizer: Optimizer = optimizer) -> int:
            return sum(num * state_bytes(optimizer, shape, "fp32", kind=kind) for shape, kind, num in held)

        some = handed(FSDP2, model, "fsdp2-mixed", n, name)
        assert max(map(priced, some)) == max(map(priced, every))
        assert len(some) <= n


def recipes_of(strategy: str) -> tuple[str, ...]:
    """The recipes that run under a strategy, by the facts."""
    return tuple(name for name, recipe in RECIPES.items() if strategy in recipe.strategies)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_facts_and_the_stacks_say_which_recipes_run_where(strategy: str) -> None:
    held = {recipe for stack in STACKS if stack.strategy == strategy for recipe in stack.recipes}
    wrong = held ^ {*recipes_of(strategy)}
    assert not wrong, f"strategies in calc/data/recipes.json: {strategy} and {wrong} do not match its stacks' recipes"


@given(tensors)
def test_one_gpu_makes_all_strategies_equal(found: tuple[Tensor, ...]) -> None:
    model = replace(LLAMA, first=found, blocks=(), last=())
    elements = sum(t.count * t.numel for t in found)
    for strategy in STRATEGIES:
        for name in {"zero", "fp32", "fsdp2-mixed"} & {*recipes_of(strategy)}:
            assert kept(choose(strategy, name), model, name, 1).total == 16 * elements


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("rank", [0, 8])
def test_the_units_of_fsdp_hold_every_tensor_once(name: str, rank: int) -> None:
    model = with_adapters(load(name), rank=rank) if rank else load(name)
    assert (
        sum(count * sum(t.count * t.numel for t in group) for group, count in gather_units(model)) == model.num_params
    )


def test_a_flat_parameter_is_cut_wherever_its_middle_is() -> None:
    odd = [Tensor(name="a", shape=(3,)), Tensor(name="b", shape=(5,))]
    assert cut(FSDP1, odd, 1, "fp32") == 4 + 5
    model = replace(LLAMA, first=tuple(odd), blocks=(), last=())
    assert handed(FSDP1, model, "fp32", 2) == [  # five of nine elements each, one of them between the tensors
        [((3,), "linear", 1), ((1,), "linear", 1)],
        [((4,), "linear", 1)],
    ]


@pytest.mark.parametrize(("sizes", "once"), [((4096,), 2048), ((4095,), 0), ((4095, 4096), 2048), ((4096, 8192), 2048)])
def test_code_books_exist_once_where_a_tensor_is_quantised(sizes: tuple[int, ...], once: int) -> None:
    model = replace(LLAMA, first=tuple(Tensor(name="w", shape=(size,)) for size in sizes), blocks=(), last=())
    adamw = get_optimizer("adamw8bit")
    held = kept(Single, model, "pure-bf16", 1, "adamw8bit")
    assert held.optimizer == once + sum(state_bytes(adamw, (size,), "bf16") for size in sizes)


def test_a_short_last_chunk_holds_more_than_the_first() -> None:
    """130 rows of 128 on four ranks are chunks of 33 and one of 31: 4,224 elements in 8 bit, 3,968 in 32."""
    model = replace(LLAMA, first=(Tensor(name="w", shape=(130, 128)),), blocks=(), last=())
    held = kept(FSDP2, model, "bf16-fp32-states", 4, "adamw8bit")
    assert held.optimizer == 8 * 31 * 128


@pytest.mark.parametrize("stack", [FSDP1, ZeroRedundancy, FSDP2])
def test_a_million_ranks_cost_no_more_than_the_tensors_they_hold(stack: type[Stack]) -> None:
    assert len(handed(stack, LLAMA, "pure-bf16", 10**6)) < 1000


@given(tensors, st.one_of(stacks, st.just(FSDP1)), st.integers(1, 64), st.integers(1, 4))
def test_more_ranks_never_grow_a_share(found: tuple[Tensor, ...], stack: type[Stack], n: int, times: int) -> None:
    assert cut(stack, found, n * times) <= cut(stack, found, n)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_chunks_of_rows_cover_the_tensor_once(first: int, n: int) -> None:
    sizes = [rows((first, 3), n, rank)[0] for rank in range(n)]
    assert sum(sizes) == first
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == -(-first // n)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd-momentum", "lion"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 64])
def test_a_higher_stage_never_keeps_more(optimizer: str, n: int) -> None:
    stages = [kept(stack, LLAMA, "zero", n, optimizer) for stack in (DDP, DeepSpeed1, DeepSpeed2, DeepSpeed3)]
    for lower, higher in itertools.pairwise(stages):
        assert higher.total <= lower.total + 4 * 64 * LLAMA.num_layers  # ZeRO-3 pads each tensor
    if n == 1:
        assert len({stage.total for stage in stages}) == 1


def test_a_tensor_that_a_deepspeed_partition_cuts_keeps_its_whole_gradient() -> None:
    halves = replace(LLAMA, first=(Tensor(name="a", shape=(3, 4)), Tensor(name="b", shape=(5, 4))), blocks=(), last=())
    assert edge_elements(halves, 1) == 0
    assert edge_elements(halves, 2) == 12 + 20 - 16  # rank 0 holds all of a and one row of b, whose 20 it keeps


def test_a_pipeline_stage_keeps_its_own_layers_cut_gradients() -> None:
    (block,) = LLAMA.blocks
    first, last = (
        replace(LLAMA, blocks=(replace(block, layers=tuple(layers)),)) for layers in (range(16), range(16, 32))
    )
    assert edge_elements(first, 8) == edge_elements(last, 8) > 0


def test_scales_of_nf4_stay_on_every_rank() -> None:
    frozen = replace(
        LLAMA,
        blocks=tuple(replace(b, tensors=tuple(replace(t, trainable=False) for t in b.tensors)) for b in LLAMA.blocks),
        first=(),
        last=(),
    )
    one, eight = (kept(FSDP2, frozen, "pure-bf16", n, base_dtype="nf4").weights for n in (1, 8))
    matrices = sum(t.count * t.numel for t in frozen.tensors if t.kind == "linear")
    norms = 2 * sum(t.count * t.numel for t in frozen.tensors if t.kind == "norm")
    assert one - eight == (matrices // 2 + norms) * 7 // 8


def test_an_unknown_strategy_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'zero3'"):
        get_strategy("zero-3")


@pytest.mark.parametrize("strategy", ["single", "fsdp1", "fsdp2", "zero3", "zero1"])
def test_a_frozen_model_keeps_weights_alone(strategy: str) -> None:
    frozen = [tuple(replace(t, trainable=False) for t in part) for part in (LLAMA.first, LLAMA.last)]
    model = replace(LLAMA, first=frozen[0], blocks=(), last=frozen[1])
    recipe = "deepspeed" if strategy.startswith("zero") else "pure-bf16"
    found = kept(choose(strategy, recipe), model, recipe, 1)
    assert (found.weights, found.total) == (2 * model.num_params, 2 * model.num_params)


def test_a_strategy_and_a_recipe_name_one_stack() -> None:
    """What today's words stand for; a stack that is written anew is added here by hand."""
    torch, zero = ("fp32", "pure-bf16", "bf16-fp32-states"), ("zero", "deepspeed")
    plain, sharded = ("zero", "autocast", *torch), ("fsdp2-mixed", "fp32", "pure-bf16")
    expected = {
        "single": {"Single": plain},
        "ddp": {"DDP": plain, "Megatron": ("megatron",)},
        "zero1": {"ZeroRedundancy": torch, "DeepSpeed1": zero, "MegatronDistributed": ("megatron",)},
        "zero2": {"DeepSpeed2": zero},
        "zero3": {"DeepSpeed3": zero},
        "fsdp1": {"FSDP1": (*sharded, "bf16-fp32-states")},
        "fsdp2": {"FSDP2": sharded},
        "hsdp": {"HSDP": sharded},
    }
    for strategy, ways in expected.items():
        named = {recipe: stack for stack, recipes in ways.items() for recipe in recipes}
        assert {*recipes_of(strategy)} == {*named}
        assert {recipe: choose(strategy, recipe).__name__ for recipe in named} == named
    assert len(STACKS) == sum(len(ways) for ways in expected.values())
