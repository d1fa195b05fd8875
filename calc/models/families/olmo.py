"""OLMo 2 and 3: norms after attention and MLP, none before, and one over all of q and of k.

transformers 5.24.0 (`modeling_olmo2.py`, `modeling_olmo3.py`): norms multiply by their weight in
fp32, and cosines and sines stay in fp32. OLMo 3 has a window in three layers of four, with tables
of its own. Counted are all of these operations.
"""

from __future__ import annotations

from calc.models.families import attention, mlp
from calc.models.families.family import Family, Layer, Ops, register
from calc.models.families.kinds import listed_or_every

NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def operations(layer: Layer) -> Ops:
    yield from attention.grouped_query(layer)
    yield layer.norm("post_attention_layernorm")
    yield from mlp.gated_mlp(layer)
    yield layer.norm("post_feedforward_layernorm")


register(
    Family(
        model_type="olmo2",
        defaults={
            "num_key_value_heads": None,
            "attention_bias": False,
            "head_dim": None,
        },
        attention=attention.with_full_norms,
        norms=NORMS,
        operations=operations,
        fp32_norms=True,
        fp32_rope=True,
    )
)

register(
    Family(
        model_type="olmo3",
        defaults={
            "num_key_value_heads": None,
            "attention_bias": False,
            "layer_types": None,
            "head_dim": None,
        },
        attentions=listed_or_every(4),
        attention=attention.with_full_norms,
        norms=NORMS,
        operations=operations,
        fp32_norms=True,
        fp32_rope=True,
        rope_by_kind=True,
    )
)
