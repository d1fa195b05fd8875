"""Llama, Mistral and Ministral 3: the layer that most others vary.

transformers 5.24.0 (`modeling_llama.py`): each layer normalises the residual stream, attends with
grouped queries and rotary embedding, normalises again and passes a gated MLP; both halves are
added to the stream. Mistral has no biases, and a window in all layers where the config says one.
Counted are all of these operations, in bf16, fp32 and autocast, with SDPA and eager attention.
"""

from __future__ import annotations

from calc.models.families import attention, mlp
from calc.models.families.family import Family, Layer, Ops, register
from calc.models.families.kinds import windowed


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from attention.grouped_query(layer)
    yield layer.norm("post_attention_layernorm")
    yield from mlp.gated_mlp(layer)


register(
    Family(
        model_type="llama",
        defaults={
            "num_key_value_heads": None,
            "head_dim": None,
            "attention_bias": False,
            "mlp_bias": False,
        },
        heads_divide=True,
        attention=attention.projections,
        mlp=mlp.dense,
        norms=("input_layernorm", "post_attention_layernorm"),
        operations=operations,
    )
)

register(
    Family(
        model_type="mistral",
        text_of=("mistral3",),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": None,
            "sliding_window": 4096,
        },
        attentions=windowed,
        operations=operations,
    )
)

register(
    Family(
        model_type="ministral3",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "sliding_window": None,
        },
        attentions=windowed,
        operations=operations,
    )
)
