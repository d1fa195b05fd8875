"""GLM-4.5 to 4.7: grouped queries, then DeepSeek's experts after the first layers.

transformers 5.24.0 (`modeling_glm4_moe.py`): q, k and v may have a bias, the output projection has
none, and `use_qk_norm` adds norms over the heads of q and k. Rotary embedding turns half of each
head and concatenates it with the rest; router and weighing are in fp32. Counted are all of these
operations.
"""

from __future__ import annotations

from calc.models.families import attention, experts
from calc.models.families.family import Family, Fields, Layer, Ops, Tensors, register
from calc.models.families.kinds import after_dense


def projections(c: Fields, kind: str) -> Tensors:
    yield from attention.query_key_value(c)
    yield from attention.out_of_heads(c, bias="")
    if c.flag("use_qk_norm"):
        yield from attention.head_norms(c)


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from attention.grouped_query(layer, split_rope=True)
    yield layer.norm("post_attention_layernorm")
    yield from experts.routed(layer, fp32_router=True, fp32_weighing=True)


register(
    Family(
        model_type="glm4_moe",
        defaults={
            "num_key_value_heads": 8,
            "attention_bias": False,
            "use_qk_norm": False,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "head_dim": None,
        },
        aliases={
            "n_routed_experts": ("num_local_experts",),
        },
        mlps=after_dense,
        attention=projections,
        mlp=experts.after_dense,
        operations=operations,
        fused=experts.FUSED,
    )
)
