"""Qwen3 and its mixtures of experts: Llama's layer with a norm over each head of q and k.

transformers 5.24.0 (`modeling_qwen3.py`, `modeling_qwen3_moe.py`): q and k are normalised head by
head before the rotary embedding. In Qwen3-MoE every `decoder_sparse_step`-th layer has experts in
place of the MLP; router and weighing stay in the model's dtype. Counted are all of these
operations.
"""

from __future__ import annotations

from calc.models.families import attention, experts, mlp
from calc.models.families.family import Family, Fields, Layer, Ops, Tensors, register
from calc.models.families.kinds import listed_or_windowed, sparse_step, windowed


def dense_or_experts(c: Fields, kind: str) -> Tensors:
    if kind == "dense":
        yield from mlp.dense(c)
        return
    number = c.size("num_experts", 0)
    yield from experts.fused(c, "mlp.experts", number, c["moe_intermediate_size"])
    yield experts.gate(c, number)


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from attention.grouped_query(layer)
    yield layer.norm("post_attention_layernorm")
    yield from experts.routed(layer)


register(
    Family(
        model_type="qwen3",
        defaults={
            "num_key_value_heads": 32,
            "head_dim": 128,
            "attention_bias": False,
            "layer_types": None,
            "sliding_window": 4096,
            "use_sliding_window": False,
            "max_window_layers": 28,
        },
        nullable=("num_key_value_heads",),
        attentions=listed_or_windowed,
        attention=attention.with_head_norms,
        operations=operations,
    )
)

register(
    Family(
        model_type="qwen3_moe",
        defaults={
            "num_key_value_heads": 4,
            "attention_bias": False,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
            "sliding_window": 4096,
            "use_sliding_window": False,
            "head_dim": None,
        },
        aliases={
            "num_experts": ("num_local_experts",),
        },
        attentions=windowed,
        mlps=sparse_step,
        attention=attention.with_head_norms,
        mlp=dense_or_experts,
        operations=operations,
        fused=experts.FUSED,
    )
)
