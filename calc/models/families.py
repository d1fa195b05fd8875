"""Which tensors a model of each architecture has: `FAMILIES`, one line or a few per `model_type`.

Names and shapes are those that transformers 5.24.0 instantiates, checked against it on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from calc.models.fields import MAX_LAYERS, Fields, defaults
from calc.models.parts import (
    Tensors,
    conv1d,
    delta_net,
    embedding,
    fused_gated,
    fused_qkv,
    gated,
    gqa,
    gqa_optional_norm,
    gqa_with_sinks,
    heads,
    linear,
    mla,
    moe,
    moe_gpt_oss,
    moe_llama4,
    norm,
    raw,
    routed,
)
from calc.models.tensors import Block, Model, Tensor
from calc.units import InputError, unknown

Part = Callable[[Fields], Tensors]
#: For each layer the name of its attention, or of its MLP.
Kinds = Callable[[Fields, int], Sequence[str]]

#: transformers' layer types in this package's words.
ATTENTION = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
    "mla": "mla",
    "mla_shared_index": "mla",
    "none": "none",
}


# Which layer is of which kind.


def always(kind: str) -> Kinds:
    return lambda c, num_layers: [kind] * num_layers


def windowed(c: Fields, num_layers: int) -> Sequence[str]:
    """Sliding where the config has a window; Qwen slides from layer `max_window_layers` on."""
    if "layer_types" in c.defaults and (given := c.layers("layer_types", ATTENTION)):
        return given
    start = c.size("max_window_layers", low=0) if "max_window_layers" in c.defaults else 0
    slides = c.value("sliding_window") is not None
    if "use_sliding_window" in c.defaults:
        slides = c.flag("use_sliding_window") and slides
    return ["sliding_attention" if slides and i >= start else "full_attention" for i in range(num_layers)]


def interleaved(other: str, period: int | str) -> Kinds:
    """`other` layers with full attention in every `period`-th, unless `layer_types` says otherwise."""

    def kinds(c: Fields, num_layers: int) -> Sequence[str]:
        if given := c.layers("layer_types", ATTENTION):
            return given
        every = c.size(period) if isinstance(period, str) else period
        return [other if (i + 1) % every else "full_attention" for i in range(num_layers)]

    return kinds


def by_rope(with_rope: str, without: str) -> Kinds:
    """The layers that skip the rotary embedding, every `no_rope_layer_interval`-th, attend differently."""

    def kinds(c: Fields, num_layers: int) -> Sequence[str]:
        if given := c.layers("layer_types", ATTENTION):
            return given
        rope = c.value("no_rope_layers")
        if not isinstance(rope, list) or len(rope) < num_layers:
            every = c.size("no_rope_layer_interval")
            rope = [(i + 1) % every for i in range(num_layers)]
        return [with_rope if rope[i] else without for i in range(num_layers)]

    return kinds


def smollm3_attention(c: Fields, num_layers: int) -> Sequence[str]:
    slides = c.flag("use_sliding_window") and c.value("sliding_window") is not None
    return by_rope("full_attention", "sliding_attention" if slides else "full_attention")(c, num_layers)


def indexed(c: Fields, num_layers: int) -> Sequence[str]:
    """GLM's sparse attention: a `shared` layer uses the indexer of an earlier one."""
    given = c.layers("indexer_types", ("full", "shared"))
    pattern = c.value("index_topk_pattern")
    if given is None and pattern is not None:
        names = {"F": "full", "S": "shared"}
        given = tuple(names.get(entry, entry) for entry in pattern)
        if len(given) != num_layers or not set(given) <= {"full", "shared"}:
            raise InputError("index_topk_pattern must be one of F and S for each layer")
    if given is None:
        every, offset = max(c.size("index_topk_freq", low=0), 1), c.size("index_skip_topk_offset", low=0)
        given = tuple("shared" if max(i - offset + 1, 0) % every else "full" for i in range(num_layers))
    return ["mla_shared_index" if entry == "shared" else "mla" for entry in given]


def after_dense(c: Fields, num_layers: int) -> Sequence[str]:
    """Experts from layer `first_k_dense_replace` on, or where `mlp_layer_types` has `sparse`."""
    if "mlp_layer_types" in c.defaults and (given := c.layers("mlp_layer_types", ("dense", "sparse"))):
        return ["moe" if entry == "sparse" else "dense" for entry in given]
    start = c.size("first_k_dense_replace", low=0)
    return ["dense" if i < start else "moe" for i in range(num_layers)]


