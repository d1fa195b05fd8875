"""The estimate of a run: its states, its phases, its peak, its host memory, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from calc.activations import attention_of, unsupported
from calc.estimate.formula import OneLine, one_line
from calc.estimate.run import CHOICES, DEGREES, Run
from calc.estimate.walk import Phase, Walk
from calc.models import Model
from calc.models.parts import only
from calc.sharding import Kept, get_strategy, kept, scales
from calc.states import get_optimizer, get_recipe
from calc.units import records

#: Bytes beside what PyTorch allocates, least and most: CUDA context with cuBLAS (0.3 to 0.6 GB), and NCCL from two
#: GPUs on (0.36 to 0.41 GB for 2 to 8 ranks, aiconfigurator).
CONTEXT_BYTES, NCCL_BYTES = (300_000_000, 600_000_000), (360_000_000, 410_000_000)
#: Blocks that the allocator cannot reuse: none to 5 % of the peak (PyTorch's rounding took 4.8 % of a published run).
FRAGMENTATION_PERCENT = 5
#: GPUs that share one host's memory.
NODE = 8
_ASSUMPTIONS = tuple(records("assumptions"))


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
    """What one GPU (the largest rank) needs for a run, in bytes, and what was assumed.

    `phases` are load, forward+backward, step and save, each at its worst instant; `instants` are all those of
    forward and backward. They and `peak` are empty or None where the operations of a layer are not known.
    """

    run: Run
    model: Model
    states: Kept
    one_line: OneLine
    phases: Mapping[str, Phase] | None
    instants: tuple[Phase, ...]
    peak: Peak | None
    host_per_node_bytes: int | None
    assumptions: tuple[str, ...]


def estimate(run: Run) -> Estimate:
    """What `run` costs on its largest rank, in exact bytes, with every assumption listed.

    >>> from calc.models import load
    >>> found = estimate(Run(model=load("llama-3.3-70b"), world_size=8, strategy="fsdp2", step="for-loop"))
    >>> found.states.total, found.peak.instant
    (141107412992, 'layers_bwd')
    """
    model = run.trained
    ranks = [_rank(run, stage, part) for stage, part in run.parts()]
    states, phases, instants = max(ranks, key=lambda rank: max((p.bytes for p in (rank[1] or {}).values()), default=0))
    states = max((rank[0] for rank in ranks), key=lambda states: states.total)
    return Estimate(
        run=run,
        model=model,
        states=states,
        one_line=one_line(run),
        phases=phases,
        instants=instants,
        peak=_peak(run, phases) if phases else None,
        host_per_node_bytes=_host(run, model),
        assumptions=_assumptions(run, model),
    )


def _rank(run: Run, stage: int, model: Model) -> tuple[Kept, Mapping[str, Phase] | None, tuple[Phase, ...]]:
    """What one rank of a pipeline stage keeps, its phases, and all its instants; `model` is its slice."""
    local = run.local
    states = _kept(local, model, run.recipe)
    held = states if run.held == run.recipe else _kept(local, model, run.held)
    if unsupported(model):
        return states, None, ()
    # One forward, one backward: a stage has begun a micro-batch for itself and each stage after it.
    waiting = min(run.pp - stage, run.accumulation) - 1
    resident = replace(held, optimizer=0) if get_optimizer(run.optimizer).paged else held
    walk = Walk(local, model, resident, waiting)
    instants = tuple(walk.instants())
    phases = {
        "load": walk.load(),
        "forward+backward": max(instants, key=lambda phase: phase.bytes),
        "step": walk.step(),
        "save": walk.save(),
    }
    return states, MappingProxyType(phases), instants


def _kept(run: Run, model: Model, recipe: str) -> Kept:
    """What stays on the GPU of what the recipe keeps."""
    gone = dict.fromkeys(run.offloaded, 0)
    if "weights" in gone:
        gone["weights"] = scales(model.tensors, run.base_dtype)
    return replace(_divided(run, model, recipe), **gone)


def _divided(run: Run, model: Model, recipe: str) -> Kept:
    """What one rank keeps, on the GPU or offloaded; experts are divided among fewer ranks."""
    optimizer, strategy = get_optimizer(run.optimizer), get_strategy(run.strategy)

    def of(model: Model, ranks: int) -> Kept:
        return kept(model, get_recipe(recipe), optimizer, strategy, ranks, run.base_dtype)

    if run.ep == 1:
        return of(model, run.world_size)
    parts = (of(only(model, experts=False), run.world_size), of(only(model, experts=True), run.world_size // run.ep))
    return Kept(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(Kept)})


def _host(run: Run, model: Model) -> int:
    """Bytes of host memory on one node: the largest of loading, training and saving.

    Formula: loading ranks × weights of the whole model, where each rank reads it to the CPU; training what is
    offloaded, and states of a paged optimizer; saving the whole model on one rank, for a full state dict.
    """
    ranks, optimizer = min(run.world_size, NODE), get_optimizer(run.optimizer)
    resident, stored = 0, 2 if run.lora_rank else get_recipe(run.held).itemsize("weights")
    if run.offload != "none" or optimizer.paged:
        found = max((_divided(run.local, part, run.held) for _, part in run.parts()), key=lambda kept: kept.total)
        away = {*run.offloaded, *(["optimizer"] if optimizer.paged else [])}
        resident = sum(getattr(found, line) for line in away)
        if run.held == "deepspeed" and run.offload != "none":
            resident = _deepspeed_host(run, found, max(t.numel for t in model.tensors if t.trainable))
    copies = max(ranks * (run.load == "cpu"), run.save == "full")
    return max(copies * stored * run.model.num_params, ranks * resident)


def _deepspeed_host(run: Run, found: Kept, largest: int) -> int:
    """Bytes of host memory that DeepSpeed's offload takes for one rank, of which `found` is all that it keeps.

    Formula, n = its share of the elements: 4n master + states + 4n gradients for the CPU's optimizer + 2n, in stage 3
    the 16-bit gradients, before it the updated weights, with one gradient in transit and 2n more where they
    accumulate; 2n weights with `all`. With `nvme` 2n gradients stay, up to 10⁹ weights (`max_in_cpu`), five buffers of
    10⁸ weights, and four of a sub-group in fp32, in which master, states and gradients pass through.
    Source: `stage_1_and_2.py`, `stage3.py` and `swap_tensor` of DeepSpeed 0.19.8.
    """
    share = found.master // 4
    if run.offload == "nvme":
        group = min(share, run.sub_group_size + largest // run.ranks)
        return 2 * share + 2 * min(share, 10**9) + 2 * group * (share > 10**9) + 2 * 5 * 10**8 + 4 * 4 * group
    accumulated = 2 * largest + 2 * share * (run.accumulation > 1) if run.strategy != "zero3" else 0
    return 10 * share + found.optimizer + found.weights * (run.offload == "all") + accumulated


def _peak(run: Run, phases: Mapping[str, Phase]) -> Peak:
    """The largest phase, with the band of what a process needs beside PyTorch's own bytes."""
    name, phase = max(phases.items(), key=lambda item: item[1].bytes)
    nccl = NCCL_BYTES if run.world_size > 1 else (0, 0)
    return Peak(
        phase=name,
        instant=phase.instant,
        bytes=phase.bytes,
        low=phase.bytes + CONTEXT_BYTES[0] + nccl[0],
        high=phase.bytes + phase.bytes * FRAGMENTATION_PERCENT // 100 + CONTEXT_BYTES[1] + nccl[1],
    )


