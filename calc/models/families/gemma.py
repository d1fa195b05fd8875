"""Gemma 2 and 3: norms before and after attention and MLP, and a GELU in the gate.

transformers 5.24.0 (`modeling_gemma2.py`, `modeling_gemma3.py`): norms multiply by their weight in
fp32. Gemma 2 passes scores and logits through a tanh, which SDPA cannot do, and has a window in
every second layer; Gemma 3 has norms over the heads of q and k instead, a window in five layers of
six, and tables of cosines and sines for each kind. Counted are all of these operations.
"""

from __future__ import annotations

from calc.models.families import attention, mlp
from calc.models.families.family import Family, Fields, Kinds, Layer, Ops, register
from calc.models.families.kinds import ATTENTION, interleaved, listed_or_every

NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def attentions(c: Fields) -> Kinds:
    given = c.layers("layer_types", ATTENTION)
    return given or interleaved(c, "sliding_attention", c["sliding_window_pattern"])


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from attention.grouped_query(layer)
    yield layer.norm("post_attention_layernorm")
    yield layer.norm("pre_feedforward_layernorm")
    yield from mlp.gated_mlp(layer)
    yield layer.norm("post_feedforward_layernorm")


#: What both config classes fill in.
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "layer_types": None,
}

register(
    Family(
        model_type="gemma2",
        defaults=DEFAULTS,
        heads_divide=True,
        attentions=listed_or_every(2),
        activation="geglu",
        norms=NORMS,
        operations=operations,
        fp32_norms=True,
        softcaps=True,
    )
)

register(
    Family(
        model_type="gemma3_text",
        defaults={
            **DEFAULTS,
            "sliding_window_pattern": 6,
            "vocab_size": 262208,
            "num_attention_heads": 8,
        },
        heads_divide=True,
        attentions=attentions,
        activation="geglu",
        attention=attention.with_head_norms,
        norms=NORMS,
        operations=operations,
        fp32_norms=True,
        rope_by_kind=True,
    )
)
