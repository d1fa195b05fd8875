"""GPT-2: learned positions, LayerNorms with biases, and matrices stored as (in, out).

transformers 5.24.0 (`modeling_gpt2.py`): q, k and v are one matrix, the MLP has a GELU and no gate,
and every layer has a bias. Counted are the tensors; how ranks cut them is not written down.
"""

from __future__ import annotations

from calc.models.families.family import Family, Fields, Tensors, register
from calc.models.families.fields import head_width
from calc.models.families.modules import layernorm, table
from calc.models.tensors import Tensor


def _conv1d(name: str, out: int, into: int) -> Tensors:
    """GPT-2's own linear layer, with its matrix transposed."""
    yield Tensor(name=f"{name}.weight", shape=(into, out))
    yield Tensor(name=f"{name}.bias", shape=(out,), kind="bias")


def attention(c: Fields, kind: str) -> Tensors:
    hidden_size = c["hidden_size"]
    yield from layernorm("ln_1", hidden_size)
    yield from _conv1d("attn.c_attn", 3 * hidden_size, hidden_size)
    yield from _conv1d("attn.c_proj", hidden_size, hidden_size)


def mlp(c: Fields, kind: str) -> Tensors:
    hidden_size, inner = c["hidden_size"], c["n_inner"]
    yield from layernorm("ln_2", hidden_size)
    yield from _conv1d("mlp.c_fc", inner, hidden_size)
    yield from _conv1d("mlp.c_proj", hidden_size, inner)


def first(c: Fields) -> Tensors:
    yield table("transformer.wte", c["vocab_size"], c["hidden_size"])
    yield table("transformer.wpe", c["max_position_embeddings"], c["hidden_size"])


def last(c: Fields) -> Tensors:
    yield from layernorm("transformer.ln_f", c["hidden_size"])


register(
    Family(
        model_type="gpt2",
        defaults={
            "tie_word_embeddings": True,
            "n_inner": None,
            "max_position_embeddings": 1024,
        },
        aliases={
            "hidden_size": ("n_embd",),
            "max_position_embeddings": ("n_positions",),
            "num_attention_heads": ("n_head",),
            "num_hidden_layers": ("n_layer",),
        },
        heads_divide=True,
        computed={"n_inner": lambda c: 4 * c["hidden_size"]},
        filled={
            "intermediate_size": lambda c: c["n_inner"],
            "num_key_value_heads": lambda c: c["num_attention_heads"],
            "head_dim": head_width,
        },
        activation="gelu",
        attention=attention,
        mlp=mlp,
        norms=(),
        first=first,
        last=last,
        prefix="transformer.h.*.",
        slices={},
        transposed=True,
    )
)
