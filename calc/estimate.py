"""One job fully specified (`Run`) and what it costs per GPU (`Estimate`), line by line.

Two levels of answer that are never blended: the one-line formula that people can do on paper,
with nominal bytes per parameter, and the ledger of exact bytes on the largest rank with its peak by phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from calc.activations import (
    ATTENTION,
    CHECKPOINTING,
    LOSSES,
    STEPS,
    block_cost,
    checkpointed,
    compute_dtype,
    head_cost,
    step_temporaries,
    unsupported,
)
from calc.models import Block, Model, Tensor, with_adapters
from calc.sharding import Kept, get_strategy, kept, largest_share, layout_of
from calc.states import get_optimizer, get_recipe, refuse
from calc.units import DTYPE_BYTES, InputError, ceil_div, unknown, whole

#: The per-GPU overhead of the one-line formula: 1.5 GB (source: text-b).
OVERHEAD_BYTES = 1_500_000_000

BASE_DTYPES = ("bf16", "fp32", "nf4")
FSDP = ("fsdp1", "fsdp2", "hsdp")
#: What a choice may be, by its field.
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "checkpointing": CHECKPOINTING,
        "attention": ATTENTION,
        "loss": LOSSES,
        "step": STEPS,
        "reduce_dtype": ("fp32", "bf16"),
        "wrap": ("block", "block+ends"),
        "load": ("cpu", "gpu"),
        "save": ("sharded", "full"),
        "offload": ("none", "optimizer", "all"),
        "base_dtype": BASE_DTYPES,
    }
)
#: Bytes beside what PyTorch allocates, least and most: CUDA context with cuBLAS (0.3 to 0.6 GB), and NCCL from two
#: GPUs on (0.36 to 0.41 GB for 2 to 8 ranks, aiconfigurator).
CONTEXT_BYTES, NCCL_BYTES = (300_000_000, 600_000_000), (360_000_000, 410_000_000)
#: Blocks that the allocator cannot reuse: none to 5 % of the peak (PyTorch's rounding took 4.8 % of a published run).
FRAGMENTATION_PERCENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training job: model, parallelism, recipe and batch; checked when it is made.

    An empty `strategy` means `single` on one GPU and `zero3` on more; an empty `recipe` means
    `fsdp2-mixed` under FSDP and `zero` elsewhere; an empty `reduce_dtype` is fp32 for `fsdp2-mixed` and
    the gradients' own dtype elsewhere. With `lora_rank` > 0 the model is frozen in `base_dtype` and only
    the adapters on `lora_targets` train. `CHOICES` lists the words that the other settings take.
    Ranges: `world_size` 1 to 1,000,000, `seq_len` 1 to 100,000,000, `micro_batch` and `accumulation` 1 to 1,000,000.
    Raises `InputError`, one line, for anything else and for a pair that does not run.

    >>> from calc.models import load
    >>> run = Run(model=load("llama-3.3-70b"), world_size=8)
    >>> run.strategy, run.recipe, run.optimizer
    ('zero3', 'zero', 'adamw')
    """

    model: Model
    world_size: int = 1
    strategy: str = ""
    recipe: str = ""
    optimizer: str = "adamw"
    seq_len: int = 2048
    micro_batch: int = 1
    accumulation: int = 1
    checkpointing: str = "full"
    attention: str = "sdpa"
    loss: str = "full"
    step: str = "fused"
    reduce_dtype: str = ""
    wrap: str = "block"
    load: str = "cpu"
    save: str = "sharded"
    offload: str = "none"
    lora_rank: int = 0
    lora_targets: str = "all-linear"
    base_dtype: str = "bf16"

    def __post_init__(self) -> None:
        whole("world_size", self.world_size, 1, 1_000_000)
        whole("seq_len", self.seq_len, 1, 100_000_000)
        whole("micro_batch", self.micro_batch, 1, 1_000_000)
        whole("accumulation", self.accumulation, 1, 1_000_000)
        whole("lora_rank", self.lora_rank, 0, 1_000_000)
        if not self.strategy:
            object.__setattr__(self, "strategy", "single" if self.world_size == 1 else "zero3")
        strategy = get_strategy(self.strategy)
        fsdp = self.strategy in FSDP
        if not self.recipe:
            object.__setattr__(self, "recipe", "fsdp2-mixed" if fsdp else "zero")
        recipe = get_recipe(self.recipe)
        refuse(self.strategy, recipe, get_optimizer(self.optimizer))
        if strategy.name == "single" and self.world_size != 1:
            raise InputError(f"strategy 'single' takes world_size 1, not {self.world_size:,}")
        own = "fp32" if recipe.itemsize("gradients") == 4 else "bf16"
        if not fsdp and self.reduce_dtype not in ("", own):
            raise InputError(f"reduce_dtype is a setting of FSDP; strategy {self.strategy!r} reduces in {own}")
        object.__setattr__(self, "reduce_dtype", self.reduce_dtype or own)
        for field, allowed in CHOICES.items():
            if getattr(self, field) not in allowed:
                raise unknown(field, getattr(self, field), allowed)
        if self.base_dtype != "bf16" and not self.lora_rank:
            raise InputError(f"base_dtype {self.base_dtype!r} is for a frozen base: give lora_rank as well")
        if self.wrap != "block" and not fsdp:
            raise InputError(f"wrap {self.wrap!r} is a setting of FSDP; strategy {self.strategy!r} has none")
        self._check_offload(strategy.stage)

    def _check_offload(self, stage: int) -> None:
        """Raise `InputError` where the strategy's stack has no such offload."""
        if self.offload == "none":
            return
        fsdp = self.strategy in FSDP
        deepspeed = self.strategy in ("zero1", "zero2", "zero3") and self.recipe in ("zero", "deepspeed")
        allowed = ["none"] + ["optimizer"] * deepspeed + ["all"] * (fsdp or (deepspeed and stage == 3))
        if self.offload not in allowed:
            raise InputError(
                f"offload {self.offload!r} does not exist under strategy {self.strategy!r} with recipe "
                f"{self.recipe!r}; allowed: {', '.join(allowed)}"
            )

    @property
    def tokens(self) -> int:
        """Tokens that one GPU processes at a time: seq_len × micro_batch."""
        return self.seq_len * self.micro_batch

    @property
    def held(self) -> str:
        """The recipe that the stack holds through its step: `deepspeed` where `zero` is only its accounting."""
        return "deepspeed" if self.recipe == "zero" and get_strategy(self.strategy).stage else self.recipe

    @property
    def trained(self) -> Model:
        """The model with its adapters, if any: what the optimizer sees."""
        if not self.lora_rank:
            return self.model
        targets = self.lora_targets
        return with_adapters(
            self.model,
            rank=self.lora_rank,
            targets=targets if targets == "all-linear" else tuple(targets.split(",")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLine:
    """The one-line formula, each term its own line, in bytes per GPU.

    `activations` is None for a bare count, which has no architecture.
    """

    weights: int
    master: int
    gradients: int
    optimizer: int
    bucket: int
    activations: int | None
    overhead: int

    @property
    def total(self) -> int | None:
        """Sum of the lines in bytes, None where one of them is unknown."""
        if self.activations is None:
            return None
        total: int = sum(getattr(self, field.name) for field in fields(self))
        return total


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

    @property
    def bytes(self) -> int:
        """Sum of the lines."""
        return sum(line.bytes for line in self.lines)


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


def one_line(run: Run, model: Model | None = None) -> OneLine:
    """The formula of text B in bytes per GPU, nominal bytes per parameter.

    Formula: weights·(1/N from ZeRO-3) + master·(1/N from ZeRO-1) + gradients·(1/N from ZeRO-2) +
    optimizer·(1/N from ZeRO-1) + 2·layers·tokens·hidden + 4·tokens·vocab + 1.5 GB; DDP adds one
    live copy of the gradients. Frozen parameters have weights only.
    Source: text-b, the activation term is ours. Each line is rounded up to a whole byte.

    >>> from calc.models import load
    >>> one_line(Run(model=load("llama-3.3-70b"), world_size=8)).total
    146342440704
    """
    model = model or run.trained
    recipe, strategy = get_recipe(run.recipe), get_strategy(run.strategy)
    trainable, frozen = model.num_trainable, model.num_params - model.num_trainable
    lines = {"weights": 0, "master": 0, "gradients": 0}
    for copy in recipe.copies:
        ranks = run.world_size if strategy.stage >= copy.stage else 1
        lines[copy.line] += ceil_div(trainable * copy.itemsize, ranks)
    # NF4 on paper is half a byte; what its scales add is in the ledger.
    per_frozen = 1 if run.base_dtype == "nf4" else 2 * DTYPE_BYTES[run.base_dtype]
    ranks = run.world_size if strategy.stage >= 3 else 1
    lines["weights"] += ceil_div(frozen * per_frozen, 2 * ranks)
    state = get_optimizer(run.optimizer).nominal_bytes(recipe.state_dtype) * trainable
    ranks = run.world_size if strategy.stage >= 1 else 1
    ddp = run.strategy == "ddp"
    return OneLine(
        **lines,
        optimizer=ceil_div(state, ranks),
        bucket=trainable * recipe.itemsize("gradients") if ddp else 0,
        activations=_paper_activations(run),
        overhead=OVERHEAD_BYTES,
    )


def _paper_activations(run: Run) -> int | None:
    if not run.model.has_architecture:
        return None
    config = run.model.config
    hidden, vocab = int(str(config["hidden_size"])), int(str(config["vocab_size"]))
    return 2 * run.model.num_layers * run.tokens * hidden + 4 * run.tokens * vocab


class _Walk:
    """One forward and backward, layer by layer: what is allocated at each instant that can be the worst."""

    def __init__(self, run: Run, model: Model, states: Kept) -> None:
        self.run, self.model, self.states, self.tokens = run, model, states, run.tokens
        recipe = get_recipe(run.held)
        self.dtype = compute_dtype(recipe.name)
        self.unit = 4 if self.dtype == "fp32" else 2
        self.reduce = DTYPE_BYTES[run.reduce_dtype]
        self.grad = 2 if run.held == "deepspeed" else recipe.itemsize("gradients")
        self.layout, self.align = layout_of(get_strategy(run.strategy), recipe, run.world_size)
        self.costs = {b: block_cost(model, b, self.dtype, run.attention, run.seq_len) for b in model.blocks}
        self.head = head_cost(model, self.dtype, run.loss)
        self.order = _in_order(model)
        self.kept = [0]
        for layer, block in enumerate(self.order):
            self.kept.append(self.kept[-1] + self.costs[block].kept(run.checkpointing, layer))
        self.size = {b: self.unit * b.numel for b in model.blocks}
        self.trains = {b: _trainable(b.tensors) for b in model.blocks}
        shard = {b: self.grad * self.share(b.tensors) for b in model.blocks}
        self.done = [0]
        for block in reversed(self.order):
            self.done.append(self.done[-1] + shard[block])
        # self.done[n]: gradients that the rank keeps of the last n layers.
        self.ends = run.wrap == "block+ends" and not model.tied
        first, last = model.first, model.last
        self.root = () if self.ends else (*first, *last)
        self.first = first if self.ends else self.root
        self.last = last if self.ends else self.root
        self.head_trains = _trainable(first if model.tied else [t for t in last if t.name.startswith("lm_head")])
        self.embed_trains = _trainable(first)

    def share(self, tensors: Iterable[Tensor]) -> int:
        """Trainable elements of which one rank keeps the gradient."""
        cut = "whole" if self.layout == "greedy" else self.layout
        return largest_share([t for t in tensors if t.trainable], cut, self.run.world_size, self.align)

    def phase(self, instant: str, gradients: int, *lines: Line) -> Phase:
        """The states, the gradients that exist by then, and `lines`; empty lines are left out."""
        states = self.states
        base = (
            Line(line="weights", bytes=states.weights),
            Line(line="master", bytes=states.master),
            Line(line="optimizer", bytes=states.optimizer),
            Line(line="gradients", bytes=gradients),
        )
        tables = Line(line="inputs and rotary tables", bytes=self.head.tables * self.tokens)
        return Phase(instant=instant, lines=tuple(line for line in (*base, tables, *lines) if line.bytes))

    def instants(self) -> Iterator[Phase]:
        """The instants that can be the worst, each at its own worst: loss, layers, embedding."""
        tokens, head, count = self.tokens, self.head, len(self.order)
        saved = Line(line="saved activations", bytes=(self.kept[count] + head.norm) * tokens)
        for instant, logits in (("head_fwd", head.forward), ("head_bwd", head.backward)):
            loss = Line(line="logits and loss", bytes=logits * tokens)
            yield self.phase(instant, self.gradients(count), *self.around(count), saved, loss)
        yield self.layers()
        yield self.root_phase()

    def gradients(self, layer: int) -> int:
        """Bytes of gradients kept while layer `layer` is in its backward (the count: the head; -1: the root)."""
        if self.run.accumulation > 1:
            return self.states.gradients
        count = len(self.order)
        ends = self.grad * self.share(self.last) if self.ends and layer < count else 0
        return ends + self.done[count - 1 - layer] if layer < count else 0

    def around(self, layer: int) -> list[Line]:
        """What FSDP holds around the backward of layer `layer`: gathered units, and gradients on their way."""
        unit, count = self.unit, len(self.order)
        lines = []
        if layer == count:
            return [
                Line(line="gathered head", bytes=unit * _numel(self.last)),
                Line(line="gathered layer", bytes=self.size[self.order[-1]]),
            ]
        lines.append(Line(line="gathered root", bytes=unit * _numel(self.root)))
        if not self.ends:
            lines.append(Line(line="head gradient", bytes=unit * self.head_trains))
        lines.append(Line(line="gathered layer", bytes=self.size[self.order[layer]]))
        ahead = self.size[self.order[layer - 1]] if layer else unit * _numel(self.first) * self.ends
        lines.append(Line(line="prefetched unit", bytes=ahead))
        behind = _trainable(self.last) * self.ends if layer + 1 == count else self.trains[self.order[layer + 1]]
        lines.append(Line(line="reduce-scatter input", bytes=self.reduce * behind))
        return lines

    def layers(self) -> Phase:
        """The worst layer and instant of the backward through the layers.

        Between two layers alike with alike neighbours every line changes evenly, so only the ends are tried.
        """
        run, tokens = self.run, self.tokens
        best: tuple[int, int, int] | None = None
        for layer in self.candidates():
            cost = self.costs[self.order[layer]]
            again = cost.boundary if checkpointed(run.checkpointing, layer) else 0
            fixed = self.gradients(layer) + sum(line.bytes for line in self.around(layer))
            fixed += tokens * (self.kept[layer] + again)
            for index, moment in enumerate(cost.moments):
                total = fixed + tokens * (moment.saved + moment.work) + self.unit * moment.numel
                if best is None or total > best[0]:
                    best = (total, layer, index)
        assert best is not None
        _, layer, index = best
        cost = self.costs[self.order[layer]]
        moment, again = cost.moments[index], checkpointed(run.checkpointing, layer)
        kept = self.kept[layer] + (cost.boundary if again else moment.saved)
        return self.phase(
            "layers_bwd",
            self.gradients(layer),
            *self.around(layer),
            Line(line="saved activations", bytes=tokens * kept),
            Line(line="recomputed layer", bytes=tokens * moment.saved if again else 0),
            Line(line="activation gradients", bytes=tokens * moment.work),
            Line(line="layer gradients", bytes=self.unit * moment.numel),
        )

    def candidates(self) -> tuple[int, ...]:
        """Layers of which one has the worst instant: the first and last of each kind with its neighbours."""
        keys = [None, *((b.name, checkpointed(self.run.checkpointing, n)) for n, b in enumerate(self.order)), None]
        ends: dict[object, list[int]] = {}
        for layer in range(len(self.order)):
            ends.setdefault(tuple(keys[layer : layer + 3]), []).append(layer)
        return tuple(sorted({layer for found in ends.values() for layer in (found[0], found[-1])}))

    def root_phase(self) -> Phase:
        """The embedding's backward, and the last reduction."""
        unit, first = self.unit, self.first
        trains = _trainable(first)
        gathered = Line(line="gathered root", bytes=unit * _numel(first))
        made = Line(line="root gradients", bytes=unit * trains)
        behind = Line(line="reduce-scatter input", bytes=self.reduce * self.trains[self.order[0]])
        incoming = Line(line="activation gradients", bytes=self.costs[self.order[0]].boundary * self.tokens)
        gradients = self.gradients(-1)
        embedding = self.phase("root_bwd", gradients, gathered, made, behind, incoming)
        last = Line(line="reduce-scatter input", bytes=self.reduce * trains)
        return max(embedding, self.phase("root_bwd", gradients, made, last), key=lambda phase: phase.bytes)


def _in_order(model: Model) -> tuple[Block, ...]:
    """The block of each layer."""
    return tuple(b for _, b in sorted(((n, b) for b in model.blocks for n in b.layers), key=lambda pair: pair[0]))


def _numel(tensors: Iterable[Tensor]) -> int:
    return sum(t.count * t.numel for t in tensors)


def _trainable(tensors: Iterable[Tensor]) -> int:
    return sum(t.count * t.numel for t in tensors if t.trainable)


def estimate(run: Run) -> Estimate:
    """What `run` costs on its largest rank, in exact bytes, with every assumption listed.

    >>> from calc.models import load
    >>> found = estimate(Run(model=load("llama-3.3-70b"), world_size=8, strategy="fsdp2", step="for-loop"))
    >>> found.states.total, found.peak.instant
    (141107412992, 'layers_bwd')
    """
    model = run.trained
    recipe, optimizer = get_recipe(run.recipe), get_optimizer(run.optimizer)
    strategy = get_strategy(run.strategy)
    states = kept(model, recipe, optimizer, strategy, run.world_size, run.base_dtype)
    reason = unsupported(model) or ("" if run.strategy == "fsdp2" else "not yet")
    phases: Mapping[str, Phase] | None = None
    instants: tuple[Phase, ...] = ()
    if not reason:
        walk = _Walk(run, model, states)
        instants = tuple(walk.instants())
        temporaries = step_temporaries(
            run.step, recipe.itemsize("weights"), model.num_trainable // run.world_size, 0
        )
        step = Line(line="step temporaries", bytes=temporaries)
        phases = MappingProxyType(
            {
                "forward+backward": max(instants, key=lambda phase: phase.bytes),
                "step": walk.phase("step", states.gradients, step),
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
        host_per_node_bytes=None,
        assumptions=_assumptions(run, model),
    )


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
