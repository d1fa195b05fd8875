"""What training keeps for each parameter: recipes (which copies) and optimizers (which states).

A recipe says which copies of weights and gradients exist, in which dtype, and from which ZeRO
stage each is divided. An optimizer says how many bytes of state one tensor has, and on paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from calc.units import DTYPE_BYTES, InputError, ceil_div, named, records


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy of every trainable parameter: its ledger line, dtype and first sharding stage."""

    line: str
    dtype: str
    stage: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A mixed-precision recipe: the copies that one training step keeps.

    `state_dtype` is the dtype of unquantised optimizer states, `held_by` the stacks that really
    hold it, `source` where the accounting is published or measured.
    """

    name: str
    copies: tuple[Copy, ...]
    state_dtype: str
    strategies: tuple[str, ...]
    held_by: str
    source: str

    def itemsize(self, line: str) -> int:
        """Bytes per parameter of one line (`weights`, `master` or `gradients`), 0 if absent.

        >>> get_recipe("deepspeed").itemsize("gradients")
        6
        """
        return sum(copy.itemsize for copy in self.copies if copy.line == line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer by the state that it keeps for each tensor.

    `states` names the state tensors of one parameter, `rule` the layout that `state_bytes` prices.
    `nominal` is the bytes per parameter that people use on paper for quantised states (None: the
    number of states × their dtype), `once_bytes` what exists once (code books). `paged` states
    may live in host memory.
    """

    name: str
    states: tuple[str, ...]
    rule: str
    nominal: int | None
    once_bytes: int
    paged: bool
    library: str
    note: str
    source: str

    def nominal_bytes(self, state_dtype: str) -> int:
        """Bytes of state per trainable parameter on paper, the figure of the one-line formula.

        >>> [get_optimizer(name).nominal_bytes("fp32") for name in ("adamw", "adamw8bit")]
        [8, 2]
        """
        return len(self.states) * DTYPE_BYTES[state_dtype] if self.nominal is None else self.nominal


def _recipes() -> Mapping[str, Recipe]:
    found = {}
    for record in records("recipes"):
        copies = tuple(Copy(line=line, dtype=dtype, stage=n) for line, dtype, n in record["copies"])
        found[record["name"]] = Recipe(**{**record, "copies": copies, "strategies": tuple(record["strategies"])})
    return MappingProxyType(found)


#: Every recipe and every optimizer by name, in the order of `calc/data`.
RECIPES: Mapping[str, Recipe] = _recipes()
OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {record["name"]: Optimizer(**{**record, "states": tuple(record["states"])}) for record in records("optimizers")}
)


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; raises `InputError` with the nearest known one."""
    return named("recipe", name, RECIPES)


def get_optimizer(name: str) -> Optimizer:
    """The optimizer of that name; raises `InputError` with the nearest known one."""
    return named("optimizer", name, OPTIMIZERS)


def state_bytes(optimizer: Optimizer, shape: tuple[int, ...], state_dtype: str, *, kind: str = "linear") -> int:
    """Bytes of optimizer state for one tensor (or the local shard) of `shape`.

    Formula, n = elements: plain states·n·itemsize; bitsandbytes 8-bit: states·(n +
    4·⌈n/256⌉), and 4·states·n below 4,096 elements; bitsandbytes 32-bit 4·states·n; torchao 8-bit:
    2·(n + 4n/256 + 1,024) where n ≥ 4,096 is a multiple of 256, torchao 4-bit: 2·(n/2 + 4n/128 + 64) where n ≥ 4,096 is
    a multiple of 128, else two states in the parameter's dtype; Adafactor: rows + columns of a matrix,
    n of a vector (Transformers' in fp32); Muon: one state for a matrix, AdamW's two for the rest.
    Source: the libraries' own state tensors, measured (Verification page).

    >>> state_bytes(get_optimizer("adamw"), (4096, 4096), "fp32")
    134217728
    >>> state_bytes(get_optimizer("adamw8bit"), (4096, 4096), "bf16")
    34078720
    """
    numel, itemsize, count = prod(shape), DTYPE_BYTES[state_dtype], len(optimizer.states)
    if numel == 0:
        return 0
    rule = optimizer.rule
    blocks = rule.startswith("bnb8") and numel >= 4096 and not (rule == "bnb8-trainer" and kind == "embedding")
    if rule == "fp32" or (rule.startswith("bnb8") and not blocks):
        return 4 * count * numel
    if blocks:
        return count * (numel + 4 * ceil_div(numel, 256))
    if rule == "torchao8" and numel >= 4096 and numel % 256 == 0:
        return count * (numel + 4 * (numel // 256) + 1024)
    if rule == "torchao4" and numel >= 4096 and numel % 128 == 0:
        return count * (numel // 2 + 4 * (numel // 128) + 64)
    if rule.startswith("adafactor"):
        itemsize = 4 if rule == "adafactor-fp32" else itemsize
        return itemsize * (numel if len(shape) < 2 else numel // shape[-1] + numel // shape[-2])
    if rule == "muon" and not is_muon(shape, kind):
        return 2 * numel * itemsize
    return count * numel * itemsize


def is_muon(shape: tuple[int, ...], kind: str) -> bool:
    """Whether Muon takes the tensor: a matrix that is no embedding; AdamW takes the rest."""
    return len(shape) == 2 and kind != "embedding"


def refuse(strategy: str, recipe: Recipe, optimizer: Optimizer) -> None:
    """Raise `InputError`, with what is allowed, where the three do not run together.

    Source: each pair was run on two real ranks (Verification page).
    """
    if strategy not in recipe.strategies:
        fitting = (name for name, other in RECIPES.items() if strategy in other.strategies)
        ways = f"it runs under: {', '.join(recipe.strategies)}; {strategy} takes recipe: {', '.join(fitting)}"
        raise InputError(f"recipe {recipe.name!r} does not run under strategy {strategy!r}; {ways}")
    if reason := _trouble(strategy, recipe, optimizer):
        fitting = (name for name, other in OPTIMIZERS.items() if not _trouble(strategy, recipe, other))
        pair = f"strategy {strategy!r} with recipe {recipe.name!r}"
        allowed = ", ".join(fitting)
        raise InputError(f"optimizer {optimizer.name!r} does not run under {pair}: {reason}; allowed: {allowed}")


def _trouble(strategy: str, recipe: Recipe, optimizer: Optimizer) -> str:
    """Why the optimizer fails on what this strategy hands it, empty where it runs."""
    rule, library = optimizer.rule, optimizer.library
    if recipe.name == "bf16-fp32-states" and library.startswith("torch") and optimizer.name not in ("adamw", "sgd"):
        return f"{library} keeps its states in the parameters' dtype"
    if rule == "muon" and (strategy == "fsdp1" or (strategy.startswith("zero") and recipe.itemsize("master"))):
        return f"{library} fails on flat shards, which are no matrices"
    if strategy not in ("fsdp2", "hsdp"):
        return ""
    if rule.startswith(("bnb8", "adafactor", "fp32")):
        return f"{library} fails on DTensor shards"
    if rule.startswith("torchao") and recipe.itemsize("weights") == 2:
        return f"{library} needs fp32 shards there"
    return ""
