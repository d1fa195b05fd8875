"""What one layer holds and makes: its operations as the backward meets them, and what the stack
does around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from calc.memory.training import Training, packed
from calc.models import Block, Model, Tensor
from calc.models.families import Op

if TYPE_CHECKING:
    from calc.stacks.base import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation as the backward meets it: bytes per token, and bytes whatever the tokens.

    `work` is alive while it runs, `saved` is kept for it, both per token; `fixed` is kept for it
    too, `cast` is the 16-bit copy of its weight that autocast frees as it begins. `made` are bytes
    of weight gradients that stay, `passing` of those that are gone with the next operation;
    `complete` says that the layer has all of its own now.
    """

    work: int
    saved: int
    fixed: int
    cast: int
    made: int
    passing: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer under one kind of checkpointing; bytes per token, but where it says
    otherwise.

    `stream` is its input, `copied` what of that a recomputed layer does not share, `kept` what
    stays from its forward to its backward, `saved` what its operations need. In bytes whatever the
    tokens: `fixed`, what they need beside; `cast`, the copies of weights that autocast makes and
    the backward needs; `cached`, those that live until the forward leaves autocast; `unpacked`, the
    largest NF4 matrix as 16 bit. `unit` is the stack's.
    """

    unit: Any
    recomputed: bool
    stream: int
    copied: int
    kept: int
    saved: int
    fixed: int
    cast: int
    cached: int
    unpacked: int
    operations: tuple[Operation, ...]


def recomputed(checkpointing: str, layer: int) -> bool:
    """Whether layer number `layer`, from 0, is recomputed; `selective` takes every second one."""
    return checkpointing in ("full", "matmuls") or (checkpointing == "selective" and layer % 2 == 1)


def matrices(tensors: Iterable[Tensor]) -> int:
    """Elements of matrices, which autocast casts."""
    return sum(t.count * t.numel for t in tensors if t.kind in ("linear", "router", "embedding"))


def frozen_start(ops: Iterable[Op]) -> int:
    """Bytes per token of what comes before the first weight that trains."""
    return sum(op.saved for op in takewhile(lambda op: not (op.numel or op.summed), ops))


def kept_bytes(stream: int, operations: tuple[Op, ...], *, again: bool, matmuls: bool) -> int:
    """Bytes per token that a layer keeps from its forward to its backward: all, its input, or its
    products too.
    """
    if not again:
        return sum(op.saved for op in operations)
    return stream + (sum(op.result for op in operations) if matmuls else 0)


def layer(
    training: Training,
    stack: Stack,
    block: Block,
    operations: tuple[Op, ...],
    *,
    again: bool,
    matmuls: bool,
) -> Layer:
    """The layer of `block` whose forward does `operations`; `again` where the backward recomputes
    it.
    """
    autocast = training.compute == "autocast"
    stream = training.residual_itemsize * hidden_size(training.model)
    saved, fixed = sum(op.saved for op in operations), sum(op.summed for op in operations)
    kept = kept_bytes(stream, operations, again=again, matmuls=matmuls)
    trains = [t for t in block.tensors if t.trainable]
    # An fp32 input is itself the copy that the first norm keeps.
    shared = training.residual_itemsize == 4 and operations[0].name == "input_layernorm"
    return Layer(
        unit=stack.unit(training, block.tensors),
        recomputed=again,
        stream=stream,
        copied=0 if shared else stream,
        kept=kept,
        saved=saved,
        fixed=fixed,
        cast=2 * matrices(block.tensors) if autocast else 0,
        cached=2 * matrices(trains) if autocast and again else 0,
        unpacked=max(
            (2 * t.numel for t in block.tensors if packed(t, training.base_dtype)), default=0
        ),
        operations=tuple(
            _backward(training, stack, operations, sum(t.count * t.numel for t in trains))
        ),
    )


def _backward(
    training: Training, stack: Stack, operations: tuple[Op, ...], trains: int
) -> list[Operation]:
    """The operations from the last to the first, with what each makes of the layer's `trains`
    gradients.
    """
    autocast, found, done, complete = training.compute == "autocast", list[Operation](), 0, False
    for op in reversed(operations):
        done += op.numel
        kept, passing = stack.weight_gradients(training, op.numel, op.largest_weight_gradient)
        half = 2 * min(op.largest_weight_gradient, op.cast) if autocast else 0
        found.append(
            Operation(
                work=op.work,
                saved=op.saved,
                fixed=op.summed,
                cast=2 * op.cast if autocast else 0,
                made=kept,
                passing=passing + op.summed + half,
                complete=done == trains and not complete,
            )
        )
        complete = complete or done == trains
    return found


def hidden_size(model: Model) -> int:
    return int(str(model.config["hidden_size"]))
