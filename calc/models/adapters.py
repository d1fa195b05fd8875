"""LoRA: a frozen base model and two small matrices beside each chosen weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from calc.models.families import family_of
from calc.models.tensors import Model, Tensor
from calc.units import InputError, unknown, whole

ALL_LINEAR = "all-linear"
#: Matrices narrower than this, such as a gate with one output, do not limit the rank.
NARROW = 256


def with_adapters(model: Model, *, rank: int, targets: str | Sequence[str] = ALL_LINEAR) -> Model:
    """`model` frozen, with LoRA matrices of `rank` beside the `targets`, as peft 0.21.2 makes them.

    A target of shape (out, in) gets `lora_A` (rank, in) and `lora_B` (out, rank): rank·(in + out)
    parameters.
    `targets` is `all-linear`, every linear layer but `lm_head`, or names of modules such as
    `q_proj`.
    `rank` is from 1 to the smallest dimension of the targets that are not narrower than 256.
    Raises `InputError` for a bare count, an unknown target, and a rank that is too large.
    Source: arXiv:2106.09685 section 4.1; peft's `LoraConfig` and its conversion of fused experts.

    >>> from calc.models import load
    >>> with_adapters(load("llama-3.1-8b"), rank=16).num_trainable
    41943040
    """
    family = family_of(model)
    if not model.has_architecture or not family:
        raise InputError(f"{model.name} is a bare count; LoRA needs the shapes of a model's layers")
    chosen = _chosen(model, targets, family.fused)
    tensors = [tensor for tensor in model.tensors if tensor.name in chosen]
    leaves = sorted({_leaf(tensor) for tensor in tensors})
    if family.lora_refuses in leaves:
        refused = f"{family.lora_refuses} of {model.model_type}"
        raise InputError(f"peft refuses LoRA on {refused}; name the other targets")
    if whole("rank", rank, 1, 10**6) > (limit := _limit(tensors)):
        told = "the smallest dimension of the targets"
        raise InputError(f"rank {rank} is larger than {told}, {limit}")

    def adapted(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        result: list[Tensor] = []
        for tensor in tensors:
            result.append(replace(tensor, trainable=False))
            if tensor.name in chosen:
                *experts, out, into = tensor.shape
                out, into = (into, out) if family.transposed else (out, into)
                inner = rank * chosen[tensor.name] * (experts[0] if experts else 1)
                for matrix, shape in (("lora_A", (inner, into)), ("lora_B", (out, inner))):
                    name = f"{tensor.name.removesuffix('.weight')}.{matrix}.default.weight"
                    result.append(replace(tensor, name=name, shape=shape, kind="adapter"))
        return tuple(result)

    notes = [f"LoRA of rank {rank} on {', '.join(leaves)}; the base is frozen"]
    routed = "the routed experts, 3-D parameters and no linear layers in transformers, get"
    if any(t.kind == "expert" for t in tensors):
        notes.append(f"{routed} adapters too, as peft converts them")
    elif any(t.kind == "expert" for t in model.tensors):
        notes.append(f"{routed} no adapters")
    return replace(
        model,
        first=adapted(model.first),
        blocks=tuple(replace(block, tensors=adapted(block.tensors)) for block in model.blocks),
        last=adapted(model.last),
        assumptions=(*model.assumptions, *notes),
    )


def _limit(tensors: Iterable[Tensor]) -> int:
    dimensions = [min(tensor.shape[-2:]) for tensor in tensors]
    return min((size for size in dimensions if size >= NARROW), default=max(dimensions))


def _chosen(model: Model, targets: str | Sequence[str], fused: Mapping[str, str]) -> dict[str, int]:
    """The tensors that get adapters, each with its ranks: fused gate and up get two.

    `fused` are names of projections that peft takes for parameters of the experts, wherever else
    they occur.
    """
    linear = [t.name for t in model.tensors if t.kind == "linear"]
    leaves = dict.fromkeys(name.split(".")[-2] for name in linear)
    names = [*(leaf for leaf in leaves if leaf not in fused), *fused]
    wanted = [targets] if isinstance(targets, str) else list(targets)
    if [str(target).lower() for target in wanted] == [ALL_LINEAR]:
        wanted = [name for name in names if name != "lm_head"]
    chosen: dict[str, int] = {}
    taken: dict[str, set[str]] = {}
    for target in wanted:
        leaf = str(target).rpartition(".")[2]
        if leaf in fused:
            taken.setdefault(fused[leaf], set()).add(leaf)
        elif found := [name for name in linear if f".{name}".endswith(f".{target}.weight")]:
            chosen.update(dict.fromkeys(found, 1))
        else:
            raise unknown("LoRA target", target, [ALL_LINEAR, *names])
    for parameter, leaves_taken in taken.items():
        needed = {leaf for leaf, owner in fused.items() if owner == parameter}
        if leaves_taken != needed:
            both = " and ".join(sorted(needed))
            raise InputError(f"peft adapts {both} of this model together; name both or neither")
        names = [t.name for t in model.tensors if t.name.endswith(f".{parameter}")]
        chosen.update(dict.fromkeys(names, len(needed)))
    if not chosen:
        raise InputError("LoRA needs at least one target")
    return chosen


def _leaf(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight").rpartition(".")[2]
