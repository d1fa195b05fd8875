"""The estimate of a job: its states, its phases, its peak, its host memory, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from calc.assumptions import assumptions
from calc.formula import OneLine, paper_activations, paper_states
from calc.job import NODE_GPUS, Job
from calc.memory.layers import frozen_start, layer, matrices, recomputed
from calc.memory.ledger import Line, Phase
from calc.memory.timeline import Timeline
from calc.memory.train_step import Key, Step, fixed, train_step
from calc.memory.training import Training
from calc.models import Model
from calc.models.families import attention_of, head_cost, operations, unsupported, windowed
from calc.optimizers import get_optimizer
from calc.precision import get_recipe
from calc.stacks.shards import ModelStates, numel_of, trainable
from calc.units import ceil_div

__all__ = ["Estimate", "Line", "Peak", "Phase", "Plan", "Rank", "estimate", "plan_of", "play"]

#: Bytes beside what PyTorch allocates, least and most: CUDA context with cuBLAS (0.3 to 0.6 GB), and NCCL
#: from two GPUs on (0.36 to 0.41 GB for 2 to 8 ranks, aiconfigurator).
CONTEXT_BYTES, NCCL_BYTES = (300_000_000, 600_000_000), (360_000_000, 410_000_000)
#: Blocks that the allocator cannot reuse: none to 5 % of the peak (PyTorch's rounding took 4.8 % of a
#: published run).
FRAGMENTATION_PERCENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The worst instant: `bytes` is what `torch.cuda.max_memory_allocated` says.

    `low` and `high` add the least and the most that CUDA's context, NCCL and fragmentation are documented to take.
    """

    phase: str
    instant: str
    bytes: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one GPU (the largest rank) needs for a job, in bytes, and what was assumed.

    `phases` are load, forward+backward, step and save, each at its worst instant; `instants` are all those of
    forward and backward. They and `peak` are empty or None where the operations of a layer are not known.
    """

    job: Job
    model: Model
    states: ModelStates
    one_line: OneLine
    phases: Mapping[str, Phase] | None
    instants: tuple[Phase, ...]
    peak: Peak | None
    host_per_node_bytes: int
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of a pipeline stage, whatever its batch: what it keeps, the steps to play, loading and saving."""

    states: ModelStates
    steps: tuple[Step, ...]
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


def estimate(job: Job) -> Estimate:
    """What `job` costs on its largest rank, in exact bytes, with every assumption listed.

    >>> from calc.models import load
    >>> found = estimate(Job.of(model=load("llama-3.3-70b"), world_size=8, strategy="fsdp2", step="for-loop"))
    >>> found.states.total, found.peak.instant
    (141107412992, 'layers_bwd')
    """
    plan = plan_of(job)
    played = [(*_played(job, rank), rank.states) for rank in plan.ranks]
    phases, instants, states = max(played, key=lambda rank: (_worst(rank[0]), rank[2].total))
    return Estimate(
        job=job,
        model=plan.model,
        states=states,
        one_line=replace(plan.paper, activations=paper_activations(job, plan.largest_part)),
        phases=MappingProxyType(phases) if phases else None,
        instants=instants,
        peak=_peak(job, phases) if phases else None,
        host_per_node_bytes=plan.host_per_node_bytes,
        assumptions=plan.assumptions,
    )


def _worst(phases: Mapping[str, Phase]) -> int:
    """The bytes of the largest phase."""
    return max((phase.bytes for phase in phases.values()), default=0)


def _played(job: Job, rank: Rank) -> tuple[dict[str, Phase], tuple[Phase, ...]]:
    """The phases of a rank's step, and all instants of its forward and backward."""
    if not rank.steps or rank.load is None or rank.save is None:
        return {}, ()
    *instants, last = play(job, rank.steps, Timeline()).instants()
    worst = max(instants, key=lambda phase: phase.bytes)
    phases = {"load": rank.load, "forward+backward": worst, "step": last, "save": rank.save}
    return phases, tuple(instants)


def play(job: Job, steps: tuple[Step, ...], memory: Timeline) -> Timeline:
    """`memory` with one optimizer step of `job` played in it."""
    train_step(memory, job.stack, steps, ceil_div(job.seq_len, job.cp), job.micro_batch)
    return memory


def plan_of(job: Job) -> Plan:
    """The plan for `job`: one for all sequences and micro-batches, but where operations depend on the sequence."""
    seq_len = ceil_div(job.seq_len, job.cp)
    model, attention = job.model, attention_of(job.model, job.attention)
    depends = attention == "eager" or any(windowed(model.config, block, seq_len) for block in model.blocks)
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
        return Rank(states=states, steps=(), load=None, save=None)
    # One forward, one backward: a stage has begun a micro-batch for itself and each stage after it.
    waiting = min(job.pp - stage, job.accumulation) - 1
    played = job.stack.micro_batches(training)
    steps = tuple(_step(job, replace(training, micro_batch=which), waiting) for which in played)
    return Rank(states=states, steps=steps, load=_load(job, steps[-1]), save=_save(job, steps[-1]))


