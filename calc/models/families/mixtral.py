"""Mixtral: Llama's attention, and experts instead of the MLP.

transformers 5.24.0 (`modeling_mixtral.py`): a router chooses `num_experts_per_tok` experts for each
token; their matrices are fused into two parameters and multiplied as grouped products, and their
outputs are weighed in fp32. Counted are all of these operations. peft adapts the experts by their
old names, w1 to w3.
"""

from __future__ import annotations

from calc.models.families import attention, experts
from calc.models.families.family import Family, Layer, Ops, register
from calc.models.families.kinds import every, windowed


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from attention.grouped_query(layer)
    yield layer.norm("post_attention_layernorm")
    yield from experts.routed(layer, fp32_weighing=True)


register(
    Family(
        model_type="mixtral",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
        aliases={
            "num_local_experts": ("num_experts",),
        },
        attentions=windowed,
        mlps=every("moe"),
        mlp=experts.local,
        operations=operations,
        fused=experts.FUSED_W,
    )
)