def sparse_step(c: Fields, num_layers: int) -> Sequence[str]:
    """Experts in every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""
    step, dense = c.size("decoder_sparse_step"), c.indices("mlp_only_layers")
    has_experts = c.size("num_experts", low=0) > 0
    return [
        "moe" if has_experts and i not in dense and (i + 1) % step == 0 else "dense"
        for i in range(num_layers)
    ]


def interleaved_moe(c: Fields, num_layers: int) -> Sequence[str]:
    """Llama 4: experts in every `interleave_moe_layer_step`-th layer, or in `moe_layers`."""
    step = c.size("interleave_moe_layer_step")
    if c.value("moe_layers") is None:
        return ["dense" if (i + 1) % step else "moe" for i in range(num_layers)]
    sparse = c.indices("moe_layers")
    return ["moe" if i in sparse else "dense" for i in range(num_layers)]


# What comes before and after the layers.


def embed_tokens(c: Fields) -> Tensors:
    yield from embedding("model.embed_tokens.weight", c.size("vocab_size"), c.size("hidden_size"))


def final_norm(c: Fields) -> Tensors:
    yield from norm("model.norm", c.size("hidden_size"))


PRE_NORM = ("input_layernorm", "post_attention_layernorm")
POST_NORM = ("post_attention_layernorm", "post_feedforward_layernorm")
SANDWICH = (*PRE_NORM, "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The tensors of one architecture; what is not said is as in Mistral."""

    attention: Part = gqa
    #: Attentions of other kinds of layers, by kind.
    attentions: Mapping[str, Part] = field(default_factory=dict)
    mlp: Part = gated
    moe: Part | None = None
    norms: tuple[str, ...] = PRE_NORM
    attention_kinds: Kinds = windowed
    mlp_kinds: Kinds = always("dense")
    activation: str = "swiglu"
    #: The layer's tensors at once, where attention, MLP and norms are not enough.
    layer: Callable[[Fields, str, str], Tensors] | None = None
    prefix: str = "model.layers.*."
    first: Part = embed_tokens
    last: Part = final_norm
    #: transformers refuses a hidden_size that is no multiple of num_attention_heads.
    divides: bool = False
    ties: bool = True

    def tensors(self, c: Fields, attention: str, mlp: str) -> Iterator[Tensor]:
        """The tensors of one layer of the given kinds."""
        parts: Iterable[Tensor]
        if self.layer:
            parts = self.layer(c, attention, mlp)
        else:
            feed_forward = self.moe if self.moe and mlp == "moe" else self.mlp
            parts = (
                *self.attentions.get(attention, self.attention)(c),
                *feed_forward(c),
                *(t for name in self.norms for t in norm(name, c.size("hidden_size"))),
            )
        for tensor in parts:
            yield replace(tensor, name=self.prefix + tensor.name)


# Architectures that need more than a table row.


def gpt2_layer(c: Fields, attention: str, mlp: str) -> Tensors:
    hidden = c.size("hidden_size")
    inner = c.size("n_inner", null=4 * hidden)
    yield from norm("ln_1", hidden, bias=True)
    yield from conv1d("attn.c_attn", 3 * hidden, hidden)
    yield from conv1d("attn.c_proj", hidden, hidden)
    yield from norm("ln_2", hidden, bias=True)
    yield from conv1d("mlp.c_fc", inner, hidden)
    yield from conv1d("mlp.c_proj", hidden, inner)


def gpt2_first(c: Fields) -> Tensors:
    yield from embedding("transformer.wte.weight", c.size("vocab_size"), c.size("hidden_size"))
    yield from embedding("transformer.wpe.weight", c.size("max_position_embeddings"), c.size("hidden_size"))


def last_layer_norm(c: Fields) -> Tensors:
    yield from norm("transformer.ln_f", c.size("hidden_size"), bias=True)


