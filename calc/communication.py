"""Bytes on the wire per optimizer step, and how long a link needs for them at least.

Every strategy is a few collectives, each over a group of ranks and repeated once per micro-step or
once per step.
Per GPU: an all-gather or a reduce-scatter of B bytes over N ranks sends B·(N−1)/N and receives as
much; an all-reduce is both, one after the other. No algorithm without arithmetic in the switch
sends less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from calc.gpus import Gpu
from calc.job import Job
from calc.plan import training_of
from calc.stacks.collectives import Collective
from calc.units import InputError, records, whole


def collectives(job: Job) -> tuple[Collective, ...]:
    """The collectives of one optimizer step of `job`, in the order of the step.

    Which they are stands in each stack's own file. DDP all-reduces gradients once per step. ZeRO-1
    scatters them once and gathers the new weights, ZeRO-2 scatters them after every micro-step;
    torch's own ZeRO-1 all-reduces, and each rank broadcasts the tensors it updated. ZeRO-3 and FSDP
    gather the weights in every forward and backward pass and scatter the gradients of every
    micro-step, but with `no_sync` once; FSDP keeps its root gathered, and without
    `reshard_after_forward` everything. HSDP does so inside a group, and all-reduces gradient shards
    between groups.
    Raises `InputError` for tensor, pipeline, context and expert parallelism, whose traffic is not
    counted.
    Source: zero-paper section 7; the documentation of DeepSpeed, DDP and `fully_shard`.

    >>> from calc.models import load
    >>> job = Job.of(model=load("llama-3.3-70b"), world_size=8, strategy="zero3")
    >>> [found.num_bytes for found in collectives(job)]
    [123468986368, 123468986368, 123468986368]
    """
    if job.tp * job.pp * job.cp * job.ep > 1:
        raise InputError("only data parallelism is counted here: leave tp, pp, cp and ep at 1")
    if job.world_size == 1:
        return ()
    return job.stack.collectives(training_of(job, job.trained))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One link in an optimizer step: what crosses it, how long, and the computing meanwhile.

    `seconds` and `compute_seconds` are exact quotients. From `break_even_tokens` per GPU and
    micro-step on, computing takes at least as long as the link.
    """

    link: str
    title: str
    num_bytes: int
    seconds: Fraction
    compute_seconds: Fraction
    break_even_tokens: int

    @property
    def overlapped(self) -> Fraction:
        """Share of the step that computes when all traffic hides behind it as far as it can."""
        return self.compute_seconds / max(self.compute_seconds, self.seconds)

    @property
    def serial(self) -> Fraction:
        """Share of the step that computes when nothing overlaps."""
        return self.compute_seconds / (self.compute_seconds + self.seconds)


def node_gpus(gpu: Gpu) -> int:
    """GPUs that reach each other without a network: those of a node, or of a rack with one fabric.

    Raises `InputError` for a card that cannot be bought yet.

    >>> from calc.gpus import get
    >>> [node_gpus(get(name)) for name in ("h100-sxm5-80gb", "gb200-nvl72")]
    [8, 72]
    """
    found = gpu.scale_up_domain if gpu.topology == "rack-scale" else gpu.node_gpus
    if not found:
        raise InputError(f"no node size is known for {gpu.name!r}: name another card")
    return found


def flops_per_token(job: Job) -> int:
    """Floating-point operations of a step for one token: 6 per parameter, 8 with recomputation.

    Formula, A = active parameters, T = trainable ones of them: forward 2A, gradients of activations
    2A, of weights 2T, and the forward once more, 2A, under full checkpointing, A where every second
    layer is. Attention's own products are left out.

    >>> from calc.models import load
    >>> flops_per_token(Job.of(model=load("70B"), world_size=8))
    560000000000
    """
    model, active = job.trained, job.trained.num_active
    recomputed = {"full": 2, "selective": 1}.get(job.checkpointing, 0)
    return (4 + recomputed) * active + 2 * min(active, model.num_trainable)


def waits(
    job: Job, found: Iterable[Collective], gpu: Gpu, *, mfu_percent: int = 40
) -> tuple[Wait, ...]:
    """How long each link needs for an optimizer step of `job` at least, beside the computing.

    Inside a node the card's own link and PCIe carry what a GPU does not receive by its network
    adapter; between nodes every known network. Formula: bytes / rate, latency 0; computing = FLOPs
    per token · tokens · micro-steps / (`mfu_percent` of the card's dense bf16 peak). `mfu_percent`
    1 to 100.
    Raises `InputError` for a card without a published bf16 rate.

    >>> from calc.gpus import get
    >>> from calc.models import load
    >>> job = Job.of(model=load("70B"), world_size=16)
    >>> [wait.link for wait in waits(job, collectives(job), get("h100-sxm5-80gb"))]
    ['nvlink', 'pcie', 'infiniband-400', 'ethernet-100', 'ethernet-10']
    """
    whole("mfu_percent", mfu_percent, 1, 100)
    if not gpu.bf16_dense_tflops:
        raise InputError(f"no bf16 rate is known for {gpu.name!r}: name another card")
    found, node = tuple(found), node_gpus(gpu)
    between = sum(c.between_nodes(node) for c in found)
    inside = sum(c.num_bytes for c in found) - between // node
    per_token = (
        flops_per_token(job) * job.accumulation / (_rate(gpu.bf16_dense_tflops) * 10 * mfu_percent)
    )
    links = [
        ("nvlink", gpu.link or "", inside, gpu.link_gb_s_each_way),
        ("pcie", "PCIe", inside, gpu.pcie_gb_s_each_way),
    ]
    if job.world_size > node:
        for network in records("networks"):
            speed = network["gb_s_each_way"] * (node if network["per_gpu"] else 1)
            links.append((network["name"], network["title"], between, speed))
    done = []
    for link, title, num_bytes, gb_s in links:
        if gb_s:
            seconds = num_bytes / _rate(gb_s)
            wait = Wait(
                link=link,
                title=title,
                num_bytes=num_bytes,
                seconds=seconds,
                compute_seconds=per_token * job.tokens,
                break_even_tokens=ceil(seconds / per_token),
            )
            done.append(wait)
    return tuple(done)


def _rate(giga: float) -> Fraction:
    """Units per second, exactly as many as a data sheet prints in units of 10⁹."""
    return Fraction(str(giga)) * 10**9
