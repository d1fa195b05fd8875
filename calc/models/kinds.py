"""Which layer of a model is of which kind, by the choices that `models-architectures.json` names.

A choice is `field=words`, taken where the config has that list (`words` says what its entries mean),
or the name of a rule below with its arguments: the kinds of all layers from other fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calc.models.fields import Fields, table
from calc.units import InputError

Kinds = Sequence[str]


def kinds(c: Fields, choices: str, num_layers: int) -> Kinds:
    """The kind of each layer by the first of `choices`, divided by `|`, that the config decides."""
    for choice in choices.split(" | "):
        field, is_list, words = choice.partition("=")
        if not is_list:
            rule, *arguments = choice.split()
            return RULES[rule](c, num_layers, *arguments)
        if given := c.layers(field, table()["words"][words], num_layers):
            return given
    raise InputError(f"the config must say the kind of each layer in {choices.split('=')[0]}")


def always(c: Fields, num_layers: int, kind: str) -> Kinds:
    return [kind] * num_layers


def windowed(c: Fields, num_layers: int) -> Kinds:
    """Sliding where the config has a window; Qwen's slides from layer `max_window_layers` on."""
    slides = "use_sliding_window" not in c.defaults or c.flag("use_sliding_window")
    if not slides or not c.holds("sliding_window"):
        return ["full_attention"] * num_layers
    start = c.size("max_window_layers") if "max_window_layers" in c.defaults else 0
    return ["full_attention" if i < start else "sliding_attention" for i in range(num_layers)]


def by_rope(c: Fields, num_layers: int, with_rope: str, without: str) -> Kinds:
    """Every `no_rope_layer_interval`-th layer skips the rotary embedding and attends in another way."""
    every = c.size("no_rope_layer_interval")
    rope = c.value("no_rope_layers") or [(i + 1) % every for i in range(num_layers)]
    if not isinstance(rope, list) or len(rope) < num_layers:
        raise InputError(f"no_rope_layers must be a list with one entry for each of the {num_layers:,} layers")
    return [with_rope if uses else without for uses in rope[:num_layers]]


def interleaved(c: Fields, num_layers: int, other: str, period: str) -> Kinds:
    """`other` layers with full attention in every `period`-th, a number or a field."""
    every = c.number(period)
    return [other if (i + 1) % every else "full_attention" for i in range(num_layers)]


def gemma4(c: Fields, num_layers: int) -> Kinds:
    """The last layer attends fully, the last `num_kv_shared_layers` reuse the keys and values of earlier ones."""
    given = kinds(c, "layer_types=attention | interleaved sliding_attention 6", num_layers)
    attention = [*given[:-1], "full_attention"]
    if not c.flag("attention_k_eq_v"):
        c.sizes["num_global_key_value_heads"] = c.size("num_key_value_heads")
    own = num_layers - c.size("num_kv_shared_layers", num_layers)
    if own and set(attention[:own]) != set(attention):
        raise InputError(f"num_kv_shared_layers {num_layers - own} leaves a kind of attention without keys and values")
    return [kind if i < own else f"shared_{kind}" for i, kind in enumerate(attention)]


def indexed(c: Fields, num_layers: int) -> Kinds:
    """GLM's sparse attention: layers between every `index_topk_freq`-th use an earlier one's indexer."""
    every, offset = max(c.size("index_topk_freq"), 1), c.size("index_skip_topk_offset")
    return ["mla_shared_index" if max(i - offset + 1, 0) % every else "mla" for i in range(num_layers)]


def compressed(c: Fields, num_layers: int) -> Kinds:
    """DeepSeek-V4: two layers whose keys and values are compressed heavily, then every other one."""
    kinds = "heavily_compressed_attention", "compressed_sparse_attention"
    return [kinds[i % 2 if i > 1 else 0] for i in range(num_layers)]


def falcon(c: Fields, num_layers: int) -> Kinds:
    """Falcon's layers differ in their norms; the older ones have one key-value head or one per query head."""
    new = c.flag("new_decoder_architecture")
    old = 1 if c.flag("multi_query") else c.size("num_attention_heads")
    c.sizes["num_key_value_heads"] = c.size("num_kv_heads") if new else old
    count = c.value("num_ln_in_parallel_attn")
    two = new if count is None else c.size("num_ln_in_parallel_attn") == 2
    parallel = "parallel_two_norms" if two else "parallel"
    return [parallel if c.flag("parallel_attn") else "sequential"] * num_layers


def after_dense(c: Fields, num_layers: int) -> Kinds:
    """Experts from layer `first_k_dense_replace` on."""
    return ["dense" if i < c.size("first_k_dense_replace") else "moe" for i in range(num_layers)]


def sparse_step(c: Fields, num_layers: int) -> Kinds:
    """Experts in every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""
    step, dense = c.size("decoder_sparse_step"), c.indices("mlp_only_layers")
    experts = c.size("num_experts")
    return ["dense" if not experts or i in dense or (i + 1) % step else "moe" for i in range(num_layers)]


def llama4_moe(c: Fields, num_layers: int) -> Kinds:
    """Experts in the layers of `moe_layers`, else in every `interleave_moe_layer_step`-th."""
    step = c.size("interleave_moe_layer_step")
    sparse = range(step - 1, num_layers, step) if c.value("moe_layers") is None else c.indices("moe_layers")
    return ["moe" if i in sparse else "dense" for i in range(num_layers)]


def gemma4_moe(c: Fields, num_layers: int) -> Kinds:
    """Every layer has an MLP, and with `enable_moe_block` experts beside it."""
    return ["moe" if c.flag("enable_moe_block") else "dense"] * num_layers


_ATTENTION = (always, windowed, by_rope, interleaved, gemma4, indexed, compressed, falcon)
_MLP = (after_dense, sparse_step, llama4_moe, gemma4_moe)
RULES: dict[str, Callable[..., Kinds]] = {rule.__name__: rule for rule in (*_ATTENTION, *_MLP)}
