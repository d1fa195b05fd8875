"""Named accountings: bytes per parameter, and terms such as 2·tokens·hidden·layers.

Every recipe is a ledger, and so is every calculator's formula in `calc/data/ledgers.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any

from calc.models import load
from calc.optimizers import get_optimizer
from calc.precision import RECIPES, get_recipe
from calc.stacks import get_strategy
from calc.units import records


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One accounting: `lines` in bytes per parameter, `terms` in bytes, all × `times`.

    A ledger with a `recipe` takes more lines from there, the optimizer's among them. `calculator`
    says of whose formula this is what it gives itself for 70B under ZeRO-3 on eight GPUs (`said`,
    `obtained`), what it `forgets`, the unit that it prints, and where and when it was read.
    """

    name: str
    title: str
    recipe: str = ""
    lines: Sequence[tuple[str, str, int]] = ()
    terms: Sequence[Sequence[str]] = ()
    times: str = "1"
    calculator: Mapping[str, str] | None = None

    def amounts(self, setup: Mapping[str, Any]) -> dict[str, Fraction]:
        """Nominal bytes per GPU of each line: per parameter × parameters, divided by stage."""
        sizes, stage = quantities(setup), get_strategy(setup["strategy"]).stage
        per_param = [(line, Fraction(size), since) for line, size, since in self.lines]
        if self.recipe:
            recipe = get_recipe(self.recipe)
            per_param += [
                (copy.line, Fraction(copy.itemsize), copy.stage) for copy in recipe.copies
            ]
            state = get_optimizer(setup["optimizer"]).nominal_bytes(recipe.state_dtype)
            per_param.append(("optimizer", Fraction(state), 1))
        found = [(line, size * sizes["params"], stage >= since) for line, size, since in per_param]
        for line, size, *names in self.terms:
            found.append((line, Fraction(size) * prod(sizes[name] for name in names), False))
        total: dict[str, Fraction] = {}
        for line, amount, divided in found:
            share = amount * Fraction(self.times) * (sizes["per-gpu"] if divided else 1)
            total[line] = total.get(line, Fraction(0)) + share
        return total


def quantities(setup: Mapping[str, Any]) -> dict[str, Fraction]:
    """What a term may multiply: counts and widths of the model, tokens, GPUs."""
    model, shape = load(setup["model"]), load(setup.get("architecture", setup["model"]))
    seq_len, gpus = setup.get("seq_len", 2048), setup.get("gpus", 1)
    found = {
        "params": model.num_params,
        "billions": model.num_params // 10**9 * 10**9,
        "gpus": gpus,
    }
    found |= {"seq": seq_len, "tokens": seq_len * setup.get("micro_batch", 1)}
    if shape.has_architecture:
        names = {"hidden": "hidden_size", "vocab": "vocab_size", "ffn": "intermediate_size"}
        names |= {"heads": "num_attention_heads", "kv": "num_key_value_heads"}
        found |= {
            name: int(str(shape.config[key])) for name, key in names.items() if key in shape.config
        }
        if "kv" in found:
            found["kv"] *= int(
                str(shape.config.get("head_dim") or found["hidden"] // found["heads"])
            )
        found |= {"layers": shape.num_layers, "layer": shape.largest_block.numel}
        found["largest"] = max(tensor.numel for tensor in shape.tensors)
    return {"per-gpu": Fraction(1, gpus)} | {
        k: Fraction(v) for k, v in (found | setup.get("sizes", {})).items()
    }


@cache
def ledgers() -> Mapping[str, Ledger]:
    """Every ledger by name: the recipes, then those of `calc/data/ledgers.json`.

    >>> setup = {"model": "8B", "strategy": "zero3", "gpus": 8, "sizes": {"largest": 0}}
    >>> int(sum(ledgers()["deepspeed-estimator"].amounts(setup).values()))
    18000000000
    """
    own = {
        name: Ledger(name=name, title=recipe.held_by, recipe=name)
        for name, recipe in RECIPES.items()
    }
    return MappingProxyType(
        own | {record["name"]: Ledger(**record) for record in records("ledgers")}
    )
