"""gpt-oss: a window in every second layer, sinks beside the scores, and experts with biases.

transformers 5.24.0 (`modeling_gpt_oss.py`): each head has a learned sink that takes part in the
softmax. Every layer has experts; their parameters are stored as (expert, in, out), with biases of
their own, and the router has one too. Counted are the tensors.
"""

from __future__ import annotations

from calc.models.families import attention
from calc.models.families.family import SLICES, Family, Fields, Tensors, register
from calc.models.families.kinds import every, listed_or_every
from calc.models.families.modules import expert, other, router


def with_sinks(c: Fields, kind: str) -> Tensors:
    yield other("self_attn.sinks", c["num_attention_heads"])
    yield from attention.projections(c)


def biased_experts(c: Fields, kind: str) -> Tensors:
    number, hidden_size, inner = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
    yield router("mlp.router.weight", number, hidden_size)
    yield router("mlp.router.bias", number)
    yield expert(c, "mlp.experts.gate_up_proj", number, hidden_size, 2 * inner)
    yield expert(c, "mlp.experts.gate_up_proj_bias", number, 2 * inner)
    yield expert(c, "mlp.experts.down_proj", number, inner, hidden_size)
    yield expert(c, "mlp.experts.down_proj_bias", number, hidden_size)


register(
    Family(
        model_type="gpt_oss",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attention_bias": True,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "layer_types": None,
        },
        aliases={
            "num_local_experts": ("num_experts",),
        },
        attentions=listed_or_every(2),
        mlps=every("moe"),
        attention=with_sinks,
        mlp=biased_experts,
        slices=SLICES | {"sinks": "columns"},
    )
)
