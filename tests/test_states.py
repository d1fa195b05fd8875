"""Recipes and optimizers: bytes per parameter, and the pairs that run."""

from __future__ import annotations

import pytest

from calc.optimizers import OPTIMIZERS, get_optimizer, state_bytes
from calc.precision import RECIPES, get_recipe
from calc.stacks import STRATEGIES, refuse
from calc.units import InputError
from tests.stacks import BLOCKS, OWN_DTYPE, TORCHAO

#: weights, gradients, master, total with AdamW (DESIGN: the accountings of well-known sources).
TABLE = {
    "zero": (2, 2, 4, 16),
    "deepspeed": (2, 6, 4, 20),
    "fsdp2-mixed": (4, 4, 0, 16),
    "autocast": (4, 4, 0, 16),
    "fp32": (4, 4, 0, 16),
    "pure-bf16": (2, 2, 0, 8),
    "bf16-fp32-states": (2, 2, 0, 12),
    "megatron": (2, 4, 4, 18),
}


@pytest.mark.parametrize("name", list(RECIPES))
def test_bytes_per_parameter(name: str) -> None:
    recipe = RECIPES[name]
    lines = tuple(recipe.itemsize(line) for line in ("weights", "gradients", "master"))
    total = sum(lines) + OPTIMIZERS["adamw"].nominal_bytes(recipe.state_dtype)
    assert (*lines, total) == TABLE[name]


@pytest.mark.parametrize(
    ("optimizer", "numel", "dtype", "num_bytes"),
    [
        ("adamw", 1000, "fp32", 8000),
        ("adamw", 1000, "bf16", 4000),
        ("sgd", 1000, "fp32", 0),
        ("sgd-momentum", 1000, "bf16", 2000),
        ("adamw8bit", 4095, "bf16", 4095 * 8),  # under the threshold the states stay in 32 bit
        ("adamw8bit", 4096, "bf16", 2 * (4096 + 4 * 16)),
        ("adamw8bit", 4097, "fp32", 2 * (4097 + 4 * 17)),
        ("lion8bit", 4096, "fp32", 4096 + 4 * 16),
        ("adamw8bit-torchao", 4096, "fp32", 2 * (4096 + 64 + 1024)),
        ("adamw8bit-torchao", 4097, "bf16", 4 * 4097),
        ("adamw4bit-torchao", 4096, "bf16", 2 * (2048 + 128 + 64)),
    ],
)
def test_state_of_one_tensor(optimizer: str, numel: int, dtype: str, num_bytes: int) -> None:
    assert state_bytes(get_optimizer(optimizer), (numel,), dtype) == num_bytes


def test_transformers_keeps_the_states_of_embeddings_in_32_bit() -> None:
    trainer = get_optimizer("adamw8bit-trainer")
    assert state_bytes(trainer, (128256, 4096), "bf16", kind="embedding") == 8 * 128256 * 4096
    assert state_bytes(trainer, (4096, 4096), "bf16") == 2 * (2**24 + 4 * 2**16)


PAIRS = [(strategy, recipe) for strategy in STRATEGIES for recipe in RECIPES]


def refused_by(strategy: str, recipe: str) -> set[str]:
    """The optimizers that fail there, each with its reason on the Verification page."""
    if recipe == "bf16-fp32-states":
        return OWN_DTYPE
    if strategy in ("fsdp2", "hsdp"):
        return BLOCKS | (TORCHAO if recipe == "pure-bf16" else set())
    flat = strategy == "fsdp1" or (strategy.startswith("zero") and recipe in ("zero", "deepspeed", "megatron"))
    return {"muon"} if flat else set()


@pytest.mark.parametrize(("strategy", "recipe"), PAIRS)
def test_a_pair_runs_or_the_refusal_says_exactly_what_does(strategy: str, recipe: str) -> None:
    if strategy not in RECIPES[recipe].strategies:
        with pytest.raises(InputError) as refused:
            refuse(strategy, RECIPES[recipe], get_optimizer("adamw"))
        _, under, takes = str(refused.value).split("; ")
        assert under == f"it runs under: {', '.join(RECIPES[recipe].strategies)}"
        fitting = [name for name, other in RECIPES.items() if strategy in other.strategies]
        assert takes == f"{strategy} takes recipe: {', '.join(fitting)}"
        return
    bad = refused_by(strategy, recipe)
    for name, optimizer in OPTIMIZERS.items():
        if name not in bad:
            refuse(strategy, RECIPES[recipe], optimizer)
            continue
        with pytest.raises(InputError) as refused:
            refuse(strategy, RECIPES[recipe], optimizer)
        allowed = str(refused.value).partition("; allowed: ")[2]
        assert allowed == ", ".join(other for other in OPTIMIZERS if other not in bad)


@pytest.mark.parametrize(
    ("recipe", "optimizer", "reason"),
    [
        ("fsdp2-mixed", "adamw8bit", "DTensor"),
        ("fsdp2-mixed", "adafactor", "DTensor"),
        ("pure-bf16", "adamw8bit-torchao", "fp32 shards"),
    ],
)
def test_fsdp2_refuses_what_fails_on_its_shards(recipe: str, optimizer: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        refuse("fsdp2", get_recipe(recipe), get_optimizer(optimizer))
    assert "allowed: adamw" in str(refused.value)
    assert "\n" not in str(refused.value)
    refuse("fsdp1", get_recipe(recipe), get_optimizer(optimizer))


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'adamw8bit'"):
        get_optimizer("adam8bit")
    with pytest.raises(InputError, match="did you mean 'pure-bf16'"):
        get_recipe("pure_bf16")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rank_without_rows_keeps_no_state(name: str) -> None:
    assert state_bytes(OPTIMIZERS[name], (0, 4096), "fp32") == 0
