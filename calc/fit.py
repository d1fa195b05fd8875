"""Does it fit, on what and on how many: the one verdict, and the climb over GPU counts.

The verdict compares the band of the peak with what a process sees of the card.
Text B's rule stands beside it: the first count whose one-line total is at most 95 % of the label.
That the 95 % are of the label, not of what a process sees, is our reading of its sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import lcm

from calc.envelope import Envelope, Totals, envelope
from calc.estimate import Estimate, band, estimate
from calc.formula import one_line
from calc.gpus import Gpu, known
from calc.job import Job
from calc.memory.train_step import train_step
from calc.models.families import attention_of, unsupported
from calc.plan import Rank, plan_of
from calc.settings import SIZES
from calc.units import InputError, ceil_div

#: Text B: "fits within 95 %".
SHARE_PERCENT = 95
#: Where text B's climb ends the climb by peak goes on, on cards whose nodes can be joined.
BEYOND = (128, 256, 512, 1024)


class Verdict(StrEnum):
    """Whether a run fits a card: the band of its peak against what a process sees."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


def verdict(found: Estimate, gpu: Gpu) -> Verdict | None:
    """The verdict on an estimate and a card; None where peak or visible bytes are not known.

    Rule: fits where even the peak's high is visible, tight where its low is, else it does not fit.

    >>> from calc.gpus import get
    >>> from calc.models import load
    >>> job = Job.of(model=load("llama-3.3-70b"), world_size=8, strategy="fsdp2")
    >>> [str(verdict(estimate(job), get(name))) for name in ("h100-sxm5-80gb", "b200-sxm")]
    ['does not fit', 'fits']
    """
    if not found.peak or gpu.visible_bytes is None:
        return None
    if found.peak.high <= gpu.visible_bytes:
        return Verdict.FITS
    return Verdict.TIGHT if found.peak.low <= gpu.visible_bytes else Verdict.DOES_NOT_FIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One count of the climb: its verdict, and the peak's low less what a process sees."""

    num_gpus: int
    verdict: Verdict
    over_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One card's answer, bytes per GPU: what the climb found and against which limits.

    `num_gpus` is the first count whose verdict is fits; the verdict, `found` and `limiting_line`
    are those of it, or of the largest count tried where it is None. `near_miss` is the count before
    it.
    `num_gpus_one_line` is None where no count that the card offers fits; `one_line_bytes` is then
    that of the largest count tried.
    """

    gpu: Gpu
    num_gpus: int | None
    verdict: Verdict | None
    found: Estimate | None
    limiting_line: str | None
    near_miss: Try | None
    num_gpus_one_line: int | None
    tried: int
    one_line_bytes: int
    label_limit_bytes: int
    note: str


def label_limit(gpu: Gpu) -> int:
    """95 % of the card's label in bytes, text B's limit.

    >>> from calc.gpus import get
    >>> label_limit(get("h100-sxm5-80gb"))
    76000000000
    """
    return gpu.label_bytes * SHARE_PERCENT // 100


def climb(job: Job, gpu: Gpu, most: int = BEYOND[-1]) -> Row:
    """The first GPU count up to `most` on which `job` fits, by its peak and by the one-line total.

    `single` is tried on one GPU and `ddp` on the run's own count, since neither divides anything;
    the ZeRO stages and FSDP climb `Gpu.counts`, and by peak those beyond, as far as the degrees of
    `job` divide them. A card without counts (announced, TPU) has none.

    >>> from calc.gpus import get
    >>> from calc.models import load
    >>> row = climb(Job.of(model=load("llama-3.3-70b"), world_size=8), get("b200-sxm"))
    >>> row.num_gpus_one_line, row.num_gpus
    (8, 8)
    """
    counts, beyond, note = _counts(job, gpu, most)
    limit, need, tried, first = label_limit(gpu), 0, 0, None
    for tried in counts:
        need = one_line(job.but(world_size=tried)).total or 0
        if need <= limit:
            first = tried
            break
    num_gpus, found, near_miss = _climb_peak(job, gpu, (*counts, *beyond))
    worst = found.phases[found.peak.phase].lines if found and found.peak and found.phases else ()
    line = max(worst, key=lambda line: line.bytes).line if worst else None
    return Row(
        gpu=gpu,
        num_gpus=num_gpus,
        verdict=verdict(found, gpu) if found else None,
        found=found,
        limiting_line=line,
        near_miss=near_miss,
        num_gpus_one_line=first,
        tried=tried,
        one_line_bytes=need,
        label_limit_bytes=limit,
        note=note if gpu.counts() else "not offered as a GPU here",
    )


def _counts(job: Job, gpu: Gpu, most: int) -> tuple[Sequence[int], Sequence[int], str]:
    """The counts of the climb, those beyond for the peak alone, and what to know of them."""
    alone, step = gpu.topology == "single-node", job.tp * job.pp
    step *= lcm(job.cp, job.ep, job.stack.shard_size or 1)
    counts = tuple(count for count in gpu.counts() if count % step == 0 and count <= most)
    further = BEYOND if counts and not alone else ()
    beyond = tuple(count for count in further if count % step == 0 and count <= most)
    note = ""
    if gpu.vendor != "NVIDIA":
        note = f"{gpu.vendor}: the band is that of NVIDIA's context and NCCL"
    if job.stack.stage:
        return counts, beyond, note
    if not gpu.counts():
        return (), (), note
    if alone and job.world_size > (gpu.node_gpus or 0):
        return (), (), f"one node holds {gpu.node_gpus}"
    if not job.stack.alone:
        told = "more GPUs under DDP add throughput, not capacity"
        note = f"{told}; {note}" if note else told
    return (job.world_size,), (), note


def _climb_peak(
    job: Job, gpu: Gpu, counts: Iterable[int]
) -> tuple[int | None, Estimate | None, Try | None]:
    """The first count that fits, the estimate there (or of the last), and the count before."""
    found, near_miss = None, None
    if unsupported(job.model) or gpu.visible_bytes is None:
        return None, None, None
    for count in counts:
        found = estimate(job.but(world_size=count))
        said = verdict(found, gpu)
        if said == Verdict.FITS:
            return count, found, near_miss
        if said and found.peak:
            over = found.peak.low - gpu.visible_bytes
            near_miss = Try(num_gpus=count, verdict=said, over_bytes=over)
    return None, found, near_miss


def largest(job: Job, gpu: Gpu, field: str) -> int:
    """The largest `seq_len` or `micro_batch` with which `job` still fits `gpu`, 0 where none does.

    Read from the envelope of the peak; sequences above a sliding window, or of eager attention, are
    estimated.

    >>> from calc.gpus import get
    >>> from calc.models import load
    >>> job = Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="fsdp2")
    >>> largest(job, get("h100-sxm5-80gb"), "micro_batch")
    17
    """
    found = peaks(job, field)
    if found is None or gpu.visible_bytes is None:
        return 0
    visible, (peak, most), parts = gpu.visible_bytes, found, job.cp if field == "seq_len" else 1

    def fits(value: int) -> bool:
        if value > SIZES[field][1]:
            return False
        own = ceil_div(value, parts)
        if own <= most:
            return band(job, peak(own))[1] <= visible
        changed = replace(job, seq_len=value)
        return verdict(estimate(changed), gpu) == Verdict.FITS

    step = 1
    while fits(2 * step):
        step *= 2
    reached = step if fits(step) else 0
    while reached and step > 1:  # reached fits, reached + 2·step does not
        step //= 2
        reached += step if fits(reached + step) else 0
    return reached


@lru_cache(maxsize=512)
def peaks(job: Job, field: str) -> tuple[Envelope, int] | None:
    """The peak in bytes by `seq_len` (of one rank) or `micro_batch`, and the value up to which it
    holds.

    None where the operations of a layer are not known. Attention that is quadratic in the sequence
    holds up to 0.
    """
    sequence = field == "seq_len"
    most = affine_until(job) if sequence else SIZES[field][1]
    plan = plan_of(replace(job, seq_len=1) if sequence else job)
    ranks = [rank for rank in plan.ranks if rank.load and rank.save]
    if not ranks:
        return None
    seq_len = ceil_div(job.seq_len, job.cp)

    def played(rank: Rank) -> Callable[[int], Totals]:
        def at(value: int) -> Totals:
            memory = Totals()
            length, count = (value, job.micro_batch) if sequence else (seq_len, value)
            train_step(memory, job.stack, rank.batches, length, count)
            return memory

        return at

    constant = [phase.bytes for rank in ranks for phase in (rank.load, rank.save) if phase]
    return envelope(map(played, ranks), constant), most


def affine_until(job: Job) -> int:
    """The longest sequence of one rank up to which no operation is quadratic in it: a sliding
    window, or any.
    """
    if attention_of(job.model, job.attention) == "eager":
        return 0
    slides = any(block.attention == "sliding" for block in job.model.blocks)
    window = job.model.config.get("sliding_window") if slides else None
    return window if isinstance(window, int) and window else SIZES["seq_len"][1]


def fit(job: Job, gpus: Iterable[Gpu] = (), most: int = BEYOND[-1]) -> tuple[Row, ...]:
    """The climb up to `most` for each of `gpus`, by default every GPU that can be bought.

    A bare count has no activations and cannot be fitted by the one-line total: `InputError`.
    """
    if not job.model.has_architecture:
        why = f"needs a model with an architecture, not the bare count {job.model.name!r}"
        raise InputError(f"fit {why}: give a known name or a config.json")
    chosen = tuple(gpus) or tuple(gpu for gpu in known().values() if gpu.counts())
    return tuple(climb(job, gpu, most) for gpu in chosen)
