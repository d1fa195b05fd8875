"""DeepSeek-V3, Kimi K2, DeepSeek-V3.2 and GLM-5: latent attention, experts after the first layers.

transformers 5.24.0 (`modeling_deepseek_v3.py`): q and kv pass narrow latents with a norm each; the
experts have shared ones beside them; router and weighing are in fp32. V3.2 and GLM-5
(`modeling_deepseek_v32.py`, `modeling_glm_moe_dsa.py`) add an indexer that chooses what each token
attends to; GLM's layers between every `index_topk_freq`-th use an earlier one's. Counted are all
operations of V3 and Kimi K2; those of the indexer are not written down.
"""

from __future__ import annotations

from calc.models.families import experts, latent
from calc.models.families.family import SLICES, Family, Fields, Kinds, Layer, Ops, Tensors, register
from calc.models.families.kinds import after_dense, every, listed_or_after_dense
from calc.models.families.modules import layernorm, linear

INDEXED = {"full": "mla", "F": "mla", "shared": "mla_shared_index", "S": "mla_shared_index"}


def latent_attention(c: Fields, kind: str) -> Tensors:
    yield from latent.low_rank_query(c) if c.given("q_lora_rank") else latent.query(c)
    yield from latent.key_value_output(c)


def operations(layer: Layer) -> Ops:
    yield layer.norm("input_layernorm")
    yield from latent.latent_attention(layer)
    yield layer.norm("post_attention_layernorm")
    yield from experts.routed(layer, fp32_router=True, fp32_weighing=True)


def sparse_attention(c: Fields, kind: str) -> Tensors:
    """Latent attention with an indexer, where the layer has one of its own."""
    yield from latent.low_rank_query(c)
    yield from latent.key_value_output(c)
    if kind == "mla":
        module, heads, width = "self_attn.indexer", c["index_n_heads"], c["index_head_dim"]
        yield from linear(f"{module}.wq_b", heads * width, c["q_lora_rank"])
        yield from linear(f"{module}.wk", width, c["hidden_size"])
        yield from layernorm(f"{module}.k_norm", width)
        yield from linear(f"{module}.weights_proj", heads, c["hidden_size"])


def attentions(c: Fields) -> Kinds:
    """GLM's: as one of two lists says, else an indexer in every `index_topk_freq`-th layer."""
    given = c.layers("indexer_types", INDEXED) or c.layers("index_topk_pattern", INDEXED)
    if given:
        return given
    period, offset = max(c.size("index_topk_freq", 0), 1), c.size("index_skip_topk_offset", 0)
    skips = (max(i - offset + 1, 0) % period for i in range(c.num_layers))
    return ["mla_shared_index" if skip else "mla" for skip in skips]


DEEPSEEK = {
    "attention_bias": False,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}

register(
    Family(
        model_type="deepseek_v3",
        also=("kimi_k2",),
        text_of=("kimi_k25",),
        defaults={
            **DEEPSEEK,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        aliases={
            "n_routed_experts": ("num_local_experts",),
        },
        attentions=every("mla"),
        mlps=after_dense,
        attention=latent_attention,
        mlp=experts.after_dense,
        operations=operations,
        slices=SLICES | latent.SLICES,
        fused=experts.FUSED,
    )
)

register(
    Family(
        model_type="deepseek_v32",
        defaults={
            **DEEPSEEK,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "mlp_layer_types": None,
        },
        aliases={
            "n_routed_experts": (
                "num_local_experts",
                "num_experts",
            ),
        },
        attentions=every("mla"),
        mlps=listed_or_after_dense,
        attention=sparse_attention,
        mlp=experts.after_dense,
        slices=SLICES | latent.SLICES,
        fused=experts.FUSED,
    )
)

register(
    Family(
        model_type="glm_moe_dsa",
        defaults={
            **DEEPSEEK,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "index_n_heads": 32,
            "index_head_dim": 128,
            "indexer_types": None,
            "mlp_layer_types": None,
            "index_topk_pattern": None,
            "index_topk_freq": 1,
            "index_skip_topk_offset": 2,
        },
        aliases={
            "n_routed_experts": (
                "num_local_experts",
                "num_experts",
            ),
        },
        attentions=attentions,
        mlps=listed_or_after_dense,
        attends={"mla_shared_index": "mla"},
        attention=sparse_attention,
        mlp=experts.after_dense,
        slices=SLICES | latent.SLICES,
        fused=experts.FUSED,
    )
)
