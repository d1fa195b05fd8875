"""What of an estimate does not depend on the batch: what to play, and what is kept around it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from calc.assumptions import assumptions
from calc.formula import OneLine, paper_states
from calc.job import Job
from calc.memory.layers import Layer, frozen_start, layer, matrices, numel_of, recomputes
from calc.memory.ledger import Phase
from calc.memory.train_step import Key, MicroBatch
from calc.memory.training import Training
from calc.models import Model
from calc.models.families import (
    Head,
    Op,
    attention_of,
    head_cost,
    operations,
    unsupported,
    windowed,
)
from calc.optimizers import get_optimizer
from calc.precision import get_recipe
from calc.settings import NODE_GPUS
from calc.stacks.shards import ModelStates, trainable
from calc.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of a pipeline stage, whatever its batch.

    It says what the rank keeps, which micro-batches to play, and what loading and saving take.
    """

    states: ModelStates
    batches: tuple[MicroBatch, ...]
    load: Phase | None
    save: Phase | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What of an estimate does not depend on the batch."""

    model: Model
    ranks: tuple[Rank, ...]
    largest_part: Model
    paper: OneLine
    host_per_node_bytes: int
    assumptions: tuple[str, ...]


def plan_of(job: Job) -> Plan:
    """The plan for `job`: one for all sequences and micro-batches, but where operations depend on
    the sequence.
    """
    seq_len = ceil_div(job.seq_len, job.cp)
    model, attention = job.model, attention_of(job.model, job.attention)
    depends = attention == "eager" or any(
        windowed(model.config, block, seq_len) for block in model.blocks
    )
    return _plan(replace(job, seq_len=seq_len if depends else 1, micro_batch=1))


@lru_cache(maxsize=512)
def _plan(job: Job) -> Plan:
    model = job.trained
    parts = tuple(job.parts())
    largest_part = max((part for _, part in parts), key=lambda part: part.num_params)
    return Plan(
        model=model,
        ranks=tuple(_rank(job, stage, part) for stage, part in parts),
        largest_part=largest_part,
        paper=paper_states(job, largest_part),
        host_per_node_bytes=_host(job, model, tuple(part for _, part in parts)),
        assumptions=assumptions(job, model),
    )


def training_of(job: Job, model: Model) -> Training:
    """What trains on a rank whose slice of the model is `model`."""
    return Training(
        model=model,
        recipe=job.held,
        optimizer=get_optimizer(job.optimizer),
        base_dtype=job.base_dtype,
        lora=job.lora_rank > 0,
        accumulation=job.accumulation,
        ep=job.ep,
    )


def _rank(job: Job, stage: int, model: Model) -> Rank:
    """One rank of a pipeline stage; `model` is its slice."""
    training = training_of(job, model)
    states = job.stack.resident(replace(training, recipe=get_recipe(job.recipe)))
    if unsupported(model):
        return Rank(states=states, batches=(), load=None, save=None)
    # One forward, one backward: a stage has begun a micro-batch for itself and each stage after it.
    waiting = min(job.pp - stage, job.accumulation) - 1
    played = job.stack.micro_batches(training)
    batches = tuple(_batch(job, replace(training, turn=turn), waiting) for turn in played)
    return Rank(
        states=states, batches=batches, load=_load(job, batches[-1]), save=_save(job, batches[-1])
    )


def _batch(job: Job, training: Training, waiting: int) -> MicroBatch:
    """What `train_step` plays of one kind of micro-batch."""
    model, stack = training.model, job.stack
    operated, order = _operations(job, training), _order(job, model)
    layers = {key: _layer(job, training, key, operated[key[0]]) for key in dict.fromkeys(order)}
    ends = model.first if model.tied else model.last
    heads = ends if model.tied else [t for t in ends if t.name.startswith("lm_head")]
    head_numel, embedded = numel_of(trainable(heads)), numel_of(trainable(model.first))
    fused = stack.gradient_itemsize(training) * head_numel if job.loss == "chunked" else 0
    first, last = stack.ends(training)
    resident = stack.resident(training)
    before, leaf = _before(job, training, layers[order[0]], operated[order[0][0]])
    return MicroBatch(
        training=training,
        layers=layers,
        order=order,
        first=first,
        last=last,
        head=_head(job, training),
        head_gradient=sum(stack.weight_gradients(training, head_numel, head_numel)),
        fused_gradient=fused,
        head_cast=2 * matrices(ends) if training.compute == "autocast" else 0,
        embedding_gradient=sum(stack.weight_gradients(training, embedded, embedded)),
        resident=asdict(replace(resident, optimizer=0) if training.optimizer.paged else resident),
        persistent=stack.persistent(training),
        whole=stack.whole(training, resident),
        update=stack.update(training, resident, job.step),
        before=before,
        leaf=leaf,
        waiting=waiting * (before + sum(layers[key].kept for key in order)),
        waiting_fixed=waiting * sum(layers[key].kept_fixed for key in order),
    )


def _order(job: Job, model: Model) -> tuple[Key, ...]:
    """The kind of each layer, from the first to the last, and whether it is recomputed."""
    numbers = sorted((n, kind) for kind, block in enumerate(model.blocks) for n in block.layers)
    return tuple((kind, recomputes(job.checkpointing, at)) for at, (_, kind) in enumerate(numbers))


def _operations(job: Job, training: Training) -> list[tuple[Op, ...]]:
    """The operations of each kind of layer."""
    model, asked = training.model, (training.compute, training.adapters)
    attention = attention_of(model, job.attention)
    return [operations(model, block, *asked, attention, job.seq_len) for block in model.blocks]


def _layer(job: Job, training: Training, key: Key, operated: tuple[Op, ...]) -> Layer:
    kind, recomputed = key
    matmuls, block = job.checkpointing == "matmuls", training.model.blocks[kind]
    return layer(training, job.stack, block, operated, recomputed=recomputed, matmuls=matmuls)


def _head(job: Job, training: Training) -> Head:
    """What norm, head and loss need; nothing of it on a pipeline stage before the last."""
    model, attention = training.model, attention_of(training.model, job.attention)
    asked = (training.compute, job.loss, attention, job.checkpointing, job.seq_len)
    head = head_cost(model, *asked)
    return head if model.last else replace(head, norm=0, forward=0, backward=0, weight_work=0)


def _before(job: Job, training: Training, first: Layer, ops: tuple[Op, ...]) -> tuple[int, bool]:
    """Bytes per token that the first layer keeps more than its like, and whether its input takes
    a gradient though the embedding is frozen.

    Under a frozen embedding nothing is kept before the first adapter; but for checkpoints its
    output is made to take a gradient, and stays.
    """
    if not (training.lora and training.model.first):
        return 0, False
    leaf = job.checkpointing != "none"
    if first.recomputed:
        return 0, leaf
    return first.copied if leaf else -frozen_start(ops), leaf


def _load(job: Job, batch: MicroBatch) -> Phase:
    instant, line, size = job.stack.load(batch.training, batch.resident["weights"], job.load)
    return Phase(instant, size, {line: size})


def _save(job: Job, batch: MicroBatch) -> Phase:
    instant, size = job.stack.save(batch.training, job.save)
    kept = {line: batch.resident[line] for line in ("weights", "master", "optimizer")}
    if job.stack.gradients_stay:
        kept["gradients"] = batch.whole["gradients"]
    held = kept | {**batch.persistent} | {"gathered unit": size}
    return Phase(instant, sum(held.values()), held)


def _host(job: Job, model: Model, parts: tuple[Model, ...]) -> int:
    """Bytes of host memory on one node: the largest of loading, training and saving.

    Formula: loading ranks × weights of the whole model, where each rank reads it to the CPU;
    training what is offloaded, and states of a paged optimizer; saving the whole model on one rank,
    for a full state dict.
    """
    ranks, resident = min(job.world_size, NODE_GPUS), 0
    stored = 2 if job.lora_rank else job.held.itemsize("weights")
    if job.stack.offload != "none" or get_optimizer(job.optimizer).paged:
        kept = [
            (training_of(job, part), job.stack.states(training_of(job, part))) for part in parts
        ]
        training, found = max(kept, key=lambda pair: pair[1].total)
        largest = max(t.numel for t in trainable(model.tensors))
        resident = job.stack.host_bytes(training, found, largest)
    copies = max(ranks if job.load == "cpu" else 0, 1 if job.save == "full" else 0)
    return max(copies * stored * job.model.num_params, ranks * resident)