def falcon_layer(c: Fields, attention: str, mlp: str) -> Tensors:
    hidden, query, kv, dim = heads(c, "num_kv_heads")
    inner, bias = c.size("ffn_hidden_size", null=4 * hidden), c.flag("bias")
    new, parallel = c.flag("new_decoder_architecture"), c.flag("parallel_attn")
    if not new:
        kv = 1 if c.flag("multi_query") else query
    yield from linear("self_attention.query_key_value", (query + 2 * kv) * dim, hidden, bias)
    yield from linear("self_attention.dense", hidden, hidden, bias)
    yield from linear("mlp.dense_h_to_4h", inner, hidden, bias)
    yield from linear("mlp.dense_4h_to_h", hidden, inner, bias)
    two = c.size("num_ln_in_parallel_attn", null=2 if new else 1) == 2
    names = PRE_NORM if not parallel else ("ln_attn", "ln_mlp") if two else ("input_layernorm",)
    for name in names:
        yield from norm(name, hidden, bias=True)
    c.filled["num_key_value_heads"] = kv


def falcon_first(c: Fields) -> Tensors:
    yield from embedding("transformer.word_embeddings.weight", c.size("vocab_size"), c.size("hidden_size"))


def nemotron_layer(c: Fields, attention: str, mlp: str) -> Tensors:
    """Nemotron-H: a layer is one mixer, Mamba-2, attention, experts or an MLP, after one norm."""
    hidden, mlp_bias = c.size("hidden_size"), c.flag("mlp_bias")
    yield from norm("norm", hidden)
    if attention == "full_attention":
        yield from (replace(t, name=t.name.replace("self_attn", "mixer")) for t in gqa(c))
    elif attention == "linear_attention":
        num_heads, bias = c.size("mamba_num_heads"), c.flag("use_bias")
        inner = num_heads * c.size("mamba_head_dim")
        conv = inner + 2 * c.size("n_groups") * c.size("ssm_state_size")
        for name in ("dt_bias", "A_log", "D"):
            yield from raw(f"mixer.{name}", num_heads)
        yield from raw("mixer.conv1d.weight", conv, 1, c.size("conv_kernel"))
        if c.flag("use_conv_bias"):
            yield from raw("mixer.conv1d.bias", conv, kind="bias")
        yield from linear("mixer.in_proj", inner + conv + num_heads, hidden, bias)
        yield from norm("mixer.norm", inner)
        yield from linear("mixer.out_proj", hidden, inner, bias)
    elif mlp == "relu2":
        inner = c.size("intermediate_size")
        yield from linear("mixer.up_proj", inner, hidden, mlp_bias)
        yield from linear("mixer.down_proj", hidden, inner, mlp_bias)
    else:
        total, active = routed(c, "n_routed_experts")
        inner, shared = c.size("moe_intermediate_size"), c.size("moe_shared_expert_intermediate_size")
        latent = c.size("moe_latent_size", null=hidden)
        yield from raw("mixer.experts.up_proj", total, inner, latent, kind="expert", active=active)
        yield from raw("mixer.experts.down_proj", total, latent, inner, kind="expert", active=active)
        yield from raw("mixer.gate.weight", total, hidden, kind="router")
        yield from linear("mixer.shared_experts.up_proj", shared, hidden, mlp_bias)
        yield from linear("mixer.shared_experts.down_proj", hidden, shared, mlp_bias)
        if latent != hidden or c.given("moe_latent_size"):
            yield from linear("mixer.fc1_latent_proj", latent, hidden, mlp_bias)
            yield from linear("mixer.fc2_latent_proj", hidden, latent, mlp_bias)


def nemotron_mixers(c: Fields, num_layers: int) -> Sequence[str]:
    """One mixer per layer: by `layers_block_type`, or the letters M E * - of `hybrid_override_pattern`."""
    allowed = ("linear_attention", "moe", "full_attention", "mlp")
    given = c.layers("layers_block_type", allowed)
    if given is None:
        pattern = c.value("hybrid_override_pattern")
        if not isinstance(pattern, str) or len(pattern) != num_layers or not set(pattern) <= set("ME*-"):
            raise InputError("hybrid_override_pattern must be one of the letters M E * - for each layer")
        given = tuple(allowed["ME*-".index(letter)] for letter in pattern)
    return given


def nemotron_attention(c: Fields, num_layers: int) -> Sequence[str]:
    return [kind if kind.endswith("attention") else "none" for kind in nemotron_mixers(c, num_layers)]


def nemotron_mlp(c: Fields, num_layers: int) -> Sequence[str]:
    names = {"moe": "moe", "mlp": "relu2"}
    return [names.get(kind, "none") for kind in nemotron_mixers(c, num_layers)]


