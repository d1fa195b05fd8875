"""What follows the layers: the final norm, and logits with their loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from calc.models.families.family import Family
from calc.models.families.layer import windowed
from calc.models.families.operations import known_operations
from calc.models.tensors import Model
from calc.units import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What follows the layers, in bytes per token: the final norm, and logits with their loss.

    `forward` and `backward` are the worst instants of the loss; `weight_work` is what is left of
    the logits while the head's own gradient is made.
    """

    norm: int
    forward: int
    backward: int
    weight_work: int
    inputs: int
    tables: int


@lru_cache(maxsize=1024)
def head_cost(
    model: Model,
    dtype: str,
    loss: str,
    attention: str,
    checkpointing: str,
    seq_len: int,
) -> Head:
    """The final norm and the loss in bytes per token.

    Formula, V = vocabulary: forward 2V logits + 4V in fp32 + 4V log-softmax; backward 4V
    log-softmax, 4V and 4V of gradients = 12V. `chunked` is a fused linear cross-entropy: it makes
    the logits of h/V of the tokens at a time, so 2h or up to twice that, and makes both gradients
    in the forward, the head's in place. `inputs` are token ids and labels; `tables` are per
    position whatever the batch: cosines and sines. Checkpoints hold masks: eager attention's for
    each sequence and kind of layer, that of a sliding window once.
    Source: `ForCausalLMLoss` in transformers; the fused linear cross-entropy of Liger Kernel 0.8.5.

    >>> from calc.models import load
    >>> head_cost(load("llama-3.1-8b"), "bf16", "full", "sdpa", "full", 2048).backward
    1539072
    """
    family = known_operations(model)
    hidden_size, vocab = (whole(f, model.config.get(f)) for f in ("hidden_size", "vocab_size"))
    itemsize, residual_fp32 = 4 if dtype == "fp32" else 2, dtype != "bf16"
    norm = _norm(model, family, hidden_size, itemsize, residual_fp32)
    inputs, tables = 16, _rope_tables(model, family, residual_fp32)
    if checkpointing != "none":
        masks = _masks(model, attention, seq_len)
        inputs, tables = inputs + itemsize * masks[0], tables + masks[1]
    if loss == "chunked":
        return Head(
            norm=norm,
            forward=2 * itemsize * hidden_size,
            # Then the norm's own backward is the worst.
            backward=(20 if residual_fp32 else 24) * hidden_size + 4 - norm,
            weight_work=itemsize * hidden_size,
            inputs=inputs,
            tables=tables,
        )
    capped = itemsize * vocab if family.caps(model.config, "final_logit_softcapping") else 0
    # Under autocast the norm's output, which nobody saves but the caller holds.
    output = 4 * hidden_size if dtype == "autocast" else 0
    logits = 0 if dtype == "autocast" else itemsize * vocab
    return Head(
        norm=norm,
        forward=capped + (10 if itemsize == 2 else 8) * vocab + output,
        backward=capped + 12 * vocab,
        weight_work=logits + itemsize * hidden_size,
        inputs=inputs,
        tables=tables,
    )


def _norm(model: Model, family: Family, hidden: int, itemsize: int, residual_fp32: bool) -> int:
    """What the final norm keeps: its input in fp32, a scale, the scaled copy, its output."""
    owner = model.first if model.tied else model.last
    head = [t for t in owner if t.kind in ("linear", "embedding")]
    found = 4 * hidden + 4
    if any(t.trainable for t in model.last):
        found += (4 if family.fp32_norms or residual_fp32 else 2) * hidden
    if any(t.trainable for t in head):
        found += itemsize * hidden
    return found


def _rope_tables(model: Model, family: Family, residual_fp32: bool) -> int:
    """Cosines and sines of a position, for each kind of layer that has its own."""
    name = "qk_rope_head_dim" if model.config.get("qk_rope_head_dim") else "head_dim"
    kinds = len(_attentions(model)) if family.rope_by_kind else 1
    itemsize = 4 if family.fp32_rope or residual_fp32 else 2
    return 2 * itemsize * kinds * whole(name, model.config.get(name))


def _masks(model: Model, attention: str, seq_len: int) -> tuple[int, int]:
    """Elements of masks that checkpoints hold, per token and per position whatever the batch."""
    window = any(windowed(model.config, block, seq_len) for block in model.blocks)
    if attention == "eager":
        return len(_attentions(model)) * seq_len, 0
    return 0, seq_len if window else 0


def _attentions(model: Model) -> set[str]:
    return {block.attention for block in model.blocks}
