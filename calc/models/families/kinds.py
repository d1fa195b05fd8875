"""Which layer of a model is of which kind: rules that several families share.

A rule gives a word for each layer. Of attention: full_attention, sliding_attention,
chunked_attention, linear_attention, no_attention, mla, or a word of the family's own; of the MLP:
dense, moe, relu2 or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from calc.models.families.fields import Fields

Kinds = Sequence[str]

#: What `Block.attention` says of each kind of attention.
ATTENDS: Mapping[str, str] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
    "mla": "mla",
    "no_attention": "none",
}
#: What the entries of `layer_types` mean.
ATTENTION: Mapping[str, str] = {
    "full_attention": "full_attention",
    "attention": "full_attention",
    "sliding_attention": "sliding_attention",
    "chunked_attention": "chunked_attention",
}


def every(kind: str) -> Callable[[Fields], Kinds]:
    """All layers of one kind."""
    return lambda c: [kind] * c.num_layers


FULL, DENSE = every("full_attention"), every("dense")


def windowed(c: Fields) -> Kinds:
    """Sliding where the config has a window; Qwen's slides from layer `max_window_layers` on."""
    slides = "use_sliding_window" not in c.defaults or c.flag("use_sliding_window")
    full = c.num_layers
    if slides and c.given("sliding_window"):
        full = c.size("max_window_layers", 0) if "max_window_layers" in c.defaults else 0
    return ["full_attention" if i < full else "sliding_attention" for i in range(c.num_layers)]


def listed_or_windowed(c: Fields) -> Kinds:
    """As `layer_types` says, else by the window."""
    return c.layers("layer_types", ATTENTION) or windowed(c)


def interleaved(c: Fields, other: str, period: int) -> Kinds:
    """`other` layers, with full attention in every `period`-th."""
    return [other if (i + 1) % period else "full_attention" for i in range(c.num_layers)]


def listed_or_every(period: int) -> Callable[[Fields], Kinds]:
    """As `layer_types` says, else a window in all layers but every `period`-th."""
    sliding = "sliding_attention"
    return lambda c: c.layers("layer_types", ATTENTION) or interleaved(c, sliding, period)


def after_dense(c: Fields) -> Kinds:
    """Experts from layer `first_k_dense_replace` on."""
    first = c.size("first_k_dense_replace", 0)
    return ["dense" if i < first else "moe" for i in range(c.num_layers)]


def listed_or_after_dense(c: Fields) -> Kinds:
    """As `mlp_layer_types` says, else experts after the first layers."""
    return c.layers("mlp_layer_types", {"dense": "dense", "sparse": "moe"}) or after_dense(c)


def sparse_step(c: Fields) -> Kinds:
    """Experts in every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""
    step, dense = c["decoder_sparse_step"], c.indices("mlp_only_layers")
    experts = c.size("num_experts", 0)
    skipped = (not experts or i in dense or (i + 1) % step for i in range(c.num_layers))
    return ["dense" if skip else "moe" for skip in skipped]
