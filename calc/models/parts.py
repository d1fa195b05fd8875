"""The modules that layers are built from: each lists the tensors of one, under transformers' names.

A part takes the config's `Fields` and yields tensors named from the layer down.
Where a choice depends on the config, the part takes the name of the field that decides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from calc.models.fields import Fields
from calc.models.tensors import Tensor
from calc.units import InputError

Tensors = Iterator[Tensor]


def linear(name: str, out: int, into: int, bias: bool = False) -> Tensors:
    """`nn.Linear`: weight (out, in). Kind `linear` is what LoRA can be put on."""
    yield Tensor(name=f"{name}.weight", shape=(out, into))
    if bias:
        yield Tensor(name=f"{name}.bias", shape=(out,), kind="bias")


def conv1d(name: str, out: int, into: int) -> Tensors:
    """GPT-2's `Conv1D`: a linear layer that stores its weight as (in, out)."""
    yield Tensor(name=f"{name}.weight", shape=(into, out))
    yield Tensor(name=f"{name}.bias", shape=(out,), kind="bias")


def norm(name: str, size: int, bias: bool = False) -> Tensors:
    """RMSNorm, or LayerNorm with its bias."""
    yield Tensor(name=f"{name}.weight", shape=(size,), kind="norm")
    if bias:
        yield Tensor(name=f"{name}.bias", shape=(size,), kind="norm")


def raw(name: str, *shape: int, kind: str = "other", active: Fraction = Fraction(1)) -> Tensors:
    """A parameter of the module itself."""
    yield Tensor(name=name, shape=shape, kind=kind, active=active)


def embedding(name: str, rows: int, columns: int) -> Tensors:
    """`nn.Embedding`."""
    yield Tensor(name=name, shape=(rows, columns), kind="embedding")


