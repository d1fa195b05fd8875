"""DeepSeek's latent attention: its tensors, its operations, how tensor parallelism cuts it."""

from __future__ import annotations

from collections.abc import Iterator

from calc.models.families.attention import core
from calc.models.families.fields import Fields
from calc.models.families.layer import Layer, Op
from calc.models.families.modules import Tensors, linear, norm

SLICES = {
    "q_proj": "columns",
    "q_a_proj": "whole",
    "q_b_proj": "columns",
    "kv_a_proj_with_mqa": "whole",
    "kv_b_proj": "columns",
    "o_proj": "rows",
}


def _query_width(c: Fields) -> int:
    num_heads = c["num_attention_heads"]
    return num_heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])


def query(c: Fields) -> Tensors:
    """q in one matrix."""
    yield from linear("self_attn.q_proj", _query_width(c), c["hidden_size"])


def low_rank_query(c: Fields) -> Tensors:
    """q through a narrow latent with a norm."""
    rank, hidden_size = c["q_lora_rank"], c["hidden_size"]
    yield from linear("self_attn.q_a_proj", rank, hidden_size, c.bias("attention_bias"))
    yield norm("self_attn.q_a_layernorm", rank)
    yield from linear("self_attn.q_b_proj", _query_width(c), rank)


def key_value_output(c: Fields) -> Tensors:
    """k and v through a latent, beside the part of k that is rotated; and the output."""
    rank, hidden_size, num_heads = c["kv_lora_rank"], c["hidden_size"], c["num_attention_heads"]
    both, bias = rank + c["qk_rope_head_dim"], c.bias("attention_bias")
    yield from linear("self_attn.kv_a_proj_with_mqa", both, hidden_size, bias)
    yield norm("self_attn.kv_a_layernorm", rank)
    nope, values = num_heads * c["qk_nope_head_dim"], num_heads * c["v_head_dim"]
    yield from linear("self_attn.kv_b_proj", nope + values, rank)
    yield from linear("self_attn.o_proj", hidden_size, values, bias)


def latent_attention(layer: Layer) -> Iterator[Op]:
    """Low-rank q and kv with a norm each, heads of two parts, attention, output projection."""
    num_heads, hidden_size = layer.size("num_attention_heads"), layer.hidden_size
    nope, rope = layer.size("qk_nope_head_dim"), layer.size("qk_rope_head_dim")
    value, kv_rank = layer.size("v_head_dim"), layer.size("kv_lora_rank")
    q_rank, query = layer.width("self_attn.q_a_proj"), num_heads * (nope + rope)
    first = "q_a_proj" if q_rank else "q_proj"
    down = (q_rank or query) + kv_rank + rope
    yield layer.linear("down", hidden_size, down, first, "kv_a_proj_with_mqa")
    if q_rank:
        yield layer.norm("q_a_layernorm", q_rank)
        yield layer.linear("q_b_proj", q_rank, query)
    yield layer.norm("kv_a_layernorm", kv_rank)
    both = num_heads * (nope + value)
    yield layer.linear("kv_b_proj", kv_rank, both)
    # v is a slice of kv_b_proj's output, which stays whole.
    yield core(layer, query, num_heads * value, query, both)
    yield layer.linear("o_proj", num_heads * value, hidden_size, kept=True)
