"""Grouped-query attention: its tensors, its operations, and how tensor parallelism cuts it."""

from __future__ import annotations

from collections.abc import Iterator

from calc.models.families.fields import Fields
from calc.models.families.layer import Layer, Op, windowed
from calc.models.families.modules import Tensors, linear, norm

SLICES = {
    "q_proj": "columns",
    "k_proj": "columns",
    "v_proj": "columns",
    "o_proj": "rows",
}


def into_heads(
    c: Fields,
    module: str,
    heads: str,
    width: str = "head_dim",
    *,
    times: int = 1,
    bias: str | bool = "attention_bias",
) -> Tensors:
    """A projection into heads; `heads` and `width` name the fields of their number and width."""
    yield from linear(module, times * c[heads] * c[width], c["hidden_size"], c.bias(bias))


def query_key_value(
    c: Fields,
    module: str = "self_attn",
    *,
    times: int = 1,
    bias: str | bool = "attention_bias",
) -> Tensors:
    """Three projections; `times` as many query outputs, a bias where the field `bias` says so."""
    yield from into_heads(c, f"{module}.q_proj", "num_attention_heads", times=times, bias=bias)
    yield from into_heads(c, f"{module}.k_proj", "num_key_value_heads", bias=bias)
    yield from into_heads(c, f"{module}.v_proj", "num_key_value_heads", bias=bias)


def out_of_heads(
    c: Fields,
    module: str = "self_attn",
    width: str = "head_dim",
    bias: str = "attention_bias",
) -> Tensors:
    """The output projection; `width` names the field of a head's width."""
    hidden_size, into = c["hidden_size"], c["num_attention_heads"] * c[width]
    yield from linear(f"{module}.o_proj", hidden_size, into, c.bias(bias))


def projections(c: Fields, kind: str = "") -> Tensors:
    """The four projections of most families."""
    yield from query_key_value(c)
    yield from out_of_heads(c)


def with_head_norms(c: Fields, kind: str = "") -> Tensors:
    """The projections, and a norm over each head of q and of k."""
    yield from projections(c)
    yield from head_norms(c)


def head_norms(c: Fields) -> Tensors:
    """A norm over each head of q and of k."""
    for name in ("q_norm", "k_norm"):
        yield norm(f"self_attn.{name}", c["head_dim"])


def with_full_norms(c: Fields, kind: str = "") -> Tensors:
    """The projections, and a norm over all of q and one over all of k."""
    yield from projections(c)
    yield norm("self_attn.q_norm", c["num_attention_heads"] * c["head_dim"])
    yield norm("self_attn.k_norm", c["num_key_value_heads"] * c["head_dim"])


def grouped_query(layer: Layer, *, split_rope: bool = False) -> Iterator[Op]:
    """q, k, v, their norms where there are any, rotary embedding, attention, output projection.

    `split_rope` where what rotary embedding turns and what it leaves are concatenated, which copies
    attention's output once more.
    """
    num_heads = layer.size("num_attention_heads")
    query = layer.by_name["self_attn.o_proj.weight"].shape[1]
    keys = layer.size("num_key_value_heads") * (query // num_heads)
    fused = layer.width("self_attn.qkv_proj")
    if "self_attn.q_norm.weight" in layer.by_name:
        yield from _normed(layer, query, keys)
    else:
        modules = ("qkv_proj",) if fused else ("q_proj", "k_proj", "v_proj")
        yield layer.linear("qkv", layer.hidden_size, query + 2 * keys, *modules)
    # v is a slice of the fused projection, which stays whole.
    yield core(layer, query, query, keys, fused or keys)
    yield layer.linear("o_proj", query, layer.hidden_size, kept=not split_rope)


def _normed(layer: Layer, query: int, keys: int) -> Iterator[Op]:
    """q, k and v, of which q and k pass a norm.

    Backward takes v first, then k, and q last; by then their gradients have become one of the
    layer's input.
    """
    num_heads, num_kv = layer.size("num_attention_heads"), layer.size("num_key_value_heads")
    each = layer.by_name["self_attn.q_norm.weight"].shape[0] == query // num_heads
    rows = num_heads if each else 1
    hidden_size, itemsize, kept = layer.hidden_size, layer.compute_itemsize, not layer.autocast
    yield layer.linear("q_proj", hidden_size, query)
    yield layer.norm("q_norm", query, rows=rows, pending=itemsize * hidden_size)
    yield layer.linear("k_proj", hidden_size, keys, kept=kept)
    pending = itemsize * (query + hidden_size)
    yield layer.norm("k_norm", keys, rows=min(rows, num_kv), pending=pending)
    yield layer.linear("v_proj", hidden_size, keys, kept=kept)


def core(layer: Layer, query: int, out: int, keys: int, values: int) -> Op:
    """Attention itself, from the widths of q, of its output, of k, and of what holds v."""
    if layer.attention == "sdpa":
        return _fused(layer, query, out, keys, values)
    return _eager(layer, query, out)


def _fused(layer: Layer, query: int, out: int, keys: int, values: int) -> Op:
    """SDPA keeps q, k, v, its output and one fp32 number per head.

    A mask rules out grouped heads: keys and values are repeated (one head alone is a view of
    itself), and the mask becomes a 16-bit bias.
    """
    itemsize, num_heads, bias = layer.compute_itemsize, layer.size("num_attention_heads"), 0
    if windowed(layer.config, layer.block, layer.seq_len):
        bias = layer.seq_len
        if keys * num_heads > query:
            keys = values = query
    return Op(
        name="attention",
        saved=itemsize * (query + out + keys + values + bias) + 4 * num_heads,
        work=layer.residual + itemsize * (2 * query + 2 * keys),
        result=itemsize * out + 4 * num_heads,
    )


def _eager(layer: Layer, query: int, out: int) -> Op:
    """Squares of the sequence: fp32 probabilities and their 16-bit copy; a tanh keeps one more.

    Keys and values are repeated for every head.
    """
    itemsize = layer.compute_itemsize
    square = layer.size("num_attention_heads") * layer.seq_len
    copy = itemsize * square if itemsize == 2 else 0
    capped = itemsize * square if layer.family.caps(layer.config, "attn_logit_softcapping") else 0
    return Op(
        name="attention",
        saved=itemsize * (3 * query + out) + 4 * square + copy + capped,
        work=layer.residual - itemsize * query + 8 * square - copy,
        result=itemsize * out,
    )
