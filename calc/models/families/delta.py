"""Qwen3-Next and Qwen3.5: three layers of linear attention, then one of gated full attention.

transformers 5.24.0 (`modeling_qwen3_next.py`, `modeling_qwen3_5.py`): the linear layers are gated
delta nets, a short convolution over q, k and v and a recurrence over heads of keys and values; in
the full layers q_proj also makes a gate of the output. The experts have a shared one beside them,
with a gate. Counted are the tensors; the operations of the delta rule are not written down.
"""

from __future__ import annotations

from calc.models.families import attention, experts, mlp
from calc.models.families.family import Family, Fields, Kinds, Tensors, register
from calc.models.families.kinds import ATTENTION, every, interleaved, sparse_step
from calc.models.families.modules import linear, norm, other

LISTED = {name: kind for name, kind in ATTENTION.items() if kind == "full_attention"}
LISTED["linear_attention"] = "linear_attention"


def attentions(c: Fields) -> Kinds:
    given = c.layers("layer_types", LISTED)
    return given or interleaved(c, "linear_attention", c["full_attention_interval"])


def _gated(c: Fields) -> Tensors:
    """Full attention, with as many outputs for a gate as for q."""
    yield from attention.query_key_value(c, times=2)
    yield from attention.out_of_heads(c)
    yield from attention.head_norms(c)


def _widths(c: Fields) -> tuple[int, int]:
    """Of q, k and v together, and of v."""
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    return 2 * keys + values, values


def _recurrence(c: Fields) -> Tensors:
    for name in ("dt_bias", "A_log"):
        yield other(f"linear_attn.{name}", c["linear_num_value_heads"])
    yield other("linear_attn.conv1d.weight", _widths(c)[0], 1, c["linear_conv_kernel_dim"])


def _outputs(c: Fields) -> Tensors:
    yield norm("linear_attn.norm", c["linear_value_head_dim"])
    yield from linear("linear_attn.out_proj", c["hidden_size"], _widths(c)[1])


def four_inputs(c: Fields, kind: str) -> Tensors:
    """Qwen3.5's attention."""
    if kind == "full_attention":
        yield from _gated(c)
        return
    yield from _recurrence(c)
    yield from _outputs(c)
    both, values = _widths(c)
    heads = c["linear_num_value_heads"]
    for name, width in (("qkv", both), ("z", values), ("b", heads), ("a", heads)):
        yield from linear(f"linear_attn.in_proj_{name}", width, c["hidden_size"])


def two_inputs(c: Fields, kind: str) -> Tensors:
    """Qwen3-Next's attention."""
    if kind == "full_attention":
        yield from _gated(c)
        return
    yield from _recurrence(c)
    both, values = _widths(c)
    yield from linear("linear_attn.in_proj_qkvz", both + values, c["hidden_size"])
    heads = c["linear_num_value_heads"]
    yield from linear("linear_attn.in_proj_ba", 2 * heads, c["hidden_size"])
    yield from _outputs(c)


def dense_or_experts(c: Fields, kind: str) -> Tensors:
    if kind == "dense":
        yield from mlp.dense(c)
        return
    number = c.size("num_experts", 0)
    yield experts.gate(c, number)
    yield from experts.fused(c, "mlp.experts", number, c["moe_intermediate_size"])
    inner = c.size("shared_expert_intermediate_size", 0)
    yield from mlp.gated(c, "mlp.shared_expert", inner)
    yield from linear("mlp.shared_expert_gate", 1, c["hidden_size"])


DELTA = {
    "head_dim": 256,
    "attention_bias": False,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "layer_types": None,
    "full_attention_interval": 4,
}

register(
    Family(
        model_type="qwen3_next",
        defaults={
            **DELTA,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        attentions=attentions,
        mlps=sparse_step,
        attention=two_inputs,
        mlp=dense_or_experts,
        fused=experts.FUSED,
    )
)

register(
    Family(
        model_type="qwen3_5_text",
        defaults={
            **DELTA,
            "num_key_value_heads": 4,
        },
        attentions=attentions,
        attention=four_inputs,
    )
)

register(
    Family(
        model_type="qwen3_5_moe_text",
        defaults={
            **DELTA,
            "num_key_value_heads": 2,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        attentions=attentions,
        mlps=every("moe"),
        attention=four_inputs,
        mlp=dense_or_experts,
    )
)
