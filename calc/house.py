"""The estimate of a job: its states, its phases, its peak, its host memory, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from calc.activations import attention_of, head_cost, unsupported
from calc.job import Job
from calc.memory.layers import frozen_start, layer, operations_of, recomputed
from calc.memory.timeline import Instant, Timeline
from calc.memory.train_step import Key, Step, train_step
from calc.memory.training import Training
from calc.models import Model
from calc.stacks.shards import ModelStates, numel_of, trainable
from calc.states import get_optimizer
from calc.units import ceil_div

#: Lines that are no plain sum of shapes and dtypes: set by the user, or found by measuring.
KINDS = {"reduce bucket": "config", "gathered parameters": "config", "gradients being reduced": "measured"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item of a phase. `kind`: exact (shapes, dtypes), config (a size the user sets), measured or allowance."""

    line: str
    bytes: int
    kind: str = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is allocated at one instant of a run, line by line, on the largest rank."""

    instant: str
    lines: tuple[Line, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    states: ModelStates
    phases: Mapping[str, Phase] | None
    instants: tuple[Phase, ...]


def phase(found: Instant) -> Phase:
    lines = tuple(Line(line=name, bytes=num, kind=KINDS.get(name, "exact")) for name, num in found.lines.items() if num)
    return Phase(instant=found.name, lines=lines, bytes=found.bytes)


def training_of(job: Job, model: Model) -> Training:
    return Training(
        model=model,
        recipe=job.held,
        optimizer=get_optimizer(job.optimizer),
        base_dtype=job.base_dtype,
        lora=job.lora_rank > 0,
        accumulation=job.accumulation,
        ep=job.ep,
    )


def rank(job: Job, stage: int, model: Model) -> Rank:
    """What one rank of a pipeline stage keeps, its phases, and all its instants; `model` is its slice."""
    training = training_of(job, model)
    from calc.states import get_recipe

    states = job.stack.resident(replace(training, recipe=get_recipe(job.recipe)))
    if unsupported(model):
        return Rank(states=states, phases=None, instants=())
    # One forward, one backward: a stage has begun a micro-batch for itself and each stage after it.
    waiting = min(job.pp - stage, job.accumulation) - 1
    seq_len = ceil_div(job.seq_len, job.cp)
    steps = [
        step_of(job, replace(training, micro_batch=which), waiting, seq_len)
        for which in job.stack.micro_batches(training)
    ]
    step = steps[-1]
    memory = Timeline()
    train_step(memory, job.stack, steps, seq_len, job.micro_batch)
    *instants, last = [phase(found) for found in memory.instants()]
    phases = {
        "load": load(job, step),
        "forward+backward": max(instants, key=lambda one: one.bytes),
        "step": last,
        "save": save(job, step),
    }
    return Rank(states=states, phases=MappingProxyType(phases), instants=tuple(instants))


def load(job: Job, step: Step) -> Phase:
    instant, line, size = job.stack.load(step.training, step.resident["weights"], job.load)
    return phase(Instant(instant, size, {line: size}))


def save(job: Job, step: Step) -> Phase:
    instant, size = job.stack.save(step.training, job.save)
    memory = Timeline()
    memory.instant(instant)
    for line in ("weights", "master", "optimizer"):
        memory.alloc(line, step.resident[line])
    for line, num in job.stack.persistent(step).items():
        memory.alloc(line, num)
    memory.alloc("gathered unit", size)
    return phase(memory.peak(instant))


def step_of(job: Job, training: Training, waiting: int, seq_len: int) -> Step:
    model, stack = training.model, job.stack
    attention = attention_of(model, job.attention)
    kinds = sorted((number, kind) for kind, block in enumerate(model.blocks) for number in block.layers)
    order: tuple[Key, ...] = tuple((kind, recomputed(job.checkpointing, at)) for at, (_, kind) in enumerate(kinds))
    ops = [operations_of(model, block, training, attention, seq_len) for block in model.blocks]
    layers = {
        key: layer(
            training, stack, model.blocks[key[0]], ops[key[0]], again=key[1], matmuls=job.checkpointing == "matmuls"
        )
        for key in dict.fromkeys(order)
    }
    head = head_cost(model, training.compute, job.loss, attention, job.checkpointing, seq_len)
    if not model.last:
        head = replace(head, norm=0, forward=0, backward=0, weight_work=0)
    whole_head = model.first if model.tied else [t for t in model.last if t.name.startswith("lm_head")]
    head_numel = numel_of(trainable(whole_head))
    embedded = numel_of(trainable(model.first))
    first, last = stack.ends(training)
    resident = stack.resident(training)
    if training.optimizer.paged:
        resident = replace(resident, optimizer=0)
    lora = training.lora and bool(model.first)
    leaf = lora and job.checkpointing != "none"
    before = 0
    if lora and not order[0][1]:
        before = layers[order[0]].copied if leaf else -frozen_start(ops[order[0][0]])
    from calc.memory.layers import matrices

    return Step(
        training=training,
        layers=layers,
        order=order,
        first=first,
        last=last,
        head=head,
        head_gradient=sum(stack.weight_gradients(training, head_numel, head_numel)),
        fused_gradient=stack.made_itemsize(training) * head_numel if job.loss == "chunked" else 0,
        head_cast=2 * matrices(model.first if model.tied else model.last) if training.compute == "autocast" else 0,
        embedding_gradient=sum(stack.weight_gradients(training, embedded, embedded)),
        resident=asdict(resident),
        before=before,
        leaf=leaf,
        waiting=waiting,
        implementation=job.step,
    )
