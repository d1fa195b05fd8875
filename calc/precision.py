"""Which copies of weights and gradients training keeps, in which dtype, and what it computes in.

A recipe says which copies exist and from which ZeRO stage each of them is divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from calc.units import DTYPE_BYTES, named, records


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCopy:
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
    copies: tuple[ParameterCopy, ...]
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

    @property
    def stepped_itemsize(self) -> int:
        """Bytes of one element of what the optimizer is handed: the master copy, or the weights.

        >>> [get_recipe(name).stepped_itemsize for name in ("deepspeed", "pure-bf16")]
        [4, 2]
        """
        return self.itemsize("master") or self.itemsize("weights")


def _recipe(record: dict[str, Any]) -> Recipe:
    copies = [dict(zip(("line", "dtype", "stage"), copy, strict=True)) for copy in record["copies"]]
    kept = {"copies": tuple(ParameterCopy(**copy) for copy in copies)}
    return Recipe(**{**record, **kept, "strategies": tuple(record["strategies"])})


_READ = map(_recipe, records("recipes"))
#: Every recipe by name, in the order of `calc/data/recipes.json`.
RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in _READ})


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; raises `InputError` with the nearest known one."""
    return named("recipe", name, RECIPES)


def compute_dtype(recipe: str, lora_base: str = "") -> tuple[str, str]:
    """What a recipe computes in (bf16, fp32 or autocast), and what its adapters do to their input.

    With LoRA on a 16-bit or NF4 base the base computes in bf16. Adapters of that dtype read the
    `same` input as the base, fp32 ones beside it (`fp32`) an fp32 copy each, and under autocast
    (`cast`) a bf16 copy each.
    Source: `_cast_input_dtype` in peft 0.21.2, measured.

    >>> compute_dtype("autocast"), compute_dtype("autocast", "nf4"), compute_dtype("fp32", "bf16")
    (('autocast', 'cast'), ('bf16', 'cast'), ('bf16', 'fp32'))
    """
    by_name = recipe in ("fp32", "autocast") and lora_base in ("", "fp32")
    own = recipe if by_name else "bf16"
    if recipe == "autocast":
        return own, "cast"
    return own, "fp32" if recipe == "fp32" != own else "same"