def nemotron_first(c: Fields) -> Tensors:
    yield from embedding("model.embeddings.weight", c.size("vocab_size"), c.size("hidden_size"))


def nemotron_last(c: Fields) -> Tensors:
    yield from norm("model.norm_f", c.size("hidden_size"))


def gemma4_layer(c: Fields, attention: str, mlp: str) -> Tensors:
    """Gemma 4: global layers with heads of another size, experts beside the MLP, per-layer inputs."""
    hidden, query, kv, dim = heads(c)
    full, bias, shared = attention == "full_attention", c.flag("attention_bias"), mlp.startswith("shared")
    equal = c.flag("attention_k_eq_v") and full
    if full:
        dim = c.size("global_head_dim")
        if equal:
            kv = c.size("num_global_key_value_heads", null=kv)
    yield from linear("self_attn.q_proj", query * dim, hidden, bias)
    yield from norm("self_attn.q_norm", dim)
    if not shared:
        yield from linear("self_attn.k_proj", kv * dim, hidden, bias)
        yield from norm("self_attn.k_norm", dim)
        if not equal:
            yield from linear("self_attn.v_proj", kv * dim, hidden, bias)
    yield from linear("self_attn.o_proj", hidden, query * dim, bias)
    inner = c.size("intermediate_size") * (2 if shared and c.flag("use_double_wide_mlp") else 1)
    yield from gated(c, width=inner)
    for name in SANDWICH:
        yield from norm(name, hidden)
    if per_layer := c.size("hidden_size_per_layer_input", null=0, low=0):
        yield from linear("per_layer_input_gate", per_layer, hidden)
        yield from linear("per_layer_projection", hidden, per_layer)
        yield from norm("post_per_layer_input_norm", hidden)
    if c.flag("enable_moe_block"):
        total, active = routed(c, "num_experts", "top_k_experts")
        width = c.size("moe_intermediate_size")
        yield from raw("experts.gate_up_proj", total, 2 * width, hidden, kind="expert", active=active)
        yield from raw("experts.down_proj", total, hidden, width, kind="expert", active=active)
        yield from linear("router.proj", total, hidden)
        yield from raw("router.scale", hidden, kind="router")
        yield from raw("router.per_expert_scale", total, kind="router")
        for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
            yield from norm(name, hidden)


def gemma4_attention(c: Fields, num_layers: int) -> Sequence[str]:
    """As other Gemmas, but the last layer always has full attention."""
    return [*interleaved("sliding_attention", 6)(c, num_layers)[:-1], "full_attention"]


def gemma4_mlp(c: Fields, num_layers: int) -> Sequence[str]:
    """The last `num_kv_shared_layers` use an earlier layer's keys and values."""
    shared = c.size("num_kv_shared_layers", low=0, high=num_layers)
    kind = "moe" if c.flag("enable_moe_block") else "dense"
    return [kind if i < num_layers - shared else f"shared-{kind}" for i in range(num_layers)]


def gemma4_first(c: Fields) -> Tensors:
    yield from embed_tokens(c)
    if per_layer := c.size("hidden_size_per_layer_input", null=0, low=0):
        width = c.size("num_hidden_layers", high=MAX_LAYERS) * per_layer
        yield from embedding("model.embed_tokens_per_layer.weight", c.size("vocab_size_per_layer_input"), width)
        yield from linear("model.per_layer_model_projection", width, c.size("hidden_size"))
        yield from norm("model.per_layer_projection_norm", per_layer)