def _assumptions(run: Run, model: Model) -> tuple[str, ...]:
    """What the numbers rest on: the choices first, then what was left out."""
    reason, runs = unsupported(model), attention_of(run.model, run.attention)
    deepspeed, stage3 = run.held == "deepspeed", run.strategy == "zero3"
    experts = min((t.shape[0] for t in model.tensors if t.kind == "expert"), default=run.ranks)
    held = {"autocast": "fp32, under autocast", "fp32": "fp32", "fsdp2-mixed": "fp32 shards, bf16 when gathered"}
    when = {
        "always": True,
        "not computed": reason,
        "computed": not reason,
        "eager instead": runs != run.attention,
        "bare count": not model.has_architecture,
        "ddp": run.strategy == "ddp",
        "zero": run.held != run.recipe,
        "deepspeed": run.recipe == "deepspeed",
        "stage 3": deepspeed and stage3,
        "stages 1, 2": deepspeed and not stage3,
        "adapters": run.lora_rank,
        "16-bit adapters": run.lora_rank and run.recipe not in held,
        "paged": get_optimizer(run.optimizer).paged,
        "offload": run.offloaded,
        "few experts": run.strategy in ("fsdp2", "hsdp") and experts < run.ranks,
        "CPU optimizer": deepspeed and run.offload in ("optimizer", "all"),
    }
    words = {field.name: getattr(run, field.name) for field in fields(run)} | {"reason": reason, "runs": runs}
    words |= {f"{field}_means": means[words[field]] for field, means in CHOICES.items()}
    words |= {"adapters": held.get(run.recipe, "16-bit"), "offloaded": ", ".join(run.offloaded)}
    words |= {"node": min(run.world_size, NODE), "experts": experts // run.ep, "ranks": run.ranks // run.ep}
    first, *told = [record["says"].format(**words) for record in _ASSUMPTIONS if when[record["when"]]]
    degrees = (f"{name} {words[name]}: {means}" for name, means in DEGREES.items() if words[name] > 1)
    return first, *model.assumptions, *told, *degrees
