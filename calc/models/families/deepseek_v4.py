"""DeepSeek-V4: compressed keys and values, hyper-connections instead of the residual stream.

transformers 5.24.0 (`modeling_deepseek_v4.py`): one key-value head, which most layers compress over
the sequence, heavily, or less and with an indexer that chooses; a grouped low-rank output
projection; several residual streams that learned matrices mix. Every layer has experts. Counted
are the tensors.
"""

from __future__ import annotations

from calc.models.families import experts, mlp
from calc.models.families.family import SLICES, Family, Fields, Kinds, Tensors, register
from calc.models.families.kinds import every
from calc.models.families.modules import final_norm, linear, norm, other

HEAVY, SPARSE = "heavily_compressed_attention", "compressed_sparse_attention"
LISTED = {
    "sliding_attention": "sliding_attention",
    "0": "sliding_attention",
    SPARSE: SPARSE,
    "4": SPARSE,
    HEAVY: HEAVY,
    "128": HEAVY,
}


def attentions(c: Fields) -> Kinds:
    """As one of two lists says, else two heavily compressed layers, then every other one."""
    given = c.layers("layer_types", LISTED) or c.layers("compress_ratios", LISTED, longer=True)
    return given or [SPARSE if i > 1 and i % 2 else HEAVY for i in range(c.num_layers)]


def attention(c: Fields, kind: str) -> Tensors:
    hidden_size, width, heads = c["hidden_size"], "head_dim", "num_attention_heads"
    yield other("self_attn.sinks", c[heads])
    yield from linear("self_attn.q_a_proj", c["q_lora_rank"], hidden_size)
    yield norm("self_attn.q_a_norm", c["q_lora_rank"])
    query = c[heads] * c[width]
    yield from linear("self_attn.q_b_proj", query, c["q_lora_rank"])
    yield from linear("self_attn.kv_proj", c[width], hidden_size)
    yield norm("self_attn.kv_norm", c[width])
    groups = c["o_groups"] * c["o_lora_rank"]
    yield from linear("self_attn.o_a_proj", groups, query // c["o_groups"])
    yield from linear("self_attn.o_b_proj", hidden_size, groups)
    module = "self_attn.compressor"
    if kind == SPARSE:
        yield from _compressor(c, module, "compress_rate_csa", 2, width)
        yield from _indexer(c, f"{module}.indexer")
    if kind == HEAVY:
        yield from _compressor(c, module, "compress_rate_hca", 1, width)


def _compressor(c: Fields, module: str, rate: str, times: int, width: str) -> Tensors:
    """What makes one key and value of several; `rate` and `width` name fields."""
    yield other(f"{module}.position_bias", c[rate], times * c[width])
    yield from linear(f"{module}.kv_proj", times * c[width], c["hidden_size"])
    yield from linear(f"{module}.gate_proj", times * c[width], c["hidden_size"])
    yield norm(f"{module}.kv_norm", c[width])


def _indexer(c: Fields, module: str) -> Tensors:
    yield from _compressor(c, module, "compress_rate_csa", 2, "index_head_dim")
    heads = c["index_n_heads"]
    yield from linear(f"{module}.q_b_proj", heads * c["index_head_dim"], c["q_lora_rank"])
    yield from linear(f"{module}.scorer.weights_proj", heads, c["hidden_size"])


def routed(c: Fields, kind: str) -> Tensors:
    number, inner = c["n_routed_experts"], c["moe_intermediate_size"]
    yield experts.gate(c, number)
    yield from experts.fused(c, "mlp.experts", number, inner)
    yield from mlp.gated(c, "mlp.shared_experts", inner)


def hyper_connections(c: Fields) -> Tensors:
    streams = c["hc_mult"]
    out = 2 * streams + streams * streams
    for module in ("attn_hc", "ffn_hc"):
        yield other(f"{module}.fn", out, streams * c["hidden_size"])
        yield other(f"{module}.base", out)
        yield other(f"{module}.scale", 3)


def last(c: Fields) -> Tensors:
    """The final norm, and what makes one stream of several."""
    yield from final_norm(c)
    streams = c["hc_mult"]
    yield other("model.hc_head.hc_fn", streams, streams * c["hidden_size"])
    yield other("model.hc_head.hc_base", streams)
    yield other("model.hc_head.hc_scale", 1)


register(
    Family(
        model_type="deepseek_v4",
        defaults={
            "head_dim": 512,
            "mlp_bias": False,
            "q_lora_rank": 1024,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "n_routed_experts": 256,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 2048,
            "layer_types": None,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "hc_mult": 4,
            "compress_rate_csa": 4,
            "compress_rate_hca": 128,
            "compress_ratios": None,
        },
        aliases={
            "n_routed_experts": ("num_local_experts",),
            "moe_intermediate_size": ("intermediate_size",),
            "intermediate_size": ("moe_intermediate_size",),
            "compress_rate_csa": ("compress_rates.compressed_sparse_attention",),
            "compress_rate_hca": ("compress_rates.heavily_compressed_attention",),
        },
        attentions=attentions,
        mlps=every("moe"),
        attends={HEAVY: "mla", SPARSE: "mla"},
        attention=attention,
        mlp=routed,
        more=hyper_connections,
        last=last,
        slices=SLICES | {"sinks": "columns", "q_a_proj": "whole", "q_b_proj": "columns"},
    )
)
