"""What one rank of a model-parallel group holds: its slice of every matrix, its experts, its pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

from calc.models.tensors import Model, Tensor
from calc.units import InputError, ceil_div

#: Cut by outputs, by inputs, and held whole by every rank of a tensor-parallel group.
COLUMNS = (
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_b_proj", "sinks"),
    *("gate_proj", "up_proj", "gate_up_proj"),
)
ROWS = ("o_proj", "down_proj")
WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "shared_expert_gate")


def part(model: Model, *, tp: int = 1, ep: int = 1, pp: int = 1, stage: int = 0) -> Model:
    """What one rank holds of `model`: 1/tp of the matrices, 1/ep of the experts, one of `pp` stages of layers.

    Projections into heads and MLP are cut by outputs, those out of them by inputs, embedding and head by vocabulary
    (rounded up); norms and routers are on every rank. The first stage has the embedding, the last the final norm and
    the head, and a copy of the embedding where they are tied.
    Raises `InputError` where a degree does not divide what it cuts, or a layer's parallel form is not known.
    Source: Megatron-LM's tensor and pipeline parallelism (arXiv:1909.08053, arXiv:2104.04473).

    >>> from calc.models import load
    >>> llama = load("llama-3.3-70b")
    >>> part(llama, tp=8).num_params * 8 - llama.num_params, part(llama, pp=8, stage=7).num_params
    (9232384, 9607225344)
    """
    if tp == ep == pp == 1:
        return model
    if not model.has_architecture:
        raise InputError(f"{model.name} is a bare count; tp, pp and ep need the shapes of a model's layers")
    if pp > model.num_layers:
        raise InputError(f"pp {pp} is more than the {model.num_layers} layers of {model.name}")
    if tp > 1:
        for field in ("num_attention_heads", "num_key_value_heads"):
            _divided(field, int(str(model.config.get(field) or tp)), "tp", tp)
    ends = [model.num_layers * index // pp for index in (stage, stage + 1)]
    last = (*model.last, *(model.first if model.tied and pp > 1 else ())) if stage == pp - 1 else ()
    blocks = (
        replace(
            block, layers=tuple(n for n in block.layers if ends[0] <= n < ends[1]), tensors=_cut(block.tensors, tp, ep)
        )
        for block in model.blocks
    )
    heads = {
        field: ceil_div(int(str(model.config[field])), tp)
        for field in ("num_attention_heads", "num_key_value_heads", "vocab_size")
        if field in model.config
    }
    return replace(
        model,
        config={**model.config, **heads},
        first=_cut(model.first, tp, ep) if stage == 0 else (),
        blocks=tuple(block for block in blocks if block.layers),
        last=_cut(last, tp, ep),
        tied=model.tied and pp == 1,
    )


def stages(model: Model, pp: int) -> Iterator[int]:
    """The pipeline stages unlike every earlier one, by their layers and ends: one of them is the largest."""
    seen = set()
    for stage in range(pp):
        found = part(model, pp=pp, stage=stage)
        alike = tuple((b.name, len(b.layers)) for b in found.blocks), bool(found.first), bool(found.last)
        if alike not in seen:
            seen.add(alike)
            yield stage


def _cut(tensors: Iterable[Tensor], tp: int, ep: int) -> tuple[Tensor, ...]:
    return tuple(_slice(tensor, tp, ep) for tensor in tensors)


def _slice(tensor: Tensor, tp: int, ep: int) -> Tensor:
    shape = list(tensor.shape)
    if tensor.kind == "expert":
        shape[0] = _divided(tensor.name, shape[0], "ep", ep)
    parent, _, leaf = tensor.name.removesuffix(".default.weight").removesuffix("_bias").rpartition(".")
    module = parent.rpartition(".")[2] if leaf in ("weight", "bias", "lora_A", "lora_B") else leaf
    if "*" not in tensor.name:
        if tensor.kind != "norm":
            shape[0] = ceil_div(shape[0], tp)
    elif module in COLUMNS and leaf != "lora_A":
        side = -1 if leaf == "bias" or len(shape) == 1 else -2
        shape[side] = _divided(tensor.name, shape[side], "tp", tp)
    elif module in ROWS and leaf not in ("lora_B", "bias"):
        shape[-1] = _divided(tensor.name, shape[-1], "tp", tp)
    elif tp > 1 and tensor.kind in ("linear", "other") and module not in (*COLUMNS, *ROWS, *WHOLE):
        raise InputError(f"tensor parallelism of {tensor.name} is not written down; leave tp at 1")
    # A rank's experts see the tokens of all its group, so that as many expert copies of a token stay with it.
    active = min(Fraction(1), tensor.active * ep) if tensor.kind == "expert" else tensor.active
    return replace(tensor, shape=tuple(shape), active=active)


def _divided(name: str, size: int, degree: str, by: int) -> int:
    if size % by:
        raise InputError(f"{degree} {by} does not divide {name} of {size:,}")
    return size // by
