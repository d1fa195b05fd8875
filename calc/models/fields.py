"""Reading a `config.json` field by field: typed, bounded, with Hugging Face's defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from calc.units import InputError, unknown, whole

MAX_SIZE = 10**7
MAX_LAYERS = 10**4
#: Lists that may go on after the last layer.
LONGER = ("compress_ratios",)


@cache
def table() -> Mapping[str, Any]:
    """`calc/data/models-architectures.json`; its entry `about` explains it."""
    file = Path(__file__).parents[1] / "data" / "models-architectures.json"
    result: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


class Fields:
    """The fields of one config; what it takes from the defaults it keeps in `assumed`."""

    def __init__(self, model_type: str, config: Mapping[str, Any]) -> None:
        self.model_type = model_type
        self.row: Mapping[str, Any] = table()["architectures"][model_type]
        self.defaults: Mapping[str, Any] = self.row["defaults"]
        self.config = config
        self.sizes: dict[str, int] = {}
        self.assumed: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """What the config says, under this name or another of the field's, else Hugging Face's default."""
        for key in (name, *self.row.get("alias", {}).get(name, ())):
            outer, dot, inner = key.partition(".")
            source = self.config.get(outer) if dot else self.config
            if isinstance(source, Mapping) and (inner or key) in source:
                return source[inner or key]
        if name not in self.defaults:
            raise InputError(f"{name} is missing from the config; a {self.model_type} config needs it")
        self.assumed.setdefault(name, self.defaults[name])
        return self.defaults[name]

    def size(self, name: str, high: int = MAX_SIZE) -> int:
        """A whole number up to `high`; a null is computed from other fields where transformers does so."""
        if name in self.sizes:
            return self.sizes[name]
        value = self.value(name)
        if value is None:
            formula = table()["null"].get(name)
            if not formula or (self.defaults.get(name, 0) is not None and name not in self.row.get("null", ())):
                raise InputError(f"{name} must be a whole number, not null")
            value = self.number(formula)
            if name in self.assumed:
                self.assumed[name] = value
        self.sizes[name] = whole(name, value, 0 if name in table()["zero"] else 1, high)
        return self.sizes[name]

    def number(self, formula: str) -> int:
        """A sum of products and quotients of sizes: `num_attention_heads*head_dim+2*kv_lora_rank`."""
        total = 0
        for term in formula.split("+"):
            result = 1
            for factor in term.split("*"):
                first, *divisors = factor.split("/")
                result *= int(first) if first.isdigit() else self.size(first)
                for divisor in divisors:
                    result //= self.size(divisor)
            total += result
        return total

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, not {_short(value)}")
        return value

    def holds(self, condition: str) -> bool:
        """Whether a field is true, or is a size and neither null nor 0; `!` before its name negates."""
        name = condition.removeprefix("!")
        if name in table()["optional"]:
            return (self.value(name) is not None and self.size(name) > 0) != condition.startswith("!")
        return self.flag(name) != condition.startswith("!")

    def layers(self, name: str, words: Mapping[str, str], num_layers: int) -> list[str] | None:
        """The list `name`, one entry per layer, translated by `words`; None where it is null."""
        value = self.value(name)
        if value is None:
            return None
        enough = isinstance(value, list | tuple | str) and len(value) >= num_layers
        if not enough or (len(value) > num_layers and name not in LONGER):
            raise InputError(f"{name} must have one entry for each of the {num_layers:,} layers")
        entries = [str(entry) for entry in value[:num_layers]]
        for entry in dict.fromkeys(entries):
            if entry not in words:
                raise unknown(name, entry, words)
        return [words[entry] for entry in entries]

    def indices(self, name: str) -> frozenset[int]:
        """A list of layer numbers; null is none."""
        value = self.value(name)
        if not isinstance(value, list | tuple | None) or len(value or ()) > MAX_LAYERS:
            raise InputError(f"{name} must be a list of layer numbers, not {_short(value)}")
        return frozenset(whole(name, entry, 0, MAX_LAYERS) for entry in value or ())

    def filled(self) -> dict[str, Any]:
        """The config with every default and every computed size in it."""
        return {**self.config, **self.assumed, **self.sizes}

    def assumptions(self) -> tuple[str, ...]:
        """One line that lists the absent fields and what they were taken as; none if all were there."""
        taken = ", ".join(f"{name}={json.dumps(value)}" for name, value in self.assumed.items() if value is not None)
        return (f"absent from the config, so transformers' {self.model_type} defaults: {taken}",) if taken else ()


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