def _step(job: Job, training: Training, waiting: int) -> Step:
    """What `train_step` plays of one kind of micro-batch."""
    model, stack, seq_len = training.model, job.stack, job.seq_len
    attention = attention_of(model, job.attention)
    numbers = sorted((number, kind) for kind, block in enumerate(model.blocks) for number in block.layers)
    order: tuple[Key, ...] = tuple((kind, recomputed(job.checkpointing, at)) for at, (_, kind) in enumerate(numbers))
    each = [operations(model, block, training.compute, training.adapters, attention, seq_len) for block in model.blocks]
    layers = {
        (kind, again): layer(
            training, stack, model.blocks[kind], each[kind], again=again, matmuls=job.checkpointing == "matmuls"
        )
        for kind, again in dict.fromkeys(order)
    }
    head = head_cost(model, training.compute, job.loss, attention, job.checkpointing, seq_len)
    if not model.last:  # a pipeline stage before the last
        head = replace(head, norm=0, forward=0, backward=0, weight_work=0)
    head_tensors = model.first if model.tied else [t for t in model.last if t.name.startswith("lm_head")]
    head_numel, embedded = numel_of(trainable(head_tensors)), numel_of(trainable(model.first))
    autocast, lora = training.compute == "autocast", training.lora and bool(model.first)
    first, last = stack.ends(training)
    resident = stack.resident(training)
    leaf = lora and job.checkpointing != "none"
    # Under a frozen embedding nothing is kept before the first adapter; but for checkpoints its output is made to
    # take a gradient, and stays.
    before = 0
    if lora and not order[0][1]:
        before = layers[order[0]].copied if leaf else -frozen_start(each[order[0][0]])
    return Step(
        training=training,
        layers=layers,
        order=order,
        first=first,
        last=last,
        head=head,
        head_gradient=sum(stack.weight_gradients(training, head_numel, head_numel)),
        fused_gradient=stack.made_itemsize(training) * head_numel if job.loss == "chunked" else 0,
        head_cast=2 * matrices(model.first if model.tied else model.last) if autocast else 0,
        embedding_gradient=sum(stack.weight_gradients(training, embedded, embedded)),
        resident=asdict(replace(resident, optimizer=0) if training.optimizer.paged else resident),
        persistent=stack.persistent(training),
        whole=stack.whole(training, resident),
        update=stack.update(training, resident, job.step),
        before=before,
        leaf=leaf,
        waiting=waiting * (before + sum(layers[key].kept for key in order)),
        waiting_fixed=waiting * sum(fixed(layers[key]) for key in order),
    )


def _load(job: Job, step: Step) -> Phase:
    instant, line, size = job.stack.load(step.training, step.resident["weights"], job.load)
    return Phase(instant, size, {line: size})


def _save(job: Job, step: Step) -> Phase:
    instant, size = job.stack.save(step.training, job.save)
    kept = {line: step.resident[line] for line in ("weights", "master", "optimizer")}
    held = kept | {**step.persistent} | {"gathered unit": size}
    return Phase(instant, sum(held.values()), held)


def _host(job: Job, model: Model, parts: tuple[Model, ...]) -> int:
    """Bytes of host memory on one node: the largest of loading, training and saving.

    Formula: loading ranks × weights of the whole model, where each rank reads it to the CPU; training what is
    offloaded, and states of a paged optimizer; saving the whole model on one rank, for a full state dict.
    """
    ranks, resident = min(job.world_size, NODE_GPUS), 0
    stored = 2 if job.lora_rank else job.held.itemsize("weights")
    if job.stack.offload != "none" or get_optimizer(job.optimizer).paged:
        kept = [(training_of(job, part), job.stack.states(training_of(job, part))) for part in parts]
        training, found = max(kept, key=lambda pair: pair[1].total)
        largest = max(t.numel for t in trainable(model.tensors))
        resident = job.stack.host_bytes(training, found, largest)
    copies = max(ranks if job.load == "cpu" else 0, 1 if job.save == "full" else 0)
    return max(copies * stored * job.model.num_params, ranks * resident)


def _peak(job: Job, phases: Mapping[str, Phase]) -> Peak:
    """The largest phase, with the band of what a process needs beside PyTorch's own bytes."""
    name, phase = max(phases.items(), key=lambda item: item[1].bytes)
    low, high = band(job, phase.bytes)
    return Peak(phase=name, instant=phase.instant, bytes=phase.bytes, low=low, high=high)


def band(job: Job, num_bytes: int) -> tuple[int, int]:
    """The least and the most bytes that a process needs whose tensors peak at `num_bytes`."""
    nccl = NCCL_BYTES if job.world_size > 1 else (0, 0)
    most = num_bytes + num_bytes * FRAGMENTATION_PERCENT // 100
    return num_bytes + CONTEXT_BYTES[0] + nccl[0], most + CONTEXT_BYTES[1] + nccl[1]
