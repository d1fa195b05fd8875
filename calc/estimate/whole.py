"""The estimate of a run: its states, its phases, its peak, its host memory, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from calc.activations import unsupported
from calc.estimate.formula import OneLine, one_line
from calc.estimate.run import Run
from calc.estimate.walk import Phase, Walk
from calc.models import Model
from calc.sharding import Kept, get_strategy, kept
from calc.states import get_optimizer, get_recipe

#: Bytes beside what PyTorch allocates, least and most: CUDA context with cuBLAS (0.3 to 0.6 GB), and NCCL from two
#: GPUs on (0.36 to 0.41 GB for 2 to 8 ranks, aiconfigurator).
CONTEXT_BYTES, NCCL_BYTES = (300_000_000, 600_000_000), (360_000_000, 410_000_000)
#: Blocks that the allocator cannot reuse: none to 5 % of the peak (PyTorch's rounding took 4.8 % of a published run).
FRAGMENTATION_PERCENT = 5
#: GPUs that share one host's memory.
NODE = 8


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
    states, held = _kept(run, model, run.recipe), _kept(run, model, run.held)
    phases: Mapping[str, Phase] | None = None
    instants: tuple[Phase, ...] = ()
    if not unsupported(model):
        walk = Walk(run, model, replace(held, optimizer=0) if get_optimizer(run.optimizer).paged else held)
        instants = tuple(walk.instants())
        phases = MappingProxyType(
            {
                "load": walk.load(),
                "forward+backward": max(instants, key=lambda phase: phase.bytes),
                "step": walk.step(),
                "save": walk.save(),
            }
        )
    return Estimate(
        run=run,
        model=model,
        states=states,
        one_line=one_line(run, model),
        phases=phases,
        instants=instants,
        peak=_peak(run, phases) if phases else None,
        host_per_node_bytes=_host(run, model),
        assumptions=_assumptions(run, model),
    )


def _kept(run: Run, model: Model, recipe: str) -> Kept:
    """What stays on the GPU of what the recipe keeps."""
    optimizer, strategy = get_optimizer(run.optimizer), get_strategy(run.strategy)
    found = kept(model, get_recipe(recipe), optimizer, strategy, run.world_size, run.base_dtype)
    return replace(found, **dict.fromkeys(run.offloaded, 0))


def _host(run: Run, model: Model) -> int:
    """Bytes of host memory on one node: the largest of loading, training and saving.

    Formula: loading ranks × weights of the whole model, where each rank reads it to the CPU; training what is
    offloaded, and states of a paged optimizer; saving the whole model on one rank, for a full state dict.
    """
    ranks, optimizer = min(run.world_size, NODE), get_optimizer(run.optimizer)
    recipe, strategy = get_recipe(run.held), get_strategy(run.strategy)
    found = kept(model, recipe, optimizer, strategy, run.world_size, run.base_dtype)
    resident: int = sum(getattr(found, line) for line in run.offloaded)
    if optimizer.paged and "optimizer" not in run.offloaded:
        resident += found.optimizer
    stored = 2 if run.lora_rank else recipe.itemsize("weights")
    whole: int = stored * run.model.num_params
    loading = ranks * whole if run.load == "cpu" else 0
    return max(loading, ranks * resident, whole if run.save == "full" else 0)


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
    lines = [
        f"strategy {run.strategy}, recipe {run.recipe}, optimizer {run.optimizer}",
        "bytes are those of the largest rank",
        *model.assumptions,
    ]
    if not model.has_architecture:
        lines.append("a bare count has no architecture: activations, total and peak are not computed")
    if run.strategy == "ddp":
        lines.append("DDP holds everything on every GPU: more GPUs add throughput, not capacity")
    if run.recipe == "zero" and run.strategy in ("zero1", "zero2", "zero3"):
        lines.append(
            "recipe zero is the paper's accounting between steps; "
            "at its step DeepSpeed also holds 4 bytes per parameter of fp32 gradients, sharded"
        )
    if run.lora_rank:
        lines.append(f"LoRA rank {run.lora_rank} on {run.lora_targets}; the base is frozen in {run.base_dtype}")
    return tuple(lines)
