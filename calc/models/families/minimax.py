"""MiniMax-M2: Mixtral's experts, and one norm over all of q and one over all of k.

transformers 5.24.0 (`modeling_minimax_m2.py`): rotary embedding turns a part of each head and
concatenates it with the rest, which copies attention's output once more; the experts' outputs are
weighed in fp32. Counted are all of these operations. peft adapts the experts by the names w1 to w3.
"""

from __future__ import annotations

from calc.models.families import attention, experts
from calc.models.families.family import Family, Layer, Ops, register
from calc.models.families.kinds import every


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from attention.grouped_query(layer, split_rope=True)
    yield layer.norm("post_attention_layernorm")
    yield from experts.routed(layer, fp32_weighing=True)


register(
    Family(
        model_type="minimax_m2",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
        },
        aliases={
            "num_local_experts": ("num_experts",),
        },
        mlps=every("moe"),
        attention=attention.with_full_norms,
        mlp=experts.local,
        operations=operations,
        fused=experts.FUSED_W,
    )
)
