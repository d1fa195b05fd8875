"""One job fully specified (`Run`) and what it costs per GPU (`Estimate`), line by line.

Two levels of answer that are never blended: the one-line formula that people can do on paper,
with nominal bytes per parameter, and the ledger of exact bytes on the largest rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from calc.models import Model, with_adapters
from calc.sharding import Kept, get_strategy, kept
from calc.states import get_optimizer, get_recipe, refuse
from calc.units import DTYPE_BYTES, InputError, ceil_div, unknown, whole

#: The per-GPU overhead of the one-line formula: 1.5 GB (source: text-b).
OVERHEAD_BYTES = 1_500_000_000

BASE_DTYPES = ("bf16", "fp32", "nf4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training job: model, parallelism, recipe and batch; checked when it is made.

    An empty `strategy` means `single` on one GPU and `zero3` on more; an empty `recipe` means
    `fsdp2-mixed` under FSDP and `zero` elsewhere. With `lora_rank` > 0 the model is frozen in
    `base_dtype` and only the adapters on `lora_targets` train.
    Ranges: `world_size` 1 to 1,000,000, `seq_len` 1 to 100,000,000, `micro_batch` 1 to 1,000,000.
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
    lora_rank: int = 0
    lora_targets: str = "all-linear"
    base_dtype: str = "bf16"

    def __post_init__(self) -> None:
        whole("world_size", self.world_size, 1, 1_000_000)
        whole("seq_len", self.seq_len, 1, 100_000_000)
        whole("micro_batch", self.micro_batch, 1, 1_000_000)
        whole("lora_rank", self.lora_rank, 0, 1_000_000)
        if not self.strategy:
            object.__setattr__(self, "strategy", "single" if self.world_size == 1 else "zero3")
        strategy = get_strategy(self.strategy)
        if not self.recipe:
            fsdp = self.strategy in ("fsdp1", "fsdp2", "hsdp")
            object.__setattr__(self, "recipe", "fsdp2-mixed" if fsdp else "zero")
        recipe = get_recipe(self.recipe)
        refuse(self.strategy, recipe, get_optimizer(self.optimizer))
        if strategy.name == "single" and self.world_size != 1:
            raise InputError(f"strategy 'single' takes world_size 1, not {self.world_size:,}")
        if self.base_dtype not in BASE_DTYPES:
            raise unknown("base_dtype", self.base_dtype, BASE_DTYPES)
        if self.base_dtype != "bf16" and not self.lora_rank:
            raise InputError(
                f"base_dtype {self.base_dtype!r} is for a frozen base: give lora_rank as well"
            )

    @property
    def tokens(self) -> int:
        """Tokens that one GPU processes at a time: seq_len × micro_batch."""
        return self.seq_len * self.micro_batch

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
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one GPU (the largest rank) needs for a run, in bytes, and what was assumed."""

    run: Run
    model: Model
    states: Kept
    one_line: OneLine
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


def estimate(run: Run) -> Estimate:
    """What `run` costs on its largest rank, in exact bytes, with every assumption listed.

    >>> from calc.models import load
    >>> estimate(Run(model=load("llama-3.1-8b"))).states.optimizer
    64242089984
    """
    model = run.trained
    recipe, optimizer = get_recipe(run.recipe), get_optimizer(run.optimizer)
    strategy = get_strategy(run.strategy)
    states = kept(model, recipe, optimizer, strategy, run.world_size, run.base_dtype)
    return Estimate(
        run=run,
        model=model,
        states=states,
        one_line=one_line(run, model),
        assumptions=_assumptions(run, model),
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
        lines.append(
            f"LoRA rank {run.lora_rank} on {run.lora_targets}; the base is frozen in {run.base_dtype}"
        )
    return tuple(lines)
