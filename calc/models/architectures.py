"""From a `config.json` to a `Model`, by the table `calc/data/models-architectures.json`.

The table says which parts a layer of each architecture has, and which tensors a part has,
with their names and shapes as transformers 5.24.0 instantiates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from calc.models.fields import MAX_LAYERS, Fields, table
from calc.models.kinds import kinds
from calc.models.tensors import Block, Model, Tensor
from calc.units import InputError, unknown

UNSUPPORTED = ("per_layer_config", "add_cross_attention")


def architectures() -> tuple[str, ...]:
    """The values of `model_type` whose tensors are known."""
    return (*table()["architectures"], *table()["same_as"])


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a `config.json` describes, by transformers 5.24.0's rules and defaults.

    Of a multimodal config the text part is taken; its vision tower is left out.
    Raises `InputError` for an unknown `model_type` and for missing or impossible fields.

    >>> from_config({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
    ...              "num_hidden_layers": 2, "num_attention_heads": 4}, "tiny").num_params
    115008
    """
    text, notes = _text_config(config)
    model_type = text.get("model_type")
    if not isinstance(model_type, str):
        raise InputError("model_type is missing from the config, or is no text")
    if model_type not in architectures():
        error = unknown("model_type", model_type, architectures())
        raise InputError(f"{error}; or give the number of parameters, as in 70B")
    for field in UNSUPPORTED:
        if text.get(field):
            raise InputError(f"{field} is not supported; give the number of parameters instead, as in 70B")
    c = Fields(table()["same_as"].get(model_type, model_type), text)
    hidden, query = c.size("hidden_size"), c.size("num_attention_heads")
    if c.row.get("divides") and hidden % query:
        raise InputError(f"hidden_size {hidden} must be a multiple of num_attention_heads {query}")
    blocks = _blocks(c)
    if query % (kv := c.sizes.get("num_key_value_heads", 1)):
        raise InputError(f"num_attention_heads {query} must be a multiple of num_key_value_heads {kv}")
    tied = c.flag("tie_word_embeddings") and c.row.get("ties", True)
    head = () if tied else (Tensor(name="lm_head.weight", shape=(c.size("vocab_size"), hidden)),)
    first = tuple(_tensors(c, c.row.get("first", "embed"), ""))
    last = (*_tensors(c, c.row.get("last", "final_norm"), ""), *head)
    for field, formula in c.row.get("fill", {}).items():
        c.sizes.setdefault(field, c.number(formula))
    return Model(
        name=name,
        model_type=model_type,
        config=MappingProxyType(c.filled()),
        first=first,
        blocks=blocks,
        last=last,
        tied=tied,
        assumptions=(*notes, *c.assumptions()),
    )


def _blocks(c: Fields) -> tuple[Block, ...]:
    """The layers, grouped by their kinds of attention and MLP."""
    num_layers = c.size("num_hidden_layers", MAX_LAYERS)
    attention, mlp = (kinds(c, choices, num_layers) for choices in c.row["kinds"])
    groups: dict[tuple[str, str], list[int]] = {}
    for layer, kind in enumerate(zip(attention, mlp, strict=True)):
        groups.setdefault(kind, []).append(layer)
    blocks = []
    for (attention_kind, mlp_kind), layers in groups.items():
        parts = (c.row.get(attention_kind, c.row.get("attention", "")), c.row.get(mlp_kind, ""), c.row["layer"])
        mlp_word = mlp_kind if mlp_kind in ("moe", "relu2", "none") else "dense"
        words = [attention_kind] if len(set(attention)) > 1 and attention_kind != "no_attention" else []
        words += [mlp_word] if not words or (len(set(mlp)) > 1 and mlp_kind != "none") else []
        name, tensors = " ".join(words), tuple(_tensors(c, " ".join(parts), c.row.get("prefix", "model.layers.*.")))
        attends = table()["attention"][attention_kind]
        acts = c.row.get("activation", "swiglu") if mlp_word == "dense" else mlp_word
        blocks.append(Block(name=name, layers=tuple(layers), tensors=tensors, attention=attends, mlp=acts))
    return tuple(blocks)


def _tensors(c: Fields, parts: str, prefix: str) -> Iterator[Tensor]:
    """The tensors of `parts`; a part after which comes `?field` is there only where that field says so."""
    for part in parts.split():
        name, *conditions = part.split("?")
        if all(c.holds(condition) for condition in conditions):
            for line in table()["parts"][name]:
                yield from (replace(tensor, name=prefix + tensor.name) for tensor in _module(c, line) if tensor.numel)


def _module(c: Fields, line: str) -> Iterator[Tensor]:
    """The tensors of one line of the table: name, kind and dimensions of a module or parameter."""
    name, kind, *dimensions = line.split()
    shape = tuple(c.number(dimension) for dimension in dimensions)
    kind, plus, bias = kind.partition("+")
    if kind == "expert":
        top_k = c.row.get("top_k", "num_experts_per_tok")
        if (chosen := c.size(top_k)) > shape[0]:
            raise InputError(f"{top_k} {chosen} must not be larger than the number of experts, {shape[0]}")
        yield Tensor(name=name, shape=shape, kind=kind, active=Fraction(chosen, shape[0]))
    elif kind in ("linear", "norm", "embedding"):
        yield Tensor(name=f"{name}.weight", shape=shape, kind=kind)
        if plus and (not bias or (bias in c.defaults and c.flag(bias))):
            yield Tensor(name=f"{name}.bias", shape=shape[:1], kind="bias")
    elif kind in ("layernorm", "conv1d"):
        weight, other = ("norm", "norm") if kind == "layernorm" else ("linear", "bias")
        yield Tensor(name=f"{name}.weight", shape=shape[::-1], kind=weight)
        yield Tensor(name=f"{name}.bias", shape=shape[:1], kind=other)
    else:
        yield Tensor(name=name, shape=shape, kind=kind)


def _text_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The text part of a config, and what was left out."""
    notes = []
    text: Mapping[str, Any] = config
    if isinstance(config.get("text_config"), Mapping):
        outer = str(config.get("model_type"))
        text = {"model_type": table()["text_types"].get(outer, f"{outer}_text"), **config["text_config"]}
        if "tie_word_embeddings" in config:
            text = {"tie_word_embeddings": config["tie_word_embeddings"], **text}
        notes.append(f"only the text model of this {outer} config is counted: vision and audio towers are left out")
    if text.get("num_nextn_predict_layers") or text.get("mtp_num_hidden_layers") or text.get("use_mtp"):
        notes.append("multi-token-prediction layers are left out, as transformers leaves them out")
    if config.get("quantization_config") or text.get("quantization_config"):
        notes.append("the checkpoint's quantisation is ignored: its weights are counted as plain tensors")
    return text, notes
