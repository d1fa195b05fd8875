"""Nemotron-H: each layer is one mixer behind one norm: Mamba 2, attention, an MLP or experts.

transformers 5.24.0 (`modeling_nemotron_h.py`): a pattern such as `ME*-` names the mixers. The MLP
squares a ReLU and has no gate; experts may work in a latent space of their own. The head is never
the embedding. Counted are the tensors. peft refuses to adapt Mamba's `out_proj`.
"""

from __future__ import annotations

from calc.models.families import attention
from calc.models.families.family import Family, Fields, Kinds, Tensors, register
from calc.models.families.modules import expert, linear, norm, norms, other, router, table
from calc.models.tensors import Tensor
from calc.units import InputError

#: What entries of the pattern mean for attention, and for the MLP.
MAMBA, FULL = ("linear_attention", "none"), ("full_attention", "none")
EXPERTS, DENSE = ("no_attention", "moe"), ("no_attention", "relu2")
MIXERS = {
    "mamba": MAMBA,
    "linear_attention": MAMBA,
    "M": MAMBA,
    "attention": FULL,
    "full_attention": FULL,
    "*": FULL,
    "moe": EXPERTS,
    "E": EXPERTS,
    "mlp": DENSE,
    "-": DENSE,
}


def _kinds(c: Fields, side: int) -> Kinds:
    words = {word: meaning[side] for word, meaning in MIXERS.items()}
    given = c.layers("layers_block_type", words) or c.layers("hybrid_override_pattern", words)
    if not given:
        raise InputError("the config must say the kind of each layer in layers_block_type")
    return given


def mixer(c: Fields, kind: str) -> Tensors:
    yield from norms(c, "norm")
    if kind == "full_attention":
        yield from attention.query_key_value(c, "mixer")
        yield from attention.out_of_heads(c, "mixer")
    if kind == "linear_attention":
        yield from _mamba(c)


def _mamba(c: Fields) -> Tensors:
    heads = c["mamba_num_heads"]
    for name in ("dt_bias", "A_log", "D"):
        yield other(f"mixer.{name}", heads)
    inner = heads * c["mamba_head_dim"]
    both = inner + 2 * c["n_groups"] * c["ssm_state_size"]
    yield other("mixer.conv1d.weight", both, 1, c["conv_kernel"])
    if c.flag("use_conv_bias"):
        yield Tensor(name="mixer.conv1d.bias", shape=(both,), kind="bias")
    hidden_size = c["hidden_size"]
    yield from linear("mixer.in_proj", inner + both + heads, hidden_size, c.bias("use_bias"))
    yield norm("mixer.norm", inner)
    yield from linear("mixer.out_proj", hidden_size, inner, c.bias("use_bias"))


def mlp_or_experts(c: Fields, kind: str) -> Tensors:
    if kind == "relu2":
        yield from _squared(c, "mixer", c["intermediate_size"])
    if kind == "moe":
        yield from _experts(c)


def _squared(c: Fields, module: str, inner: int) -> Tensors:
    """An MLP without a gate."""
    hidden_size = c["hidden_size"]
    yield from linear(f"{module}.up_proj", inner, hidden_size, c.bias("mlp_bias"))
    yield from linear(f"{module}.down_proj", hidden_size, inner, c.bias("mlp_bias"))


def _experts(c: Fields) -> Tensors:
    number, inner = c["n_routed_experts"], c["moe_intermediate_size"]
    narrow, hidden_size = c["moe_latent_size"], c["hidden_size"]
    yield expert(c, "mixer.experts.up_proj", number, inner, narrow)
    yield expert(c, "mixer.experts.down_proj", number, narrow, inner)
    yield router("mixer.gate.weight", number, hidden_size)
    yield from _squared(c, "mixer.shared_experts", c["moe_shared_expert_intermediate_size"])
    if c.given("moe_latent_size"):
        yield from linear("mixer.fc1_latent_proj", narrow, hidden_size, c.bias("mlp_bias"))
        yield from linear("mixer.fc2_latent_proj", hidden_size, narrow, c.bias("mlp_bias"))


def first(c: Fields) -> Tensors:
    yield table("model.embeddings", c["vocab_size"], c["hidden_size"])


def last(c: Fields) -> Tensors:
    yield norm("model.norm_f", c["hidden_size"])


register(
    Family(
        model_type="nemotron_h",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "mlp_bias": False,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 7688,
            "layers_block_type": None,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "use_bias": False,
            "moe_latent_size": None,
            "moe_shared_expert_intermediate_size": 7688,
            "hybrid_override_pattern": None,
        },
        aliases={
            "layers_block_type": ("layer_types",),
            "n_routed_experts": ("num_local_experts",),
            "n_groups": ("mamba_n_groups",),
            "conv_kernel": ("mamba_d_conv",),
            "use_conv_bias": ("mamba_conv_bias",),
        },
        computed={"moe_latent_size": lambda c: c["hidden_size"]},
        attentions=lambda c: _kinds(c, 0),
        mlps=lambda c: _kinds(c, 1),
        attention=mixer,
        mlp=mlp_or_experts,
        norms=(),
        first=first,
        last=last,
        ties=False,
        lora_refuses="out_proj",
    )
)
