"""The estimate of a job: states, phases, peak, host memory, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from calc.formula import OneLine, paper_activations
from calc.job import Job
from calc.memory.ledger import Phase
from calc.memory.timeline import Timeline
from calc.memory.train_step import MicroBatch, train_step
from calc.models import Model
from calc.plan import Rank, plan_of
from calc.stacks.shards import ModelStates
from calc.units import ceil_div

#: Bytes beside what PyTorch allocates, least and most: CUDA context with cuBLAS (0.3 to 0.6 GB),
#: and NCCL from two GPUs on (0.36 to 0.41 GB for 2 to 8 ranks, aiconfigurator).
CONTEXT_BYTES = 300_000_000, 600_000_000
NCCL_BYTES = 360_000_000, 410_000_000
#: Blocks that the allocator cannot reuse: none to 5 % of the peak (PyTorch's rounding took 4.8 % of
#: a published run).
FRAGMENTATION_PERCENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The worst instant: `bytes` is what `torch.cuda.max_memory_allocated` says.

    `low` and `high` add the least and the most that CUDA's context, NCCL and fragmentation are
    documented to take.
    """

    phase: str
    instant: str
    bytes: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one GPU (the largest rank) needs for a job, in bytes, and what was assumed.

    `phases` are load, forward+backward, step and save, each at its worst instant; `instants` are
    all those of forward and backward. They and `peak` are empty or None where the operations of a
    layer are not known.
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


def estimate(job: Job) -> Estimate:
    """What `job` costs on its largest rank, in exact bytes, with every assumption listed.

    >>> from calc.models import load
    >>> found = estimate(Job.of(model=load("llama-3.3-70b"), world_size=8, strategy="fsdp2"))
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
    if not rank.batches or rank.load is None or rank.save is None:
        return {}, ()
    *instants, last = play(job, rank.batches, Timeline()).instants()
    worst = max(instants, key=lambda phase: phase.bytes)
    phases = {"load": rank.load, "forward+backward": worst, "step": last, "save": rank.save}
    return phases, tuple(instants)


def play(job: Job, batches: tuple[MicroBatch, ...], memory: Timeline) -> Timeline:
    """`memory` with one optimizer step of `job` played in it."""
    train_step(memory, job.stack, batches, ceil_div(job.seq_len, job.cp), job.micro_batch)
    return memory


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
