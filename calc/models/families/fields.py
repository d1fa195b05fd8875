"""Reading a `config.json` field by field: typed, bounded, with Hugging Face's defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calc.units import InputError, unknown, whole

if TYPE_CHECKING:
    from calc.models.families.family import Family

MAX_SIZE = 10**7
MAX_LAYERS = 10**4


class Fields:
    """The fields of one config; what it takes from the defaults it keeps in `assumed`.

    A field is read when the tensor that needs it is listed, and assumptions come in that order.
    """

    def __init__(self, family: Family, config: Mapping[str, Any]) -> None:
        self.family = family
        self.defaults = {"tie_word_embeddings": False, **family.defaults}
        self.config = config
        self.sizes: dict[str, int] = {}
        self.assumed: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """What the config says, under this name or another of the field's, else the default."""
        for key in (name, *self.family.aliases.get(name, ())):
            outer, dot, inner = key.partition(".")
            source = self.config.get(outer) if dot else self.config
            if isinstance(source, Mapping) and (inner or key) in source:
                return source[inner or key]
        if name not in self.defaults:
            needs = f"a {self.family.model_type} config needs it"
            raise InputError(f"{name} is missing from the config; {needs}")
        self.assumed.setdefault(name, self.defaults[name])
        return self.defaults[name]

    def size(self, name: str, low: int = 1, high: int = MAX_SIZE) -> int:
        """A whole number; a null is computed from other fields where transformers does so."""
        if name not in self.sizes:
            value = self.value(name)
            if value is None:
                value = self._computed(name)
                if name in self.assumed:
                    self.assumed[name] = value
            self.sizes[name] = whole(name, value, low, high)
        return self.sizes[name]

    def __getitem__(self, name: str) -> int:
        return self.size(name)

    def _computed(self, name: str) -> int:
        """What a null stands for."""
        nullable = name in self.family.nullable or self.defaults.get(name, 0) is None
        compute = {**COMPUTED, **self.family.computed}.get(name)
        if not nullable or not compute:
            raise InputError(f"{name} must be a whole number, not null")
        return compute(self)

    @property
    def num_layers(self) -> int:
        """The decoder layers."""
        return self.size("num_hidden_layers", 1, MAX_LAYERS)

    def given(self, name: str, low: int = 1) -> bool:
        """Whether a size is neither null nor 0."""
        return self.value(name) is not None and self.size(name, low) > 0

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, not {_short(value)}")
        return value

    def bias(self, name: str | bool) -> bool:
        """Whether linear layers have a bias: the answer, or a flag that only some families have."""
        return name if isinstance(name, bool) else name in self.defaults and self.flag(name)

    def layers(
        self,
        name: str,
        words: Mapping[str, str],
        longer: bool = False,
    ) -> Sequence[str] | None:
        """The list `name`, an entry a layer, translated by `words`; None where it is null.

        With `longer` it may go on after the last layer.
        """
        value, num_layers = self.value(name), self.num_layers
        if value is None:
            return None
        enough = isinstance(value, list | tuple | str) and len(value) >= num_layers
        if not enough or (len(value) > num_layers and not longer):
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
        """One line of the absent fields and what they were taken as; none if all are there."""
        taken = {name: value for name, value in self.assumed.items() if value is not None}
        if not taken:
            return ()
        defaults = f"transformers' {self.family.model_type} defaults"
        listed = ", ".join(f"{name}={json.dumps(value)}" for name, value in taken.items())
        return (f"absent from the config, so {defaults}: {listed}",)


def head_width(c: Fields) -> int:
    """The width of an attention head where the config does not say it."""
    return c["hidden_size"] // c["num_attention_heads"]


#: What a null stands for in every family; more stands in `Family.computed`.
COMPUTED: Mapping[str, Callable[[Fields], int]] = {
    "num_key_value_heads": lambda c: c["num_attention_heads"],
    "head_dim": head_width,
}


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
