"""What a stack keeps of any tensors, in one call: for tests of the stacks alone, without a job around them."""

from __future__ import annotations

from typing import Any

from calc.memory.training import Training
from calc.models import Model
from calc.optimizers import Piece, get_optimizer
from calc.precision import Recipe, get_recipe
from calc.stacks import ModelStates, Stack, choose

#: Optimizers that fail on DTensor shards; torchao's besides where the shards are 16-bit.
BLOCKS = {"adamw8bit", "adamw8bit-trainer", "paged-adamw8bit", "adafactor", "adafactor-trainer", "lion", "lion8bit"}
TORCHAO = {"adamw8bit-torchao", "adamw4bit-torchao"}
#: Their states have the parameters' dtype, so none are in fp32 beside 16-bit weights.
OWN_DTYPE = TORCHAO | {"adamw-amsgrad", "adafactor", "sgd-momentum", "muon"}


def training(model: Model, recipe: str | Recipe, optimizer: str = "adamw", **settings: Any) -> Training:
    """`model` as it trains under `recipe`."""
    held = recipe if isinstance(recipe, Recipe) else get_recipe(recipe)
    return Training(model=model, recipe=held, optimizer=get_optimizer(optimizer), **settings)


def kept(
    stack: type[Stack] | str, model: Model, recipe: str | Recipe, ranks: int, optimizer: str = "adamw", **settings: Any
) -> ModelStates:
    """Bytes that the largest of `ranks` keeps under a stack, named by its class or its strategy."""
    made = choose(stack, str(recipe)) if isinstance(stack, str) else stack
    return made(ranks=ranks).states(training(model, recipe, optimizer, **settings))


def handed(stack: type[Stack], model: Model, recipe: str, ranks: int, optimizer: str = "adamw") -> list[list[Piece]]:
    """What each rank hands its optimizer."""
    return list(stack(ranks=ranks).handed(training(model, recipe, optimizer), ranks))
