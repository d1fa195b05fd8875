"""One step, whatever the stack: forward, loss and backward, layer by layer and operation by
operation.

The stack's hooks stand where a framework's do, around each layer and around the ends of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calc.memory.layers import Layer
from calc.memory.timeline import Timeline
from calc.memory.training import Training
from calc.models.families import Head

if TYPE_CHECKING:
    from calc.stacks.base import Stack

#: A layer's kind, and whether it is recomputed.
Key = tuple[int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one micro-batch needs, in bytes per token but where it says otherwise.

    `order` names the layer at each depth, `first` and `last` are the units of the model's ends.
    `tables` are bytes per position. `before` is what the first layer keeps more (or less) than its
    like, `leaf` whether the embedding's output takes a gradient though its weight is frozen.
    `waiting` is what micro-batches keep that a pipeline has begun. In bytes: `head_gradient` and
    `embedding_gradient` as the backward makes them, `fused_gradient` what a fused loss makes of the
    head's in its forward, `head_cast` what autocast copies of the head, and by line: `resident`
    what stays on the GPU between steps, `persistent` buffers that live as long, `whole` what the
    stack holds of the whole model for a while, `update` what the optimizer's step takes with its
    gradients, None for one on the host, and `waiting_fixed` as `waiting`, whatever the tokens.
    """

    training: Training
    layers: Mapping[Key, Layer]
    order: tuple[Key, ...]
    first: Any
    last: Any
    head: Head
    head_gradient: int
    fused_gradient: int
    head_cast: int
    embedding_gradient: int
    resident: Mapping[str, int]
    persistent: Mapping[str, int]
    whole: Mapping[str, int]
    update: Mapping[str, int] | None
    before: int
    leaf: bool
    waiting: int
    waiting_fixed: int


def train_step(
    memory: Timeline, stack: Stack, batches: Sequence[MicroBatch], seq_len: int, micro_batch: int
) -> None:
    """Play one step: each micro-batch that is like no other, from the first to the last, and the
    optimizer's step.
    """
    tokens = seq_len * micro_batch
    stack.start(memory, batches[-1])
    for batch in batches:
        memory.instant("")
        stack.begin_forward(memory, batch)
        tables = batch.head.tables * seq_len + batch.head.inputs * tokens
        earlier = batch.waiting * tokens + batch.waiting_fixed
        memory.alloc("saved activations", tables + earlier + batch.before * tokens)
        forward(memory, stack, batch, tokens)
        loss(memory, stack, batch, tokens)
        backward(memory, stack, batch, tokens)
        embedding(memory, stack, batch, tokens)
    optimizer(memory, batches[-1])


def forward(memory: Timeline, stack: Stack, batch: MicroBatch, tokens: int) -> None:
    """The layers' forward: each keeps its input, or what its backward needs."""

    def layer_forward(key: Key, _: Key | None) -> None:
        layer = batch.layers[key]
        memory.alloc("saved activations", layer.stream * tokens)
        stack.pre_forward(memory, layer.unit)
        memory.free("saved activations", layer.stream * tokens)
        memory.alloc("saved activations", layer.kept * tokens + layer.kept_fixed)
        memory.alloc("weights cast by autocast", layer.cached)
        stack.post_forward(memory, layer.unit)

    memory.repeat(batch.order, layer_forward)


def loss(memory: Timeline, stack: Stack, batch: MicroBatch, tokens: int) -> None:
    """Final norm, logits and loss; then their backward, which ends with the head's own gradient."""
    head = batch.head
    memory.instant("head_fwd")
    stack.pre_head(memory, batch)
    memory.alloc("saved activations", head.norm * tokens)
    cached = memory.held["weights cast by autocast"]
    memory.alloc("weights cast by autocast", batch.head_cast)
    memory.alloc("head gradient", batch.fused_gradient)
    memory.burst("logits and loss", head.forward * tokens)
    memory.free("weights cast by autocast", cached)
    stack.end_forward(memory, batch)
    memory.instant("head_bwd")
    memory.burst("logits and loss", head.backward * tokens)
    memory.free("head gradient")
    stack.pre_head_backward(memory, batch)
    memory.alloc("head gradient", batch.head_gradient)
    memory.burst("logits and loss", head.weight_work * tokens)
    memory.free("weights cast by autocast")
    stack.post_head_backward(memory, batch)
    memory.free("saved activations", head.norm * tokens)


def backward(memory: Timeline, stack: Stack, batch: MicroBatch, tokens: int) -> None:
    """The layers' backward, from the last to the first."""
    memory.instant("layers_bwd")

    def layer_backward(key: Key, following: Key | None) -> None:
        layer = batch.layers[key]
        stream = layer.stream * tokens
        memory.alloc("activation gradients", stream)
        stack.pre_backward(
            memory, layer.unit, batch.layers[following].unit if following else batch.first
        )
        memory.free("activation gradients")
        memory.alloc("dequantised matrix", layer.unpacked)
        if layer.recomputed:
            memory.free("saved activations", layer.kept * tokens)
            memory.alloc("saved activations", layer.copied * tokens)
            operations(memory, stack, layer, tokens, "recomputed layer")
            memory.free("saved activations", layer.copied * tokens)
        else:
            operations(memory, stack, layer, tokens, "saved activations")
        memory.free("dequantised matrix")
        memory.alloc("activation gradients", stream)
        stack.post_backward(memory, layer.unit)
        memory.free("activation gradients")

    memory.repeat(batch.order[::-1], layer_backward, last_first=True)


def operations(memory: Timeline, stack: Stack, layer: Layer, tokens: int, line: str) -> None:
    """The backward of a layer's operations, for which `line` keeps what they need."""
    left, left_fixed = layer.saved, layer.fixed + layer.cast
    if layer.recomputed:
        memory.alloc(line, left * tokens + left_fixed)
    for operation in layer.operations if memory.every_layer else layer.worst:
        memory.free(line, operation.freed * tokens + operation.freed_fixed)
        left, left_fixed = left - operation.freed, left_fixed - operation.freed_fixed
        if operation.complete:
            stack.gradients_complete(memory, layer.unit)
        if operation.made or operation.passing:
            memory.alloc("layer gradients", operation.made + operation.passing)
        memory.burst("activation gradients", operation.work * tokens)
        if operation.passing:
            memory.free("layer gradients", operation.passing)
    memory.free(line, left * tokens + left_fixed)


def embedding(memory: Timeline, stack: Stack, batch: MicroBatch, tokens: int) -> None:
    """The embedding's backward; a tied matrix has two gradients there, and then their sum."""
    made = batch.embedding_gradient
    memory.free("saved activations")
    memory.instant("root_bwd")
    stream = batch.layers[batch.order[0]].stream * tokens
    memory.alloc("activation gradients", (2 if batch.leaf else 1) * stream)
    stack.pre_embedding_backward(memory, batch)
    memory.alloc("root gradients", made)
    memory.free("activation gradients")
    if batch.training.model.tied:
        memory.alloc("root gradients", made)
    stack.end_backward(memory, batch)


def optimizer(memory: Timeline, batch: MicroBatch) -> None:
    """The optimizer's step: what was transient is gone, states and gradients are there."""
    for line in [*memory.held]:
        if line not in batch.resident and line not in batch.persistent:
            memory.free(line)
    if batch.update is not None:
        memory.free("gradients")
    memory.instant("step")
    for line, num_bytes in (batch.update or {"step temporaries": 0}).items():
        memory.alloc(line, num_bytes)
