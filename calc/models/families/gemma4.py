"""Gemma 4: wider heads in global layers, shared keys and values, an input for each layer.

transformers 5.24.0 (`modeling_gemma4.py`): five layers in six have a window, the last attends
fully. The last `num_kv_shared_layers` reuse the keys and values of earlier ones, with an MLP twice
as wide where the config says so; `attention_k_eq_v` leaves out the values of global layers. A
second, narrow embedding enters every layer, and with `enable_moe_block` experts stand beside the
MLP. Counted are the tensors.
"""

from __future__ import annotations

from calc.models.families import attention, experts, gemma, mlp
from calc.models.families.family import Family, Fields, Kinds, Tensors, register
from calc.models.families.kinds import listed_or_every
from calc.models.families.modules import embedding, linear, norm, norms, router, table
from calc.units import InputError


def attentions(c: Fields) -> Kinds:
    """The last layer attends fully, the last `num_kv_shared_layers` reuse keys and values."""
    kinds, num_layers = [*listed_or_every(6)(c)[:-1], "full_attention"], c.num_layers
    if not c.flag("attention_k_eq_v"):
        c.sizes["num_global_key_value_heads"] = c["num_key_value_heads"]
    own = num_layers - c.size("num_kv_shared_layers", 0, num_layers)
    if own and set(kinds[:own]) != set(kinds):
        shared = f"num_kv_shared_layers {num_layers - own}"
        raise InputError(f"{shared} leaves a kind of attention without keys and values")
    return [kind if i < own else f"shared_{kind}" for i, kind in enumerate(kinds)]


def mlps(c: Fields) -> Kinds:
    """Every layer has an MLP, and with `enable_moe_block` experts beside it."""
    return ["moe" if c.flag("enable_moe_block") else "dense"] * c.num_layers


def attention_and_mlp(c: Fields, kind: str) -> Tensors:
    width = "global_head_dim" if kind.endswith("full_attention") else "head_dim"
    shared = kind.startswith("shared_")
    yield from attention.into_heads(c, "self_attn.q_proj", "num_attention_heads", width)
    yield norm("self_attn.q_norm", c[width])
    if not shared:
        yield from _keys_and_values(c, width)
    yield from attention.out_of_heads(c, width=width)
    times = 2 if shared and c.flag("use_double_wide_mlp") else 1
    yield from mlp.gated(c, "mlp", times * c["intermediate_size"])


def _keys_and_values(c: Fields, width: str) -> Tensors:
    same = width == "global_head_dim" and c.flag("attention_k_eq_v")
    number = "num_global_key_value_heads" if same else "num_key_value_heads"
    yield norm("self_attn.k_norm", c[width])
    yield from attention.into_heads(c, "self_attn.k_proj", number, width)
    if not same:
        yield from attention.into_heads(c, "self_attn.v_proj", number, width)


def more(c: Fields) -> Tensors:
    """The layer's own input, and the experts."""
    if c.given("hidden_size_per_layer_input", 0):
        narrow, hidden_size = c["hidden_size_per_layer_input"], c["hidden_size"]
        yield from linear("per_layer_input_gate", narrow, hidden_size)
        yield from linear("per_layer_projection", hidden_size, narrow)
        yield norm("post_per_layer_input_norm", hidden_size)
    if c.flag("enable_moe_block"):
        yield from _experts(c)


def _experts(c: Fields) -> Tensors:
    number, hidden_size = c.size("num_experts", 0), c["hidden_size"]
    yield router("router.scale", hidden_size)
    yield router("router.per_expert_scale", number)
    yield from linear("router.proj", number, hidden_size)
    inner = c["moe_intermediate_size"]
    yield from experts.fused(c, "experts", number, inner, chosen="top_k_experts")
    yield from norms(c, "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
    yield from norms(c, "pre_feedforward_layernorm_2")


def first(c: Fields) -> Tensors:
    """The embedding, and that of the layers' own inputs."""
    yield from embedding(c)
    if not c.given("hidden_size_per_layer_input", 0):
        return
    words, narrow = c["vocab_size_per_layer_input"], c["hidden_size_per_layer_input"]
    width = c.num_layers * narrow
    yield table("model.embed_tokens_per_layer", words, width)
    yield from linear("model.per_layer_model_projection", width, c["hidden_size"])
    yield norm("model.per_layer_projection_norm", narrow)


register(
    Family(
        model_type="gemma4_text",
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "num_experts": None,
            "top_k_experts": None,
            "moe_intermediate_size": None,
            "layer_types": None,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262144,
            "attention_k_eq_v": False,
            "use_double_wide_mlp": False,
            "enable_moe_block": False,
            "num_kv_shared_layers": 0,
            "global_head_dim": 512,
            "num_global_key_value_heads": None,
        },
        computed={"num_global_key_value_heads": lambda c: c["num_key_value_heads"]},
        attentions=attentions,
        mlps=mlps,
        attends={"shared_full_attention": "full", "shared_sliding_attention": "sliding"},
        activation="geglu",
        attention=attention_and_mlp,
        mlp=lambda c, kind: iter(()),
        norms=gemma.NORMS,
        more=more,
        first=first,
    )
)
