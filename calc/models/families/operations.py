"""The operations of a model's layers, by its family, and of which models they are not known."""

from __future__ import annotations

from functools import lru_cache

from calc.models.families.family import Family, family_of
from calc.models.families.layer import Layer, Op, windowed
from calc.models.tensors import Block, Model
from calc.units import InputError


def known_operations(model: Model) -> Family:
    """The family of a model whose operations are written down; raises `InputError` for another."""
    family = family_of(model)
    if not family or not family.operations:
        raise InputError(unsupported(model))
    return family


def unsupported(model: Model) -> str:
    """Why the activations of `model` are not computed; empty where they are.

    >>> from calc.models import load
    >>> unsupported(load("70B"))
    'a bare count has no architecture'
    >>> unsupported(load("llama-3.1-8b"))
    ''
    """
    if not model.has_architecture:
        return "a bare count has no architecture"
    family = family_of(model)
    if not family or not family.operations:
        return f"the operations of a {model.model_type} layer are not written down"
    return ""


def attention_of(model: Model, attention: str) -> str:
    """The attention that transformers runs: Gemma 2 has no SDPA and falls back to eager."""
    family = family_of(model)
    return "eager" if family and family.softcaps else attention


def operations(
    model: Model,
    block: Block,
    dtype: str = "bf16",
    adapters: str = "same",
    attention: str = "sdpa",
    seq_len: int = 1,
) -> tuple[Op, ...]:
    """The operations of one layer in order of the forward pass, each in bytes per token.

    `dtype` is what it computes in: bf16, fp32 or autocast. `adapters` read the `same` input as the
    base, or a copy that they `cast`, or one in `fp32`. `seq_len` matters to eager attention and to
    windows.

    >>> from calc.models import load
    >>> llama = load("llama-3.1-8b")
    >>> [op.name for op in operations(llama, llama.blocks[0])][:3]
    ['input_layernorm', 'qkv', 'attention']
    """
    matters = attention != "sdpa" or windowed(model.config, block, seq_len)
    return layer_of(model, block, dtype, adapters, attention, seq_len if matters else 1).operations


@lru_cache(maxsize=1024)
def layer_of(
    model: Model,
    block: Block,
    dtype: str,
    adapters: str,
    attention: str,
    seq_len: int,
) -> Layer:
    """The layer of `block` whose operations these are."""
    family = known_operations(model)
    return Layer(family, model, block, dtype, adapters, attention, seq_len)
