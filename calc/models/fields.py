"""Reading a `config.json` field by field: typed, bounded, with Hugging Face's defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from calc.units import InputError, unknown, whole

MAX_SIZE = 10**7
MAX_LAYERS = 10**5


@cache
def defaults() -> Mapping[str, Mapping[str, Any]]:
    """By `model_type`: `defaults` of transformers 5.24.0's config class, and `alias` names of its fields."""
    text = files("calc").joinpath("data/models-defaults.json").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return table


class Fields:
    """The fields of one config; remembers what it filled in (`filled`) and where from (`assumed`)."""

    def __init__(self, model_type: str, config: Mapping[str, Any]) -> None:
        table = defaults()[model_type]
        self.model_type = model_type
        self.alias: Mapping[str, Sequence[str]] = table.get("alias", {})
        self.defaults: Mapping[str, Any] = table["defaults"]
        self.nullable: tuple[str, ...] = tuple(table.get("null", ()))
        self.filled: dict[str, Any] = dict(config)
        self.assumed: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """What the config says, else Hugging Face's default; required where there is none."""
        for key in (name, *self.alias.get(name, ())):
            if key in self.filled:
                return self.filled[key]
        if name not in self.defaults:
            raise InputError(f"{name} is missing from the config; a {self.model_type} config needs it")
        self.filled[name] = self.assumed[name] = self.defaults[name]
        return self.defaults[name]

    def size(self, name: str, *, null: int | None = None, low: int = 1, high: int = MAX_SIZE) -> int:
        """A whole number in low..high; `null` is what a null stands for, where it may be null."""
        value = self.value(name)
        if value is None and null is not None and (name in self.nullable or self.defaults.get(name, 0) is None):
            if null == 0:
                return 0
            value = null
            if name in self.assumed:
                self.assumed[name] = null
        self.filled[name] = whole(name, value, low, high)
        return whole(name, value, low, high)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, not {str(value)[:40]}")
        self.filled[name] = value
        return value

    def decide(self, choice: str | bool) -> bool:
        """`choice` itself, or what the field of that name says."""
        return self.flag(choice) if isinstance(choice, str) else choice

    def given(self, name: str) -> bool:
        """Whether the config itself says something other than null."""
        return name not in self.assumed and self.filled.get(name) is not None

    def indices(self, name: str) -> frozenset[int]:
        """A list of layer numbers; null is none."""
        value = self.value(name)
        if value is None:
            return frozenset()
        if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS:
            raise InputError(f"{name} must be a list of layer numbers, not {str(value)[:40]}")
        return frozenset(whole(name, entry, 0, MAX_LAYERS) for entry in value)

    def assumptions(self) -> tuple[str, ...]:
        """One line that lists the absent fields and what they were taken as; none if all were there."""
        taken = ", ".join(f"{name}={json.dumps(v)}" for name, v in self.assumed.items() if v is not None)
        line = f"not in the config, so Hugging Face's defaults for {self.model_type}: {taken}"
        return (line,) if taken else ()

    def layers(self, name: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
        """One of `allowed` for each layer; None where the field is null."""
        value, num_layers = self.value(name), self.size("num_hidden_layers", high=MAX_LAYERS)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != num_layers:
            raise InputError(f"{name} must be a list with one entry for each of the {num_layers:,} layers")
        for entry in value:
            if entry not in tuple(allowed):
                raise unknown(name, entry, allowed)
        return tuple(value)
