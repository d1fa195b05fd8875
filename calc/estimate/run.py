"""One training job, fully specified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from calc.models import Model, with_adapters
from calc.models.parts import part, stages
from calc.sharding import get_strategy
from calc.states import get_optimizer, get_recipe, refuse
from calc.units import InputError, ceil_div, named, records, whole

FSDP = ("fsdp1", "fsdp2", "hsdp")
_SETTINGS = tuple(records("settings"))
#: What a choice may be, by its field, each word with what it means.
CHOICES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {record["field"]: MappingProxyType(record["choices"]) for record in _SETTINGS if "choices" in record}
)
#: Whole numbers by field, with their least and largest value.
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {record["field"]: (record["least"], record["most"]) for record in _SETTINGS if "most" in record}
)
#: Settings that only one stack has: FSDP, DDP with torch's own ZeRO-1, or DeepSpeed.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {record["field"]: record["owner"] for record in _SETTINGS if "owner" in record}
)
#: What each degree of parallelism is taken to be.
DEGREES: Mapping[str, str] = MappingProxyType({r["field"]: r["told"] for r in _SETTINGS if "told" in r})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training job: model, parallelism, recipe and batch; checked when it is made.

    An empty `strategy` means `single` on one GPU and `zero3` on more; an empty `recipe` means
    `fsdp2-mixed` under FSDP and `zero` elsewhere; an empty `reduce_dtype` is fp32 for `fsdp2-mixed` and
    the gradients' own dtype elsewhere. With `lora_rank` > 0 the model is frozen in `base_dtype` and only
    the adapters on `lora_targets` train. `tp`, `pp`, `cp` and `ep` are the degrees of tensor, pipeline, context and
    expert parallelism; what they leave of `world_size` is data parallel, `ep` and `cp` among it. `shard_size` is the
    group that HSDP shards over (8 where 0). `CHOICES` lists the words that the other settings take.
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
    reshard_after_forward: bool = True
    no_sync: bool = False
    gradient_as_bucket_view: bool = False
    overlap_comm: bool = False
    reduce_bucket_size: int = 500_000_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    sub_group_size: int = 1_000_000_000
    lora_rank: int = 0
    lora_targets: str = "all-linear"
    base_dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    shard_size: int = 0

    def __post_init__(self) -> None:
        for field, (least, most) in SIZES.items():
            whole(field, getattr(self, field), least, most)
        if self.world_size % (self.tp * self.pp * self.cp):
            raise InputError(f"tp·pp·cp {self.tp * self.pp * self.cp:,} does not divide world_size {self.world_size:,}")
        part(self.model, tp=self.tp, pp=self.pp, ep=self.ep)  # refuses what these do not divide
        if not self.strategy:
            object.__setattr__(self, "strategy", "single" if self.replicas == 1 else "zero3")
        strategy = get_strategy(self.strategy)
        fsdp = self.strategy in FSDP
        if not self.recipe:
            object.__setattr__(self, "recipe", "fsdp2-mixed" if fsdp else "zero")
        recipe = get_recipe(self.recipe)
        refuse(self.strategy, recipe, get_optimizer(self.optimizer))
        if strategy.name == "single" and self.replicas != 1:
            raise InputError(f"strategy 'single' takes world_size {self.tp * self.pp:,}, not {self.world_size:,}")
        if self.strategy == "hsdp" and not self.shard_size:
            object.__setattr__(self, "shard_size", min(8, self.replicas))
        if self.strategy != "hsdp" and self.shard_size:
            raise InputError(f"shard_size is a setting of strategy 'hsdp', not of {self.strategy!r}")
        if self.replicas % self.ranks or self.ranks % self.ep:
            raise InputError(
                f"shard_size {self.shard_size:,} or ep {self.ep:,} does not divide the "
                f"{self.replicas:,} ranks that tp and pp leave"
            )
        own = "fp32" if recipe.itemsize("gradients") == 4 else "bf16"
        if not fsdp and self.reduce_dtype not in ("", own):
            raise InputError(f"reduce_dtype is a setting of FSDP; strategy {self.strategy!r} reduces in {own}")
        object.__setattr__(self, "reduce_dtype", self.reduce_dtype or own)
        for field, words in CHOICES.items():
            named(field, getattr(self, field), words)
        if self.base_dtype != "bf16" and not self.lora_rank:
            raise InputError(f"base_dtype {self.base_dtype!r} is for a frozen base: give lora_rank as well")
        stack = "FSDP" if fsdp else "DeepSpeed" if self.held == "deepspeed" else "DDP"
        for name, owner in SETTINGS.items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if isinstance(default, bool) and not isinstance(value, bool):
                raise InputError(f"{name} must be true or false, not {value!r}")
            if value != default and owner != stack:
                raise InputError(f"{name} is a setting of {owner}; strategy {self.strategy!r} has none")
        offloads = {"DDP": (), "FSDP": ("all",), "DeepSpeed": ("optimizer", "all", "nvme")}[stack]
        allowed = ("none", *(offloads if fsdp or strategy.stage == 3 else offloads[:1]))
        if self.offload not in allowed:
            raise InputError(
                f"offload {self.offload!r} does not exist under strategy {self.strategy!r} with recipe "
                f"{self.recipe!r}; allowed: {', '.join(allowed)}"
            )

    @property
    def replicas(self) -> int:
        """Ranks that hold the same slice of the model before anything is sharded: world_size / (tp · pp)."""
        return self.world_size // (self.tp * self.pp)

    @property
    def ranks(self) -> int:
        """Ranks over which the strategy shards: the replicas, context-parallel ones included, or one HSDP group."""
        return self.shard_size or self.replicas

    @property
    def local(self) -> Run:
        """The run as one shard group sees it: its ranks, and its share of each sequence."""
        if self.ranks == self.world_size and self.cp == 1:
            return self
        seq_len = ceil_div(self.seq_len, self.cp)
        return replace(self, world_size=self.ranks, seq_len=seq_len, tp=1, pp=1, cp=1)

    def parts(self) -> Iterator[tuple[int, Model]]:
        """Each kind of pipeline stage that one rank may hold: its number and its slice of the model."""
        for stage in stages(self.model, self.pp):
            yield stage, part(self.trained, tp=self.tp, pp=self.pp, ep=self.ep, stage=stage)

    @property
    def tokens(self) -> int:
        """Tokens that one GPU processes at a time: seq_len × micro_batch."""
        return self.seq_len * self.micro_batch

    @property
    def offloaded(self) -> tuple[str, ...]:
        """The ledger lines that live in host memory, or on NVMe."""
        if self.offload == "none":
            return ()
        if self.strategy in FSDP:
            return ("weights", "gradients", "optimizer")
        gradients = ("gradients",) if get_strategy(self.strategy).stage > 1 else ()
        weights = ("weights",) if self.offload in ("all", "nvme") else ()
        return (*weights, "master", *gradients, "optimizer")

    @property
    def held(self) -> str:
        """The recipe that the stack holds through its step: `deepspeed` where `zero` is only its accounting."""
        return "deepspeed" if self.recipe == "zero" and get_strategy(self.strategy).stage else self.recipe

    @property
    def trained(self) -> Model:
        """The model with its adapters, if any: what the optimizer sees."""
        if not self.lora_rank:
            return self.model
        return with_adapters(self.model, rank=self.lora_rank, targets=tuple(self.lora_targets.split(",")))
