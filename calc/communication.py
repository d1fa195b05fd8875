"""Bytes on the wire per optimizer step, and how long a link needs for them at least.

Every strategy is a few collectives, each over a group of ranks and repeated once per micro-step or once per step.
Per GPU: an all-gather or a reduce-scatter of B bytes over N ranks sends B·(N−1)/N and receives as much;
an all-reduce is both, one after the other. No algorithm without arithmetic in the switch sends less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from calc.estimate import FSDP, Run
from calc.gpus import Gpu
from calc.models import Tensor
from calc.sharding import get_strategy, largest_share, packed, units
from calc.units import DTYPE_BYTES, InputError, ceil_div, records, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a step: `shard_bytes` is one rank's piece, `stride` the distance between its ranks."""

    name: str
    what: str
    ranks: int
    shard_bytes: int
    times: int
    stride: int = 1

    @property
    def passes(self) -> int:
        """How often a piece travels: an all-reduce scatters and gathers."""
        return 2 if self.name == "all-reduce" else 1

    @property
    def num_bytes(self) -> int:
        """Bytes that one GPU sends, and receives, in an optimizer step: times·passes·(N−1)·piece."""
        return self.times * self.passes * (self.ranks - 1) * self.shard_bytes

    def between_nodes(self, node_gpus: int) -> int:
        """Bytes that one node must take in per optimizer step when ranks are numbered node by node.

        Formula: groups with a rank in the node · (N − those inside)·piece, times and passes as above.

        >>> gather = Collective(name="all-gather", what="weights", ranks=16, shard_bytes=10, times=1)
        >>> gather.num_bytes, gather.between_nodes(8)
        (150, 80)
        """
        inside = min(self.ranks, max(1, node_gpus // self.stride))
        groups = max(1, node_gpus // inside)
        return self.times * self.passes * groups * (self.ranks - inside) * self.shard_bytes


def collectives(run: Run) -> tuple[Collective, ...]:
    """The collectives of one optimizer step of `run`, in the order of the step.

    DDP all-reduces gradients once per step. ZeRO-1 scatters them once and gathers the new weights, ZeRO-2 scatters
    them after every micro-step; torch's own ZeRO-1 all-reduces, and each rank broadcasts the tensors it updated.
    ZeRO-3 and FSDP gather the weights in every forward and backward pass and scatter the gradients of every
    micro-step, but with `no_sync` once; FSDP keeps its root gathered, and without `reshard_after_forward` everything.
    HSDP does so inside a shard group and all-reduces the gradient shards between groups.
    Raises `InputError` for tensor, pipeline, context and expert parallelism, whose traffic is not counted.
    Source: zero-paper section 7; the documentation of DeepSpeed, DDP and `fully_shard`.

    >>> from calc.models import load
    >>> run = Run(model=load("llama-3.3-70b"), world_size=8, strategy="zero3")
    >>> [found.num_bytes for found in collectives(run)]
    [123468986368, 123468986368, 123468986368]
    """
    if run.tp * run.pp * run.cp * run.ep > 1:
        raise InputError("only data parallelism is counted here: leave tp, pp, cp and ep at 1")
    if run.world_size == 1:
        return ()
    model, strategy, steps = run.trained, get_strategy(run.strategy), run.accumulation
    gathers, reduces = 4 if run.recipe == "fp32" else 2, DTYPE_BYTES[run.reduce_dtype]
    if strategy.stage < 3:
        whole = [(model.tensors, 1)]
        gradients, weights = (_piece(run, whole, itemsize, "flat") for itemsize in (reduces, gathers))
        dealt = run.strategy == "zero1" and run.recipe in ("fp32", "pure-bf16")
        reduction = "all-reduce" if strategy.stage == 0 or dealt else "reduce-scatter"
        found = [(reduction, "gradients", gradients, steps if run.strategy == "zero2" else 1)]
        if strategy.stage:
            found.append(("broadcast" if dealt else "all-gather", "new weights", weights, 1))
    else:
        sections = list(units(model))
        root = run.strategy in FSDP and model.has_architecture and run.wrap == "block"
        again = (sections[1:] if root else sections) if run.reshard_after_forward else []
        gradients = _piece(run, sections, reduces, strategy.layout)
        found = [
            ("all-gather", f"weights, {when}", _piece(run, which, gathers, strategy.layout, frozen=True), steps)
            for when, which in (("forward", sections), ("backward", again))
            if which
        ]
        found.append(("reduce-scatter", "gradients", gradients, 1 if run.no_sync else steps))
    done = [Collective(name=n, what=w, ranks=run.ranks, shard_bytes=b, times=t) for n, w, b, t in found]
    if (groups := run.world_size // run.ranks) > 1:
        what, part = "gradient shards between groups", ceil_div(gradients, groups)
        last = replace(done[-1], name="all-reduce", what=what, ranks=groups, shard_bytes=part, stride=run.ranks)
        done.append(last)
    return tuple(done)


def _piece(
    run: Run, sections: Iterable[tuple[Iterable[Tensor], int]], itemsize: int, layout: str, *, frozen: bool = False
) -> int:
    """Bytes of one rank's piece: trainable tensors in `itemsize`, frozen ones in the base's dtype.

    NF4 packs the linear layers of the blocks; their scales are on every rank anyway.
    """
    base, halves = run.base_dtype, 0
    for group, count in sections:
        by_size: dict[int, list[Tensor]] = {}
        for tensor in group:
            size = 1 if packed(tensor, base) else 2 * DTYPE_BYTES.get(base, 2)
            if tensor.trainable or frozen:
                by_size.setdefault(2 * itemsize if tensor.trainable else size, []).append(tensor)
        halves += count * sum(size * largest_share(alike, layout, run.ranks) for size, alike in by_size.items())
    return ceil_div(halves, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One link in an optimizer step: what crosses it at least, for how long, and the computing meanwhile.

    `seconds` and `compute_seconds` are exact quotients. From `break_even_tokens` per GPU and micro-step on,
    computing takes at least as long as the link.
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


def flops_per_token(run: Run) -> int:
    """Floating-point operations of a training step for one token: 6 per parameter, 8 with recomputation.

    Formula, A = active parameters, T = trainable ones of them: forward 2A, gradients of activations 2A, of weights 2T,
    and the forward once more, 2A, under full checkpointing, A where every second layer is. Attention's own products
    are left out.

    >>> from calc.models import load
    >>> flops_per_token(Run(model=load("70B"), world_size=8))
    560000000000
    """
    model, active = run.trained, run.trained.num_active
    again = {"full": 2, "selective": 1}.get(run.checkpointing, 0)
    return (4 + again) * active + 2 * min(active, model.num_trainable)


def waits(run: Run, found: Iterable[Collective], gpu: Gpu, *, mfu_percent: int = 40) -> tuple[Wait, ...]:
    """How long each link needs for one optimizer step of `run` at least, next to the time of computing.

    Inside a node the card's own link and PCIe carry what a GPU does not receive by its network adapter; between nodes
    every known network. Formula: bytes / rate, latency 0; computing = FLOPs per token · tokens · micro-steps /
    (`mfu_percent` of the card's dense bf16 peak). `mfu_percent` 1 to 100.
    Raises `InputError` for a card without a published bf16 rate.

    >>> from calc.gpus import get
    >>> from calc.models import load
    >>> run = Run(model=load("70B"), world_size=16)
    >>> [wait.link for wait in waits(run, collectives(run), get("h100-sxm5-80gb"))]
    ['nvlink', 'pcie', 'infiniband-400', 'ethernet-100', 'ethernet-10']
    """
    whole("mfu_percent", mfu_percent, 1, 100)
    if not gpu.bf16_dense_tflops:
        raise InputError(f"no bf16 rate is known for {gpu.name!r}: name another card")
    found, node = tuple(found), node_gpus(gpu)
    between = sum(c.between_nodes(node) for c in found)
    inside = sum(c.num_bytes for c in found) - between // node
    per_token = flops_per_token(run) * run.accumulation / (_rate(gpu.bf16_dense_tflops) * 10 * mfu_percent)
    links = [
        ("nvlink", gpu.link or "", inside, gpu.link_gb_s_each_way),
        ("pcie", "PCIe", inside, gpu.pcie_gb_s_each_way),
    ]
    if run.world_size > node:
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
                compute_seconds=per_token * run.tokens,
                break_even_tokens=ceil(seconds / per_token),
            )
            done.append(wait)
    return tuple(done)


def _rate(giga: float) -> Fraction:
    """Units per second, exactly as many as a data sheet prints in units of 10⁹."""
    return Fraction(str(giga)) * 10**9