def heads(c: Fields, kv_field: str = "num_key_value_heads") -> tuple[int, int, int, int]:
    """hidden_size, query heads, key-value heads and head_dim, each by its field or its default."""
    hidden, query = c.size("hidden_size"), c.size("num_attention_heads")
    kv = c.size(kv_field, null=query)
    if query % kv:
        raise InputError(f"num_attention_heads {query} must be a multiple of {kv_field} {kv}")
    return hidden, query, kv, c.size("head_dim", null=hidden // query)


def gqa(
    c: Fields, *, bias: str | bool = False, out_bias: str | bool = False, qk_norm: str = "", gated: bool = False
) -> Tensors:
    """Grouped-query attention; `qk_norm` is per `head` or over the `full` projection; `gated` doubles q."""
    hidden, query, kv, dim = heads(c)
    yield from linear("self_attn.q_proj", query * dim * (2 if gated else 1), hidden, c.decide(bias))
    yield from linear("self_attn.k_proj", kv * dim, hidden, c.decide(bias))
    yield from linear("self_attn.v_proj", kv * dim, hidden, c.decide(bias))
    yield from linear("self_attn.o_proj", hidden, query * dim, c.decide(out_bias))
    if qk_norm:
        yield from norm("self_attn.q_norm", dim if qk_norm == "head" else query * dim)
        yield from norm("self_attn.k_norm", dim if qk_norm == "head" else kv * dim)


def gqa_with_sinks(c: Fields) -> Tensors:
    """gpt-oss: biases everywhere and one learned sink per head."""
    yield from raw("self_attn.sinks", c.size("num_attention_heads"))
    yield from gqa(c, bias="attention_bias", out_bias="attention_bias")


def gqa_optional_norm(c: Fields) -> Tensors:
    """GLM-4 MoE: the norms on q and k are a choice of the config."""
    yield from gqa(c, bias="attention_bias", qk_norm="head" if c.flag("use_qk_norm") else "")


def fused_qkv(c: Fields) -> Tensors:
    """Phi-3: q, k and v in one matrix."""
    hidden, query, kv, dim = heads(c)
    yield from linear("self_attn.o_proj", hidden, query * dim)
    yield from linear("self_attn.qkv_proj", (query + 2 * kv) * dim, hidden)


def mla(c: Fields, *, indexer: bool = False) -> Tensors:
    """DeepSeek's multi-head latent attention; `indexer` adds sparse attention's own small one."""
    hidden, query = c.size("hidden_size"), c.size("num_attention_heads")
    q_rank, kv_rank = c.size("q_lora_rank", null=0), c.size("kv_lora_rank")
    nope, rope, value = c.size("qk_nope_head_dim"), c.size("qk_rope_head_dim"), c.size("v_head_dim")
    bias = c.flag("attention_bias")
    if q_rank:
        yield from linear("self_attn.q_a_proj", q_rank, hidden, bias)
        yield from norm("self_attn.q_a_layernorm", q_rank)
        yield from linear("self_attn.q_b_proj", query * (nope + rope), q_rank)
    else:
        yield from linear("self_attn.q_proj", query * (nope + rope), hidden)
    yield from linear("self_attn.kv_a_proj_with_mqa", kv_rank + rope, hidden, bias)
    yield from norm("self_attn.kv_a_layernorm", kv_rank)
    yield from linear("self_attn.kv_b_proj", query * (nope + value), kv_rank)
    yield from linear("self_attn.o_proj", hidden, query * value, bias)
    if indexer:
        index_heads, index_dim = c.size("index_n_heads"), c.size("index_head_dim")
        yield from linear("self_attn.indexer.wq_b", index_heads * index_dim, q_rank)
        yield from linear("self_attn.indexer.wk", index_dim, hidden)
        yield from norm("self_attn.indexer.k_norm", index_dim, bias=True)
        yield from linear("self_attn.indexer.weights_proj", index_heads, hidden)


def delta_net(c: Fields, *, fused: bool = False) -> Tensors:
    """Qwen's gated delta net, the linear attention; Qwen3-Next fuses its projections."""
    hidden, value_heads = c.size("hidden_size"), c.size("linear_num_value_heads")
    key = c.size("linear_num_key_heads") * c.size("linear_key_head_dim")
    value_dim = c.size("linear_value_head_dim")
    value, conv = value_heads * value_dim, 2 * key + value_heads * value_dim
    yield from raw("linear_attn.dt_bias", value_heads)
    yield from raw("linear_attn.A_log", value_heads)
    yield from raw("linear_attn.conv1d.weight", conv, 1, c.size("linear_conv_kernel_dim"))
    yield from norm("linear_attn.norm", value_dim)
    yield from linear("linear_attn.out_proj", hidden, value)
    if fused:
        yield from linear("linear_attn.in_proj_qkvz", conv + value, hidden)
        yield from linear("linear_attn.in_proj_ba", 2 * value_heads, hidden)
    else:
        yield from linear("linear_attn.in_proj_qkv", conv, hidden)
        yield from linear("linear_attn.in_proj_z", value, hidden)
        yield from linear("linear_attn.in_proj_b", value_heads, hidden)
        yield from linear("linear_attn.in_proj_a", value_heads, hidden)


def gated(
    c: Fields, *, module: str = "mlp", width: str | int = "intermediate_size", bias: str | bool = False
) -> Tensors:
    """The gated MLP: SwiGLU, or GeGLU with another activation."""
    hidden, inner = c.size("hidden_size"), c.size(width) if isinstance(width, str) else width
    yield from linear(f"{module}.gate_proj", inner, hidden, c.decide(bias))
    yield from linear(f"{module}.up_proj", inner, hidden, c.decide(bias))
    yield from linear(f"{module}.down_proj", hidden, inner, c.decide(bias))


def fused_gated(c: Fields) -> Tensors:
    """Phi-3: gate and up in one matrix."""
    hidden, inner = c.size("hidden_size"), c.size("intermediate_size")
    yield from linear("mlp.gate_up_proj", 2 * inner, hidden)
    yield from linear("mlp.down_proj", hidden, inner)


def routed(c: Fields, experts: str, top_k: str = "num_experts_per_tok") -> tuple[int, Fraction]:
    """How many routed experts there are, and the share of them that one token uses."""
    total, chosen = c.size(experts), c.size(top_k)
    if chosen > total:
        raise InputError(f"{top_k} {chosen} must not be larger than {experts} {total}")
    return total, Fraction(chosen, total)


def moe(
    c: Fields,
    *,
    experts: str = "num_experts",
    width: str = "moe_intermediate_size",
    shared: str = "",
) -> Tensors:
    """Routed experts, fused into two 3-D parameters, with their router and the `shared` expert.

    `shared` is `n_shared_experts`, so many of the experts' width, or the field with its width,
    in which case a gate of one output decides how much of it is used.
    """
    hidden, inner = c.size("hidden_size"), c.size(width)
    total, active = routed(c, experts)
    yield from raw("mlp.experts.gate_up_proj", total, 2 * inner, hidden, kind="expert", active=active)
    yield from raw("mlp.experts.down_proj", total, hidden, inner, kind="expert", active=active)
    yield from raw("mlp.gate.weight", total, hidden, kind="router")
    if shared == "n_shared_experts":
        if count := c.size(shared, low=0):
            yield from gated(c, module="mlp.shared_experts", width=inner * count)
    elif shared:
        if size := c.size(shared, low=0):
            yield from gated(c, module="mlp.shared_expert", width=size)
        yield from linear("mlp.shared_expert_gate", 1, hidden)


def moe_llama4(c: Fields) -> Tensors:
    """Llama 4: experts stored (in, out), a router that is a plain linear layer, one shared expert."""
    hidden, inner = c.size("hidden_size"), c.size("intermediate_size")
    total, active = routed(c, "num_local_experts")
    yield from raw("feed_forward.experts.gate_up_proj", total, hidden, 2 * inner, kind="expert", active=active)
    yield from raw("feed_forward.experts.down_proj", total, inner, hidden, kind="expert", active=active)
    yield from linear("feed_forward.router", total, hidden)
    yield from gated(c, module="feed_forward.shared_expert")


def moe_gpt_oss(c: Fields) -> Tensors:
    """gpt-oss: experts stored (in, out) with biases, and a router with one."""
    hidden, inner = c.size("hidden_size"), c.size("intermediate_size")
    total, active = routed(c, "num_local_experts")
    yield from raw("mlp.router.weight", total, hidden, kind="router")
    yield from raw("mlp.router.bias", total, kind="router")
    yield from raw("mlp.experts.gate_up_proj", total, hidden, 2 * inner, kind="expert", active=active)
    yield from raw("mlp.experts.gate_up_proj_bias", total, 2 * inner, kind="expert", active=active)
    yield from raw("mlp.experts.down_proj", total, inner, hidden, kind="expert", active=active)
    yield from raw("mlp.experts.down_proj_bias", total, hidden, kind="expert", active=active)
