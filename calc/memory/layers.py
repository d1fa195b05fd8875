"""What one layer holds and makes: its operations as the backward meets them, and what the stack
does around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from calc.memory.training import Training, packed
from calc.models import Block, Model, Tensor
from calc.models.families import Op

if TYPE_CHECKING:
    from calc.stacks.base import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation as the backward meets it.

    In bytes per token: `freed` is what those before it needed, `work` what is alive while it runs.
    In bytes: `freed_fixed` as `freed`, with the 16-bit copy of its weight that autocast frees as it
    begins; `made` are weight gradients that stay, `passing` those that are gone with the next
    operation. `complete` says that the layer has all of its own now.
    """

    work: int
    freed: int
    freed_fixed: int
    made: int
    passing: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer under one kind of checkpointing; bytes per token, but where it says
    otherwise.

    `stream` is its input, `copied` what of that a recomputed layer does not share, `kept` what
    stays from its forward to its backward, `saved` what its operations need. In bytes whatever the
    tokens: `kept_fixed` is kept and `fixed` needed beside these; `cast` are the copies of weights
    that autocast makes and the backward needs; `cached`, those that live until the forward
    leaves autocast; `unpacked`, the largest NF4 matrix as 16 bit. `unit` is the stack's, `worst`
    are those `operations` of which one is the worst, whatever the tokens, with what the others free
    and make.
    """

    unit: Any
    recomputed: bool
    stream: int
    copied: int
    kept: int
    kept_fixed: int
    saved: int
    fixed: int
    cast: int
    cached: int
    unpacked: int
    operations: tuple[Operation, ...]
    worst: tuple[Operation, ...]


def recomputes(checkpointing: str, layer: int) -> bool:
    """Whether layer number `layer`, from 0, is recomputed; `selective` takes every second one."""
    return checkpointing in ("full", "matmuls") or (checkpointing == "selective" and layer % 2 == 1)


def matrices(tensors: Iterable[Tensor]) -> int:
    """Elements of matrices, which autocast casts."""
    return sum(t.count * t.numel for t in tensors if t.kind in ("linear", "router", "embedding"))


def frozen_start(ops: Iterable[Op]) -> int:
    """Bytes per token of what comes before the first weight that trains."""
    return sum(op.saved for op in takewhile(lambda op: not (op.numel or op.summed), ops))


def kept_bytes(stream: int, operations: tuple[Op, ...], *, recomputed: bool, matmuls: bool) -> int:
    """Bytes per token that a layer keeps from its forward to its backward.

    That is all that its operations need, or if it is `recomputed` its input, and with `matmuls` the
    products of its matrices.
    """
    if not recomputed:
        return sum(op.saved for op in operations)
    return stream + (sum(op.result for op in operations) if matmuls else 0)


def layer(
    training: Training,
    stack: Stack,
    block: Block,
    operations: tuple[Op, ...],
    *,
    recomputed: bool,
    matmuls: bool,
) -> Layer:
    """The layer of `block` whose forward does `operations`, `recomputed` in the backward or not."""
    autocast = training.compute == "autocast"
    stream = training.residual_itemsize * hidden_size(training.model)
    saved, fixed = sum(op.saved for op in operations), sum(op.summed for op in operations)
    kept = kept_bytes(stream, operations, recomputed=recomputed, matmuls=matmuls)
    cast = 2 * matrices(block.tensors) if autocast else 0
    trains = [t for t in block.tensors if t.trainable]
    # An fp32 input is itself the copy that the first norm keeps.
    shared = training.residual_itemsize == 4 and operations[0].name == "input_layernorm"
    steps = _backward(training, stack, operations, numel_of(trains))
    quantised = [2 * t.numel for t in block.tensors if packed(t, training.base_dtype)]
    return Layer(
        unit=stack.unit(training, block.tensors),
        recomputed=recomputed,
        stream=stream,
        copied=0 if shared else stream,
        kept=kept,
        kept_fixed=0 if recomputed else cast + fixed,
        saved=saved,
        fixed=fixed,
        cast=cast,
        cached=2 * matrices(trains) if autocast and recomputed else 0,
        unpacked=max(quantised, default=0),
        operations=steps,
        worst=_worst(steps),
    )


def _backward(
    training: Training, stack: Stack, operations: tuple[Op, ...], trains: int
) -> tuple[Operation, ...]:
    """The operations from the last to the first, where `trains` elements of the layer train."""
    autocast, found, done, complete = training.compute == "autocast", list[Operation](), 0, False
    before = Op(name="")
    for op in reversed(operations):
        done += op.numel
        made, passing = stack.weight_gradients(training, op.numel, op.largest_weight_gradient)
        cast, half = (
            (2 * op.cast, 2 * min(op.largest_weight_gradient, op.cast)) if autocast else (0, 0)
        )
        step = Operation(
            work=op.work,
            freed=before.saved,
            freed_fixed=before.summed + cast,
            made=made,
            passing=passing + op.summed + half,
            complete=done == trains and not complete,
        )
        before, complete = op, complete or step.complete
        found.append(step)
    return tuple(found)


def _worst(steps: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Those that no other outdoes for every number of tokens, and the last, with what lies between.

    A need is a pair: bytes per token, and bytes; what comes after the last gradient needs more.
    """
    per_token = fixed = rank = 0
    needs = []
    for step in steps:
        per_token, fixed = per_token - step.freed, fixed - step.freed_fixed + step.made
        rank += step.complete
        needs.append((per_token + step.work, fixed + step.passing, rank))
    kept, freed, freed_fixed, made, complete = list[Operation](), 0, 0, 0, False
    for at, (step, need) in enumerate(zip(steps, needs, strict=True)):
        freed, freed_fixed = freed + step.freed, freed_fixed + step.freed_fixed
        made, complete = made + step.made, complete or step.complete
        others = needs[at + 1 :] + [other for other in needs[:at] if other != need]
        outdone = any(all(map(int.__ge__, other, need)) for other in others)
        if outdone and step is not steps[-1]:
            continue
        so_far = replace(step, freed=freed, freed_fixed=freed_fixed, made=made)
        kept.append(replace(so_far, complete=complete))
        freed, freed_fixed, made, complete = 0, 0, 0, False
    return tuple(kept)


def numel_of(tensors: Iterable[Tensor]) -> int:
    """Elements of all the tensors."""
    return sum(t.count * t.numel for t in tensors)


def hidden_size(model: Model) -> int:
    return int(str(model.config["hidden_size"]))
