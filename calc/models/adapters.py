"""LoRA: a frozen base model and two small matrices beside each chosen linear layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from calc.models.tensors import Model, Tensor
from calc.units import InputError, unknown, whole

ALL_LINEAR = "all-linear"


def with_adapters(model: Model, *, rank: int, targets: str | Sequence[str] = ALL_LINEAR) -> Model:
    """`model` frozen, with LoRA matrices of `rank` beside the `targets`, as peft 0.21.2 makes them.

    Each target of shape (out, in) gets `lora_A` (rank, in) and `lora_B` (out, rank): rank·(in + out).
    `targets` is `all-linear`, every linear layer but `lm_head`, or names of modules such as `q_proj`.
    `rank` is from 1 to the smallest dimension of the targets.
    Raises `InputError` for a bare count, an unknown target, and a rank that is too large.
    Source: arXiv:2106.09685 section 4.1; peft's `LoraConfig`.

    >>> from calc.models import load
    >>> with_adapters(load("llama-3.1-8b"), rank=16).num_trainable
    41943040
    """
    if not model.has_architecture:
        raise InputError(f"{model.name} is a bare count; LoRA needs the shapes of a model's layers")
    sections = (model.first, *(block.tensors for block in model.blocks), model.last)
    modules = {_module(t) for section in sections for t in section if t.kind == "linear"}
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        chosen = modules - {"lm_head"}
    else:
        wanted = (targets,) if isinstance(targets, str) else tuple(targets)
        chosen = {module for target in wanted for module in _matching(target, modules)}
    shapes = [t.shape for section in sections for t in section if _module(t) in chosen and t.kind == "linear"]
    limit = min(min(shape) for shape in shapes)
    if whole("rank", rank, 1, 10**6) > limit:
        raise InputError(f"rank {rank} is larger than the smallest dimension of the targets, {limit}")

    def adapted(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        result: list[Tensor] = []
        for tensor in tensors:
            result.append(replace(tensor, trainable=False))
            if tensor.kind == "linear" and (module := _module(tensor)) in chosen:
                out, into = reversed(tensor.shape) if model.model_type == "gpt2" else tensor.shape
                for name, shape in (("lora_A", (rank, into)), ("lora_B", (out, rank))):
                    weight = f"{module}.{name}.default.weight"
                    result.append(replace(tensor, name=weight, shape=shape, kind="adapter"))
        return tuple(result)

    notes = [f"LoRA of rank {rank} on {', '.join(sorted({m.rsplit('.', 1)[-1] for m in chosen}))}; the base is frozen"]
    if any(t.kind == "expert" for t in model.tensors):
        notes.append("routed experts are one 3-D parameter in transformers, no linear layers: they get no adapter")
    return replace(
        model,
        first=adapted(model.first),
        blocks=tuple(replace(block, tensors=adapted(block.tensors)) for block in model.blocks),
        last=adapted(model.last),
        assumptions=(*model.assumptions, *notes),
    )


def _module(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight")


def _matching(target: str, modules: set[str]) -> list[str]:
    """The modules that peft would take for `target`: of that name, or ending in it after a dot."""
    found = [module for module in modules if module == target or module.endswith(f".{target}")]
    if not found:
        names = dict.fromkeys(module.rsplit(".", 1)[-1] for module in sorted(modules))
        raise unknown("LoRA target", target, [ALL_LINEAR, *names])
    return found
