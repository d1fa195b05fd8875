"""Phi-3 and Phi-4: Llama's layer with q, k and v in one matrix, gate and up in another.

transformers 5.24.0 (`modeling_phi3.py`): rotary embedding turns the first part of each head and
concatenates it with the rest, so that attention's output is copied once more before the output
projection. Counted are all of these operations; v stays a slice of the fused projection, which is
kept whole.
"""

from __future__ import annotations

from calc.models.families import attention, mlp
from calc.models.families.family import SLICES, Family, Fields, Layer, Ops, Tensors, register
from calc.models.families.kinds import windowed
from calc.models.families.modules import linear


def fused_attention(c: Fields, kind: str) -> Tensors:
    yield from attention.out_of_heads(c)
    query = c["num_attention_heads"] * c["head_dim"]
    both = query + 2 * c["num_key_value_heads"] * c["head_dim"]
    yield from linear("self_attn.qkv_proj", both, c["hidden_size"])


def fused_mlp(c: Fields, kind: str) -> Tensors:
    inner, hidden_size = c["intermediate_size"], c["hidden_size"]
    yield from linear("mlp.gate_up_proj", 2 * inner, hidden_size)
    yield from linear("mlp.down_proj", hidden_size, inner)


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from attention.grouped_query(layer, split_rope=True)
    yield layer.norm("post_attention_layernorm")
    yield from mlp.gated_mlp(layer)


register(
    Family(
        model_type="phi3",
        defaults={
            "num_key_value_heads": None,
            "sliding_window": None,
            "head_dim": None,
        },
        attentions=windowed,
        attention=fused_attention,
        mlp=fused_mlp,
        operations=operations,
        slices=SLICES | {"qkv_proj": "columns"},
    )
)
