"""Falcon: attention and MLP side by side on one normalised input, or on two.

transformers 5.24.0 (`modeling_falcon.py`): q, k and v are one matrix, the MLP has a GELU and no
gate. The older models have one key-value head, or one for each query head, and with
`parallel_attn` false two norms in a row. Counted are the tensors; how ranks cut them is not
written down.
"""

from __future__ import annotations

from calc.models.families import gpt2
from calc.models.families.family import Family, Fields, Kinds, Tensors, register
from calc.models.families.modules import layernorm, linear, table

#: The norms of a layer, by how attention and MLP stand to each other.
NORMS = {
    "parallel": ("input_layernorm",),
    "parallel_two_norms": ("ln_attn", "ln_mlp"),
    "sequential": ("post_attention_layernorm", "input_layernorm"),
}


def mlps(c: Fields) -> Kinds:
    """How attention and MLP stand to each other; the number of key-value heads on the way."""
    new = c.flag("new_decoder_architecture")
    old = 1 if c.flag("multi_query") else c["num_attention_heads"]
    c.sizes["num_key_value_heads"] = c["num_kv_heads"] if new else old
    count = c.value("num_ln_in_parallel_attn")
    two = new if count is None else c["num_ln_in_parallel_attn"] == 2
    parallel = "parallel_two_norms" if two else "parallel"
    return [parallel if c.flag("parallel_attn") else "sequential"] * c.num_layers


def attention(c: Fields, kind: str) -> Tensors:
    query = c["num_attention_heads"] * c["head_dim"]
    both = query + 2 * c["num_key_value_heads"] * c["head_dim"]
    hidden_size = c["hidden_size"]
    yield from linear("self_attention.query_key_value", both, hidden_size, c.bias("bias"))
    yield from linear("self_attention.dense", hidden_size, hidden_size, c.bias("bias"))


def mlp(c: Fields, kind: str) -> Tensors:
    inner, hidden_size = c["ffn_hidden_size"], c["hidden_size"]
    yield from linear("mlp.dense_h_to_4h", inner, hidden_size, c.bias("bias"))
    yield from linear("mlp.dense_4h_to_h", hidden_size, inner, c.bias("bias"))
    for name in NORMS[kind]:
        yield from layernorm(name, hidden_size)


def first(c: Fields) -> Tensors:
    yield table("transformer.word_embeddings", c["vocab_size"], c["hidden_size"])


register(
    Family(
        model_type="falcon",
        defaults={
            "num_kv_heads": None,
            "tie_word_embeddings": True,
            "ffn_hidden_size": None,
            "bias": False,
            "new_decoder_architecture": False,
            "parallel_attn": True,
            "multi_query": True,
            "num_ln_in_parallel_attn": None,
            "head_dim": None,
            "num_key_value_heads": None,
        },
        aliases={
            "hidden_size": ("n_embed",),
        },
        heads_divide=True,
        computed={
            "num_kv_heads": lambda c: c["num_attention_heads"],
            "ffn_hidden_size": lambda c: 4 * c["hidden_size"],
        },
        filled={"intermediate_size": lambda c: c["ffn_hidden_size"]},
        mlps=mlps,
        activation="gelu",
        attention=attention,
        mlp=mlp,
        norms=(),
        first=first,
        last=gpt2.last,
        prefix="transformer.h.*.",
        slices={},
    )
)