BIAS = "attention_bias"
BIASED = partial(gqa, bias=BIAS, out_bias=BIAS)
HEAD_NORM = partial(gqa, bias=BIAS, out_bias=BIAS, qk_norm="head")
FULL_NORM = partial(gqa, bias=BIAS, out_bias=BIAS, qk_norm="full")
GATED_HEAD_NORM = partial(gqa, bias=BIAS, out_bias=BIAS, qk_norm="head", gated=True)
DEEPSEEK_MOE = partial(moe, experts="n_routed_experts", shared="n_shared_experts")

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(
            attention=BIASED,
            mlp=partial(gated, bias="mlp_bias"),
            attention_kinds=always("full_attention"),
            divides=True,
        ),
        "mistral": Family(),
        "ministral3": Family(),
        "mixtral": Family(
            moe=partial(moe, experts="num_local_experts", width="intermediate_size"), mlp_kinds=always("moe")
        ),
        "qwen2": Family(attention=partial(gqa, bias=True)),
        "qwen3": Family(attention=HEAD_NORM),
        "qwen3_moe": Family(attention=HEAD_NORM, moe=moe, mlp_kinds=sparse_step),
        "qwen3_next": Family(
            attention=GATED_HEAD_NORM,
            attentions={"linear_attention": partial(delta_net, fused=True)},
            moe=partial(moe, shared="shared_expert_intermediate_size"),
            attention_kinds=interleaved("linear_attention", "full_attention_interval"),
            mlp_kinds=sparse_step,
        ),
        "qwen3_5_text": Family(
            attention=GATED_HEAD_NORM,
            attentions={"linear_attention": delta_net},
            attention_kinds=interleaved("linear_attention", "full_attention_interval"),
        ),
        "qwen3_5_moe_text": Family(
            attention=GATED_HEAD_NORM,
            attentions={"linear_attention": delta_net},
            moe=partial(moe, shared="shared_expert_intermediate_size"),
            attention_kinds=interleaved("linear_attention", "full_attention_interval"),
            mlp_kinds=always("moe"),
        ),
        "smollm3": Family(
            attention=BIASED, mlp=partial(gated, bias="mlp_bias"), attention_kinds=smollm3_attention
        ),
        "phi3": Family(attention=fused_qkv, mlp=fused_gated),
        "olmo2": Family(attention=FULL_NORM, norms=POST_NORM, attention_kinds=always("full_attention")),
        "olmo3": Family(
            attention=FULL_NORM, norms=POST_NORM, attention_kinds=interleaved("sliding_attention", 4)
        ),
        "gemma2": Family(
            attention=BIASED,
            norms=SANDWICH,
            attention_kinds=interleaved("sliding_attention", 2),
            activation="geglu",
            divides=True,
        ),
        "gemma3_text": Family(
            attention=HEAD_NORM,
            norms=SANDWICH,
            attention_kinds=interleaved("sliding_attention", "sliding_window_pattern"),
            activation="geglu",
            divides=True,
        ),
        "gemma4_text": Family(
            layer=gemma4_layer,
            attention_kinds=gemma4_attention,
            mlp_kinds=gemma4_mlp,
            activation="geglu",
            first=gemma4_first,
        ),
        "llama4_text": Family(
            attention=BIASED,
            mlp=partial(gated, module="feed_forward", width="intermediate_size_mlp"),
            moe=moe_llama4,
            attention_kinds=by_rope("chunked_attention", "full_attention"),
            mlp_kinds=interleaved_moe,
        ),
        "gpt_oss": Family(
            attention=gqa_with_sinks,
            moe=moe_gpt_oss,
            attention_kinds=interleaved("sliding_attention", 2),
            mlp_kinds=always("moe"),
        ),
        "minimax_m2": Family(
            attention=partial(gqa, qk_norm="full"),
            moe=partial(moe, experts="num_local_experts", width="intermediate_size"),
            attention_kinds=always("full_attention"),
            mlp_kinds=always("moe"),
        ),
        "glm4_moe": Family(
            attention=gqa_optional_norm,
            moe=DEEPSEEK_MOE,
            attention_kinds=always("full_attention"),
            mlp_kinds=after_dense,
        ),
        "deepseek_v3": Family(
            attention=mla, moe=DEEPSEEK_MOE, attention_kinds=always("mla"), mlp_kinds=after_dense
        ),
        "deepseek_v32": Family(
            attention=partial(mla, indexer=True),
            moe=DEEPSEEK_MOE,
            attention_kinds=always("mla"),
            mlp_kinds=after_dense,
        ),
        "glm_moe_dsa": Family(
            attention=partial(mla, indexer=True),
            attentions={"mla_shared_index": mla},
            moe=DEEPSEEK_MOE,
            attention_kinds=indexed,
            mlp_kinds=after_dense,
        ),
        "gpt2": Family(
            layer=gpt2_layer,
            prefix="transformer.h.*.",
            first=gpt2_first,
            last=last_layer_norm,
            attention_kinds=always("full_attention"),
            activation="gelu",
            divides=True,
        ),
        "falcon": Family(
            layer=falcon_layer,
            prefix="transformer.h.*.",
            first=falcon_first,
            last=last_layer_norm,
            attention_kinds=always("full_attention"),
            activation="gelu",
            divides=True,
        ),
        "nemotron_h": Family(
            layer=nemotron_layer,
            first=nemotron_first,
            last=nemotron_last,
            attention_kinds=nemotron_attention,
            mlp_kinds=nemotron_mlp,
            ties=False,
        ),
    }
)
#: Published under a name of its own, with DeepSeek-V3's layers.
SAME_AS = {"kimi_k2": "deepseek_v3"}


