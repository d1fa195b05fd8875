"""What a step allocates, which ways an optimizer has to take it, and which shards it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from calc.cli import answer
from calc.optimizers import (
    OPTIMIZERS,
    get_optimizer,
    state_bytes,
    step_temporaries,
    step_word,
    steps,
)
from calc.optimizers.base import DTENSOR, FLAT, WHOLE, in_order
from calc.precision import RECIPES, get_recipe
from tests.stacks import BLOCKS, OWN_DTYPE, TORCHAO

RECORDS = Path(__file__).parents[1] / "calc/data/optimizers.json"
WORDS = ("fused", "foreach", "for-loop")
MATRIX = [((4096, 1024), "linear", 1)]
NUMEL = 4096 * 1024
VECTOR = [((NUMEL,), "flat", 1)]


def test_every_record_is_an_optimizer_with_its_own_fields() -> None:
    records = json.loads(RECORDS.read_text("utf-8"))
    assert list(OPTIMIZERS) == [record["name"] for record in records]
    for record, optimizer in zip(records, OPTIMIZERS.values(), strict=True):
        assert {**asdict(optimizer), "states": list(optimizer.states)} == record
    assert answer(["optimizers"]) == records


@pytest.mark.parametrize(
    ("name", "fused", "foreach", "for_loop"),
    [
        ("adamw", 0, 4 * NUMEL, 8 * NUMEL),
        ("adamw-amsgrad", 0, 4 * NUMEL, 8 * NUMEL),
        ("sgd", 0, 0, 0),
        ("sgd-momentum", 0, 0, 0),
        # No fused kernel: the loop. One number per matrix is a mean, the others rows and columns.
        ("adafactor", 4 * (NUMEL + 5120 + 1), 4 * (NUMEL + 1), 4 * (NUMEL + 5120 + 1)),
        ("adafactor-trainer", *3 * (8 * NUMEL + 4 * 5120,)),
        ("muon", *3 * (8 * NUMEL + 4 * 1024**2,)),
        ("adamw8bit", 0, 0, 0),
        ("adamw8bit-trainer", 0, 0, 0),
        ("paged-adamw8bit", 0, 0, 0),
        ("lion", 0, 0, 0),
        ("lion8bit", 0, 0, 0),
        ("adamw8bit-torchao", *3 * (8 * NUMEL + NUMEL // 32,)),
        ("adamw4bit-torchao", *3 * (24 * NUMEL + NUMEL // 16,)),
    ],
)
def test_one_fp32_matrix(name: str, fused: int, foreach: int, for_loop: int) -> None:
    found = [step_temporaries(get_optimizer(name), word, 4, MATRIX) for word in WORDS]
    assert found == [fused, foreach, for_loop]


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("adamw", 4 * NUMEL),
        ("adafactor", 2 * (NUMEL + 5120 + 1)),
        ("adafactor-trainer", 16 * NUMEL + 4 * 5120),  # fp32 copies of weight and gradient
        ("muon", 6 * NUMEL + 4 * 1024**2),
        ("lion", 0),
        ("adamw8bit-torchao", 8 * NUMEL + NUMEL // 32),
    ],
)
def test_one_16_bit_matrix_in_a_loop(name: str, num_bytes: int) -> None:
    assert step_temporaries(get_optimizer(name), "for-loop", 2, MATRIX) == num_bytes


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("adamw", 8 * NUMEL),
        ("adafactor", 8 * NUMEL),
        ("adafactor-trainer", 8 * NUMEL),
        ("adamw8bit-torchao", 0),  # one kernel
        ("adamw4bit-torchao", 24 * NUMEL + NUMEL // 16),
    ],
)
def test_one_flat_tensor_in_a_loop(name: str, num_bytes: int) -> None:
    assert step_temporaries(get_optimizer(name), "for-loop", 4, VECTOR) == num_bytes


def test_torchao_allocates_nothing_for_what_it_does_not_quantise() -> None:
    small = [((1000,), "norm", 1), ((4097, 3), "linear", 1)]
    for name in ("adamw8bit-torchao", "adamw4bit-torchao"):
        assert step_temporaries(get_optimizer(name), "", 2, small) == 0
    # Rows of one block need no second kernel, or no scales between the two.
    rows = [((64, 256), "linear", 1)], [((64, 128), "linear", 1)]
    assert step_temporaries(get_optimizer("adamw8bit-torchao"), "", 2, rows[0]) == 0
    assert step_temporaries(get_optimizer("adamw4bit-torchao"), "", 2, rows[1]) == 24 * 64 * 128


def test_a_loop_still_holds_what_the_tensor_before_left() -> None:
    """Two alike, or one in a layer that repeats, take three times one, a lone one twice."""
    adamw, square = get_optimizer("adamw"), ((64, 64), "linear", 1)
    assert step_temporaries(adamw, "for-loop", 4, [square]) == 2 * 4 * 64 * 64
    assert step_temporaries(adamw, "for-loop", 4, [square, square]) == 3 * 4 * 64 * 64
    assert step_temporaries(adamw, "for-loop", 4, [((64, 64), "linear", 80)]) == 3 * 4 * 64 * 64
    norm = ((64,), "norm", 1)
    assert step_temporaries(adamw, "for-loop", 4, [square, norm, square]) == 4 * (2 * 64 * 64 + 64)


def test_foreach_takes_every_layer_at_once() -> None:
    pieces = [((100, 10), "embedding", 1), ((10, 10), "linear", 7), ((10,), "norm", 7)]
    assert step_temporaries(get_optimizer("adamw"), "foreach", 2, pieces) == 2 * (1000 + 700 + 70)
    adafactor = get_optimizer("adafactor")
    assert step_temporaries(adafactor, "foreach", 2, pieces) == 2 * (1000 + 700 + 70)
    assert step_temporaries(adafactor, "foreach", 2, pieces[::-1]) == 2 * (1000 + 700 + 70 + 8)


def test_muon_leaves_the_rest_to_adamw() -> None:
    muon, embedding = get_optimizer("muon"), ((50_000, 64), "embedding", 1)
    both = [embedding, ((64, 64), "linear", 9)]
    orthogonal = 8 * 64 * 64 + 4 * 64 * 64
    assert step_temporaries(muon, "fused", 4, both) == orthogonal
    assert step_temporaries(muon, "foreach", 4, both) == 4 * 50_000 * 64
    assert step_temporaries(muon, "fused", 4, [embedding]) == 0


def test_muon_gathers_matrices_that_dtensors_divide() -> None:
    muon = get_optimizer("muon")

    def of(rows: int, columns: int, ranks: int) -> int:
        return step_temporaries(muon, "fused", 4, [((rows // ranks, columns), "linear", 1)], ranks)

    assert of(128, 1024, 8) == (8 * 2**17 + 4 * 128**2) // 8 + 4 * 2**17
    assert of(4096, 64, 8) == (6 + 2) * 2**18 // 8 + 6 * 64**2
    assert of(256, 128, 8) == 6 * 2**15 // 8 + 8 * 128**2
    assert of(128, 128, 8) == (8 * 2**14 + 4 * 2**14) // 8 + 4 * 2**14


def test_adafactor_holds_what_the_tensor_before_left() -> None:
    adafactor = get_optimizer("adafactor")

    def of(*shapes: tuple[int, ...]) -> int:
        pieces = [(shape, "linear", 1) for shape in shapes]
        return step_temporaries(adafactor, "for-loop", 1, pieces)

    assert of((1000, 4), (4, 4)) == 4000 + 1000 + 4 + 4
    assert of((4, 1000), (4, 16)) == 4000 + 1000 + 4 + 16
    assert of((300,), (4,)) == 300 + 300 + 4
    assert of((20, 20), (1000,)) == 20 + 20 + 400 + 2 * 1000
    assert of((300,), (4, 4), (4, 4)) == 300 + 300 + 4 + 4 + 16 + 1
    experts = [((4, 8, 16), "expert", 3), ((8,), "norm", 3)]
    assert step_temporaries(adafactor, "foreach", 1, experts) == 3 * (4 * 8 * 16 + 8)
    assert step_temporaries(adafactor, "foreach", 1, experts[:1]) == 3 * (4 * 8 * 16 + 4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rank_without_tensors_allocates_nothing(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    for word in WORDS:
        assert step_temporaries(optimizer, word, 4, []) == 0
        assert step_temporaries(optimizer, word, 4, [((0, 4096), "linear", 32)]) == 0


#: torch's optimizers that cannot step in all three ways: how they can, and how where another way is asked for.
NOT_ALL_WORDS = {"adafactor": (("foreach", "for-loop"), "for-loop")}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_words_of_the_step_are_those_of_its_library(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    of_torch = optimizer.library.startswith("torch.optim")
    words, default = NOT_ALL_WORDS.get(name, (WORDS, "for-loop")) if of_torch else ((), "")
    assert set(steps(optimizer)) == set(words)
    for word in WORDS:
        assert step_word(optimizer, word) == (word if word in words else default)


def test_the_order_of_the_step_repeats_a_layer() -> None:
    pieces = [((8, 2), "embedding", 1), ((2, 2), "linear", 5), ((2,), "norm", 5)]
    layer = [((2, 2), "linear"), ((2,), "norm")]
    assert list(in_order(pieces)) == [((8, 2), "embedding"), *layer, *layer]


#: Which of the shards each recipe can hand over, by the optimizers that refuse them.


@pytest.mark.parametrize(
    ("shards", "recipe", "refused"),
    [
        (WHOLE, "pure-bf16", set()),
        (WHOLE, "zero", set()),
        (FLAT, "pure-bf16", {"muon"}),
        (FLAT, "deepspeed", {"muon"}),
        (DTENSOR, "fsdp2-mixed", BLOCKS),
        (DTENSOR, "pure-bf16", BLOCKS | TORCHAO),
        (WHOLE, "bf16-fp32-states", OWN_DTYPE),
    ],
)
def test_an_optimizer_says_what_it_cannot_take(
    shards: str,
    recipe: str,
    refused: set[str],
) -> None:
    found = {name for name, item in OPTIMIZERS.items() if item.refusal(shards, get_recipe(recipe))}
    assert found == refused


def test_the_optimizer_is_handed_the_master_copy_where_there_is_one() -> None:
    found = {name: recipe.stepped_itemsize for name, recipe in RECIPES.items()}
    bf16 = {"pure-bf16", "bf16-fp32-states"}
    assert found == {name: 2 if name in bf16 else 4 for name in RECIPES}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_prices_its_own_state(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    assert state_bytes(optimizer, (64, 64), "fp32") == optimizer.state_bytes((64, 64), 4, "linear")
