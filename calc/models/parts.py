"""What one rank of a model-parallel group holds: slices, experts, its pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from calc.models.families import family_of
from calc.models.tensors import Model, Tensor
from calc.units import InputError, ceil_div


def part(model: Model, *, tp: int = 1, ep: int = 1, pp: int = 1, stage: int = 0) -> Model:
    """What one rank holds: 1/tp of the matrices, 1/ep of the experts, one of `pp` stages.

    Projections into heads and MLP are cut by outputs, those out of them by inputs, embedding and
    head by vocabulary (rounded up); norms and routers are on every rank. The first stage has the
    embedding, the last the final norm and the head, and a copy of the embedding where they are
    tied.
    Raises `InputError` where a degree does not divide what it cuts, or a layer's parallel form is
    not known.
    Source: Megatron-LM's tensor and pipeline parallelism (arXiv:1909.08053, arXiv:2104.04473).

    >>> from calc.models import load
    >>> llama = load("llama-3.3-70b")
    >>> part(llama, tp=8).num_params * 8 - llama.num_params, part(llama, pp=8, stage=7).num_params
    (9232384, 9607225344)
    """
    if tp == ep == pp == 1:
        return model
    if not model.has_architecture:
        raise InputError(
            f"{model.name} is a bare count; tp, pp and ep need the shapes of a model's layers"
        )
    if ep > 1 and not any(t.kind == "expert" for block in model.blocks for t in block.tensors):
        raise InputError(f"ep {ep} needs a model with experts; {model.name} has none")
    if pp > model.num_layers:
        raise InputError(f"pp {pp} is more than the {model.num_layers} layers of {model.name}")
    heads = ("num_attention_heads", "num_key_value_heads")
    sizes = {n: _divided(n, int(str(model.config.get(n) or tp)), "tp", tp) for n in heads}
    sizes["vocab_size"] = ceil_div(int(str(model.config["vocab_size"])), tp)
    begin, end = (model.num_layers * index // pp for index in (stage, stage + 1))
    family = family_of(model)
    slices = family.slices if family else {}
    tied = model.first if model.tied and pp > 1 else ()
    copy = (replace(t, name="lm_head.weight", kind="linear") for t in tied)

    def cut(tensors: Iterable[Tensor], held: bool = True) -> tuple[Tensor, ...]:
        return tuple(_slice(tensor, slices, tp, ep) for tensor in tensors if held)

    layers = {block: tuple(n for n in block.layers if begin <= n < end) for block in model.blocks}
    return replace(
        model,
        config={**model.config, **sizes},
        first=cut(model.first, stage == 0),
        blocks=tuple(
            replace(b, layers=held, tensors=cut(b.tensors)) for b, held in layers.items() if held
        ),
        last=cut((*model.last, *copy), stage == pp - 1),
        tied=model.tied and pp == 1,
    )


def stages(model: Model, pp: int) -> tuple[int, ...]:
    """The pipeline stages unlike every earlier one, of which one is the largest.

    >>> from calc.models import load
    >>> stages(load("llama-3.3-70b"), 8)
    (0, 1, 7)
    """
    seen: dict[object, int] = {}
    for stage in range(pp):
        found = part(model, pp=pp, stage=stage)
        layers = tuple((block.name, len(block.layers)) for block in found.blocks)
        seen.setdefault((layers, bool(found.first), bool(found.last)), stage)
    return tuple(seen.values())


def only(model: Model, *, experts: bool) -> Model:
    """The routed experts of `model` alone, or all but them."""
    blocks = (
        replace(b, tensors=tuple(t for t in b.tensors if t.of_experts == experts))
        for b in model.blocks
    )
    first, last = ((), ()) if experts else (model.first, model.last)
    return replace(model, first=first, blocks=tuple(blocks), last=last)


def _slice(tensor: Tensor, slices: Mapping[str, str], tp: int, ep: int) -> Tensor:
    """What a rank holds of `tensor`; the experts by `ep`, a module as `slices` says it."""
    shape, name = list(tensor.shape), tensor.name
    active = tensor.active
    if tensor.kind == "expert":
        shape[0] = _divided(name, shape[0], "ep", ep)
        # A rank's experts see the tokens of all its group: as many copies of a token stay with it.
        active = min(Fraction(1), active * ep)
    module, leaf = _module(name)
    if tensor.of_experts and tensor.kind == "adapter":  # its inner dimension has a rank per expert
        inner = 0 if leaf == "lora_A" else -1
        shape[inner] = _divided(name, shape[inner], "ep", ep)
    side = slices.get(module, "")
    if "*" not in name:
        shape[0] = shape[0] if tensor.kind == "norm" else ceil_div(shape[0], tp)
    elif side == "columns" and leaf != "lora_A":
        axis = -1 if leaf == "bias" or len(shape) == 1 else -2
        shape[axis] = _divided(name, shape[axis], "tp", tp)
    elif side == "rows" and leaf not in ("lora_B", "bias"):
        shape[-1] = _divided(name, shape[-1], "tp", tp)
    elif tp > 1 and tensor.kind in ("linear", "other") and not side:
        raise InputError(f"tensor parallelism of {name} is not written down; leave tp at 1")
    return replace(tensor, shape=tuple(shape), active=active)


def _module(name: str) -> tuple[str, str]:
    """The module of a tensor, which may be a parameter itself, and the last word of its name."""
    parent, _, leaf = name.removesuffix(".default.weight").removesuffix("_bias").rpartition(".")
    inside = leaf in ("weight", "bias", "lora_A", "lora_B")
    return parent.rpartition(".")[2] if inside else leaf, leaf


def _divided(name: str, size: int, degree: str, by: int) -> int:
    if size % by:
        raise InputError(f"{degree} {by} does not divide {name} of {size:,}")
    return size // by
