"""Llama 4: attention in chunks but for every fourth layer, and experts, or a wider MLP.

transformers 5.24.0 (`modeling_llama4.py`): layers with rotary embedding attend within chunks, those
without attend fully. A layer has experts with a shared one beside them, or an MLP of another width;
the experts' parameters are stored as (expert, in, out). Counted are the tensors.
"""

from __future__ import annotations

from calc.models.families import mlp
from calc.models.families.family import Family, Fields, Kinds, Tensors, register
from calc.models.families.kinds import ATTENTION
from calc.models.families.modules import expert, linear
from calc.units import InputError


def attentions(c: Fields) -> Kinds:
    return c.layers("layer_types", ATTENTION) or _by_rope(c)


def _by_rope(c: Fields) -> Kinds:
    """Every `no_rope_layer_interval`-th layer skips the rotary embedding and attends fully."""
    period, num_layers = c["no_rope_layer_interval"], c.num_layers
    rope = c.value("no_rope_layers") or [(i + 1) % period for i in range(num_layers)]
    if not isinstance(rope, list) or len(rope) < num_layers:
        entries = f"one entry for each of the {num_layers:,} layers"
        raise InputError(f"no_rope_layers must be a list with {entries}")
    return ["chunked_attention" if uses else "full_attention" for uses in rope[:num_layers]]


def mlps(c: Fields) -> Kinds:
    """Experts in the layers of `moe_layers`, else in every `interleave_moe_layer_step`-th."""
    step, listed = c["interleave_moe_layer_step"], c.value("moe_layers") is not None
    sparse = c.indices("moe_layers") if listed else range(step - 1, c.num_layers, step)
    return ["moe" if i in sparse else "dense" for i in range(c.num_layers)]


def dense_or_experts(c: Fields, kind: str) -> Tensors:
    if kind == "dense":
        yield from mlp.gated(c, "feed_forward", c["intermediate_size_mlp"])
        return
    number, hidden_size, inner = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
    yield expert(c, "feed_forward.experts.gate_up_proj", number, hidden_size, 2 * inner)
    yield expert(c, "feed_forward.experts.down_proj", number, inner, hidden_size)
    yield from linear("feed_forward.router", number, hidden_size)
    yield from mlp.gated(c, "feed_forward.shared_expert", inner)


register(
    Family(
        model_type="llama4_text",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": False,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 16384,
            "interleave_moe_layer_step": 1,
            "moe_layers": None,
            "layer_types": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        attentions=attentions,
        mlps=mlps,
        mlp=dense_or_experts,
    )
)
