"""The stacks: what a framework does around each module of a model, and what of it one rank keeps.

A file per stack. `choose` finds the one that holds a recipe under the command line's word for a
strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from calc.optimizers import OPTIMIZERS, Optimizer
from calc.precision import RECIPES, Recipe
from calc.stacks.base import Stack
from calc.stacks.ddp import DDP
from calc.stacks.deepspeed3 import DeepSpeed3
from calc.stacks.deepspeed12 import DeepSpeed1, DeepSpeed2
from calc.stacks.fsdp1 import FSDP1
from calc.stacks.fsdp2 import FSDP2
from calc.stacks.hsdp import HSDP
from calc.stacks.megatron import Megatron, MegatronDistributed
from calc.stacks.shards import ModelStates
from calc.stacks.single import Single
from calc.stacks.zero_redundancy import ZeroRedundancy
from calc.units import InputError, named, records

__all__ = [
    "STACKS",
    "STRATEGIES",
    "ModelStates",
    "Stack",
    "Strategy",
    "choose",
    "get_strategy",
    "refuse",
    "settings_of",
]

#: Every stack, in the order in which a strategy's are tried.
STACKS: tuple[type[Stack], ...] = (
    Single,
    DDP,
    ZeroRedundancy,
    FSDP1,
    FSDP2,
    HSDP,
    DeepSpeed1,
    DeepSpeed2,
    DeepSpeed3,
    Megatron,
    MegatronDistributed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A word for how ranks divide the training state, by which the command line names a stack.

    `stage` is ZeRO's: 0 nothing, 1 optimizer and master copy, 2 gradients too, 3 weights too.
    `layout` is how a divided tensor is cut, in a word.
    """

    name: str
    stage: int
    layout: str
    title: str
    also_called: str
    source: str


#: Every strategy by name, in the order of `calc/data/strategies.json`.
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {record["name"]: Strategy(**record) for record in records("strategies")}
)


def get_strategy(name: str) -> Strategy:
    """The strategy of that name; raises `InputError` with the nearest known one."""
    return named("strategy", name, STRATEGIES)


def choose(strategy: str, recipe: str) -> type[Stack]:
    """The stack that holds `recipe` under `strategy`; raises `InputError` with those that go
    together.

    >>> choose("zero1", "fp32").__name__, choose("zero1", "zero").__name__
    ('ZeroRedundancy', 'DeepSpeed1')
    """
    get_strategy(strategy)
    for stack in STACKS:
        if stack.strategy == strategy and recipe in stack.recipes:
            return stack
    ways = [name for name in STRATEGIES if recipe in recipes_of(name)]
    fitting = recipes_of(strategy)
    raise InputError(
        f"recipe {recipe!r} does not run under strategy {strategy!r}; "
        f"it runs under: {', '.join(ways)}; {strategy} takes recipe: {', '.join(fitting)}"
    )


def recipes_of(strategy: str) -> tuple[str, ...]:
    """The recipes that a stack holds under `strategy`, in the order of `RECIPES`.

    >>> recipes_of("zero2")
    ('zero', 'deepspeed')
    """
    held = {name for stack in STACKS if stack.strategy == strategy for name in stack.recipes}
    return tuple(name for name in RECIPES if name in held)


def refuse(strategy: str, recipe: Recipe, optimizer: Optimizer) -> None:
    """Raise `InputError`, with what is allowed, where the three do not run together.

    Source: each pair was run on two real ranks (Verification page).
    """
    stack = choose(strategy, recipe.name)
    if reason := optimizer.refusal(stack.shards, recipe):
        fitting = (
            name for name, other in OPTIMIZERS.items() if not other.refusal(stack.shards, recipe)
        )
        raise InputError(
            f"optimizer {optimizer.name!r} does not run under strategy {strategy!r} "
            f"with recipe {recipe.name!r}: {reason}; allowed: {', '.join(fitting)}"
        )


def settings_of(stack: type[Stack]) -> tuple[str, ...]:
    """The settings that a stack has beside its ranks and its `offload`."""
    return tuple(
        field.name for field in fields(stack) if field.name not in ("ranks", "offload", "groups")
    )