def architectures() -> tuple[str, ...]:
    """The values of `model_type` whose tensors are known."""
    return (*FAMILIES, *SAME_AS)


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a `config.json` describes, by transformers 5.24.0's rules and defaults.

    Of a multimodal config the text part is taken; its vision tower is left out.
    Raises `InputError` for an unknown `model_type` and for missing or impossible fields.

    >>> from_config({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
    ...              "num_hidden_layers": 2, "num_attention_heads": 4}, "tiny").num_params
    115008
    """
    text, notes = _text_config(config)
    model_type = text.get("model_type")
    if not isinstance(model_type, str):
        raise InputError("model_type is missing from the config, or is no text")
    family_type = SAME_AS.get(model_type, model_type)
    if family_type not in FAMILIES:
        error = unknown("model_type", model_type, architectures())
        raise InputError(f"{error}; or give the number of parameters, as in 70B")
    for field in ("per_layer_config", "add_cross_attention"):
        if text.get(field):
            raise InputError(f"{field} is not supported; give the number of parameters instead, as in 70B")
    family, c = FAMILIES[family_type], Fields(family_type, text)
    num_layers = c.size("num_hidden_layers", high=MAX_LAYERS)
    hidden, query = c.size("hidden_size"), c.size("num_attention_heads")
    if family.divides and hidden % query:
        raise InputError(f"hidden_size {hidden} must be a multiple of num_attention_heads {query}")
    kinds: dict[tuple[str, str], list[int]] = {}
    attention, mlp = family.attention_kinds(c, num_layers), family.mlp_kinds(c, num_layers)
    for layer, kind in enumerate(zip(attention, mlp, strict=True)):
        kinds.setdefault(kind, []).append(layer)
    tied = c.flag("tie_word_embeddings") and family.ties
    head = () if tied else linear("lm_head", c.size("vocab_size"), hidden)
    model = Model(
        name=name,
        model_type=model_type,
        config=MappingProxyType(c.filled),
        first=tuple(family.first(c)),
        blocks=tuple(_block(family, c, kind, layers, kinds) for kind, layers in kinds.items()),
        last=(*family.last(c), *head),
        tied=tied,
    )
    return replace(model, assumptions=(*notes, *c.assumptions()))


def _block(
    family: Family, c: Fields, kind: tuple[str, str], layers: list[int], kinds: Iterable[tuple[str, str]]
) -> Block:
    attention, mlp = kind
    several_mlps = len({other[1] for other in kinds}) > 1
    several_attentions = len({other[0] for other in kinds}) > 1
    words = [attention] * several_attentions + [mlp] * (several_mlps or not several_attentions)
    return Block(
        name=" ".join(word for word in words if word != "none"),
        layers=tuple(layers),
        tensors=tuple(family.tensors(c, attention, mlp)),
        attention=ATTENTION[attention],
        mlp=family.activation if mlp.endswith("dense") else mlp.removeprefix("shared-"),
    )


def _text_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The text part of a config, and what was left out."""
    notes = []
    text: Mapping[str, Any] = config
    if isinstance(config.get("text_config"), Mapping):
        outer = config.get("model_type")
        text = {"model_type": f"{outer}_text", **config["text_config"]}
        if "tie_word_embeddings" in config:
            text = {"tie_word_embeddings": config["tie_word_embeddings"], **text}
        notes.append(f"of the multimodal {outer} config the text model is counted; vision and audio towers are left out")
    if text.get("num_nextn_predict_layers") or text.get("mtp_num_hidden_layers") or text.get("use_mtp"):
        notes.append("multi-token-prediction layers are left out, as transformers leaves them out")
    if "quantization_config" in config or "quantization_config" in text:
        notes.append("the checkpoint's quantisation is ignored: its weights are counted as plain tensors")
    return text, notes
