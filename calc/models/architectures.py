"""From a `config.json` to a `Model`, by the families in `calc/models/families`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from calc.models.families import FAMILIES, Family, family_of, model_types
from calc.models.families.fields import Fields
from calc.models.families.kinds import ATTENDS
from calc.models.tensors import Block, Model, Tensor
from calc.units import InputError, unknown

UNSUPPORTED = ("per_layer_config", "add_cross_attention")


def architectures() -> tuple[str, ...]:
    """The values of `model_type` whose tensors are known."""
    return model_types()


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a `config.json` describes, by transformers 5.24.0's rules and defaults.

    Of a multimodal config the text part is taken; its vision tower is left out.
    Raises `InputError` for an unknown `model_type` and for missing or impossible fields.

    >>> sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}
    >>> counts = {"num_hidden_layers": 2, "num_attention_heads": 4}
    >>> from_config({"model_type": "llama", **sizes, **counts}, "tiny").num_params
    115008
    """
    text, notes = _text_config(config)
    family = _family(text)
    c = Fields(family, text)
    hidden_size, num_heads = c["hidden_size"], c["num_attention_heads"]
    if family.heads_divide and hidden_size % num_heads:
        message = f"hidden_size {hidden_size} must be a multiple of num_attention_heads {num_heads}"
        raise InputError(message)
    blocks = _blocks(c)
    if num_heads % (num_kv := c.sizes.get("num_key_value_heads", 1)):
        message = (
            f"num_attention_heads {num_heads} must be a multiple of num_key_value_heads {num_kv}"
        )
        raise InputError(message)
    tied = c.flag("tie_word_embeddings") and family.ties
    head = () if tied else (Tensor(name="lm_head.weight", shape=(c["vocab_size"], hidden_size)),)
    first = _held(family.first(c))
    last = (*_held(family.last(c)), *head)
    for field, compute in family.filled.items():
        c.sizes.setdefault(field, compute(c))
    return Model(
        name=name,
        model_type=text["model_type"],
        config=MappingProxyType(c.filled()),
        first=first,
        blocks=blocks,
        last=last,
        tied=tied,
        assumptions=(*notes, *c.assumptions()),
    )


def _family(text: Mapping[str, Any]) -> Family:
    """The family of a config, or an `InputError` that says why there is none."""
    model_type = text.get("model_type")
    if not isinstance(model_type, str):
        raise InputError("model_type is missing from the config, or is no text")
    family = family_of(model_type)
    if not family:
        error = unknown("model_type", model_type, architectures())
        raise InputError(f"{error}; or give the number of parameters, as in 70B")
    for field in UNSUPPORTED:
        if text.get(field):
            raise InputError(
                f"{field} is not supported; give the number of parameters instead, as in 70B"
            )
    return family


def _blocks(c: Fields) -> tuple[Block, ...]:
    """The layers, grouped by their kinds of attention and MLP."""
    family, layer_numbers = c.family, range(c.num_layers)
    attentions, mlps = family.attentions(c), family.mlps(c)
    groups: dict[tuple[str, str], list[int]] = {}
    for layer, attends, kind in zip(layer_numbers, attentions, mlps, strict=True):
        groups.setdefault((attends, kind), []).append(layer)
    blocks = []
    for (attends, kind), layers in groups.items():
        mlp = kind if kind in ("moe", "relu2", "none") else "dense"
        words = [attends] if len(set(attentions)) > 1 and attends != "no_attention" else []
        words += [mlp] if not words or (len(set(mlps)) > 1 and mlp != "none") else []
        tensors = _held(family.layer(c, attends, kind), family.prefix)
        block = Block(
            name=" ".join(words),
            layers=tuple(layers),
            tensors=tensors,
            attention={**ATTENDS, **family.attends}[attends],
            mlp=family.activation if mlp == "dense" else mlp,
        )
        blocks.append(block)
    return tuple(blocks)


def _held(tensors: Iterable[Tensor], prefix: str = "") -> tuple[Tensor, ...]:
    """`tensors` with `prefix` before their names, without those that have no elements."""
    return tuple(replace(t, name=prefix + t.name) for t in tensors if t.numel)


def _text_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The text part of a config, and what was left out."""
    notes = []
    text: Mapping[str, Any] = config
    if isinstance(config.get("text_config"), Mapping):
        outer = str(config.get("model_type"))
        families = (family.model_type for family in FAMILIES.values() if outer in family.text_of)
        text = {"model_type": next(families, f"{outer}_text"), **config["text_config"]}
        if "tie_word_embeddings" in config:
            text = {"tie_word_embeddings": config["tie_word_embeddings"], **text}
        left_out = "vision and audio towers are left out"
        notes.append(f"only the text model of this {outer} config is counted: {left_out}")
    if (
        text.get("num_nextn_predict_layers")
        or text.get("mtp_num_hidden_layers")
        or text.get("use_mtp")
    ):
        notes.append("multi-token-prediction layers are left out, as transformers leaves them out")
    if config.get("quantization_config") or text.get("quantization_config"):
        notes.append(
            "the checkpoint's quantisation is ignored: its weights are counted as plain tensors"
        )
    return text, notes
