"""One training job, fully specified: a model, the stack that trains it, and what it is trained
with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from calc.models import Model, with_adapters
from calc.models.parts import part, stages
from calc.optimizers import get_optimizer
from calc.precision import Recipe, get_recipe
from calc.settings import CHOICES, DEFAULTS, SETTINGS, SIZES
from calc.stacks import STACKS, Stack, choose, get_strategy, recipes_of, refuse, settings_of
from calc.units import InputError, ceil_div, named, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job; `of` makes one from the command line's words, and checks it.

    `stack` has its ranks and its own settings. With `lora_rank` > 0 the model is frozen in
    `base_dtype` and only the adapters on `lora_targets` train. `tp`, `pp`, `cp` and `ep` are the
    degrees of tensor, pipeline, context and expert parallelism; `ep` and `cp` are among the ranks
    of the stack.
    """

    model: Model
    stack: Stack
    recipe: str
    optimizer: str = "adamw"
    seq_len: int = 2048
    micro_batch: int = 1
    accumulation: int = 1
    checkpointing: str = "full"
    attention: str = "sdpa"
    loss: str = "full"
    step: str = "fused"
    load: str = "cpu"
    save: str = "sharded"
    lora_rank: int = 0
    lora_targets: str = "all-linear"
    base_dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    @classmethod
    def of(cls, *, model: Model, **given: Any) -> Job:
        """The job that the command line's words name, checked.

        An empty `strategy` means `single` on one GPU and `zero3` on more; an empty `recipe` means
        `fsdp2-mixed` under FSDP and `zero` elsewhere; an empty `reduce_dtype` is fp32 for
        `fsdp2-mixed` and the gradients' own dtype elsewhere. What `tp` and `pp` leave of
        `world_size` is data parallel, `ep` and `cp` among it. `shard_size` is the group that HSDP
        shards over (8 where 0). `CHOICES` lists the words that settings take, `SIZES` the ranges.
        Raises `InputError`, one line, for anything else and for a pair that does not run.

        >>> from calc.models import load
        >>> found = Job.of(model=load("llama-3.3-70b"), world_size=8)
        >>> found.strategy, found.recipe, found.optimizer
        ('zero3', 'zero', 'adamw')
        """
        words = {**DEFAULTS, **given}
        for name in given:
            named("setting", name, DEFAULTS)
        for name, (least, most) in SIZES.items():
            whole(name, words[name], least, most)
        replicas = _replicas(model, words)
        strategy = words["strategy"] or ("single" if replicas == 1 else "zero3")
        get_strategy(strategy)
        recipe = words["recipe"] or recipes_of(strategy)[0]
        refuse(strategy, get_recipe(recipe), get_optimizer(words["optimizer"]))
        chosen = choose(strategy, recipe)
        if words["shard_size"] and not any(field.name == "groups" for field in fields(chosen)):
            raise InputError(f"shard_size is a setting of strategy 'hsdp', not of {strategy!r}")
        if chosen.alone and replicas != 1:
            takes = words["tp"] * words["pp"]
            raise InputError(
                f"strategy {strategy!r} takes world_size {takes:,}, not {words['world_size']:,}"
            )
        size = chosen.spread(replicas, words["shard_size"])
        if size["ranks"] % words["ep"]:
            raise InputError(
                f"ep {words['ep']:,} does not divide the {size['ranks']:,} ranks that share a model"
            )
        for name, allowed in CHOICES.items():
            if words[name] or name != "reduce_dtype":
                named(name, words[name], allowed)
        if words["base_dtype"] != "bf16" and not words["lora_rank"]:
            raise InputError(
                f"base_dtype {words['base_dtype']!r} is for a frozen base: give lora_rank as well"
            )
        own = {field.name for field in fields(Job)} - {"model", "stack", "recipe"}
        stack = chosen(**{**size, **_settings(chosen, recipe, words)})
        return cls(model=model, stack=stack, recipe=recipe, **{name: words[name] for name in own})

    @property
    def strategy(self) -> str:
        """The command line's word for the stack."""
        return self.stack.strategy

    @property
    def world_size(self) -> int:
        """GPUs of the job."""
        return self.stack.world_size * self.tp * self.pp

    @property
    def held(self) -> Recipe:
        """The recipe that the stack holds through its step."""
        return self.stack.held(get_recipe(self.recipe))

    @property
    def tokens(self) -> int:
        """Tokens that one GPU processes at a time, of its part of each sequence: ⌈seq_len / cp⌉ ×
        micro_batch.
        """
        return ceil_div(self.seq_len, self.cp) * self.micro_batch

    @property
    def trained(self) -> Model:
        """The model with its adapters, if any: what the optimizer sees."""
        if not self.lora_rank:
            return self.model
        return with_adapters(
            self.model, rank=self.lora_rank, targets=tuple(self.lora_targets.split(","))
        )

    def parts(self) -> Iterator[tuple[int, Model]]:
        """Each kind of pipeline stage that one rank may hold: its number and its slice of the
        model.
        """
        for stage in stages(self.model, self.pp):
            yield stage, part(self.trained, tp=self.tp, pp=self.pp, ep=self.ep, stage=stage)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting in the command line's words; those that the stack lacks by default."""
        found = {}
        for name, default in DEFAULTS.items():
            owner = self if hasattr(self, name) else self.stack
            found[name] = getattr(owner, name, default)
        found["reduce_dtype"] = found["reduce_dtype"] or gradient_dtype(self.recipe)
        return found

    def has(self, name: str) -> bool:
        """Whether the job's stack has the setting called `name`.

        >>> from calc.models import load
        >>> Job.of(model=load("8B"), world_size=8).has("no_sync")
        False
        """
        return name in settings_of(type(self.stack))

    def but(self, **changes: Any) -> Job:
        """The same job with some settings changed, in the command line's words, and checked."""
        return Job.of(**{"model": self.model, **self.settings, **changes})


def _replicas(model: Model, words: Mapping[str, Any]) -> int:
    """Ranks that hold the same slice of the model before anything is sharded: world_size / (tp ·
    pp).
    """
    divided = words["tp"] * words["pp"] * words["cp"]
    if words["world_size"] % divided:
        raise InputError(f"tp·pp·cp {divided:,} does not divide world_size {words['world_size']:,}")
    part(model, tp=words["tp"], pp=words["pp"], ep=words["ep"])  # refuses what these do not divide
    replicas: int = words["world_size"] // (words["tp"] * words["pp"])
    return replicas


def gradient_dtype(recipe: str) -> str:
    """The dtype of gradients, in which they are reduced where the stack has no other for it."""
    return "fp32" if get_recipe(recipe).itemsize("gradients") == 4 else "bf16"


def _settings(chosen: type[Stack], recipe: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """The stack's own settings; `InputError` for one that it does not have."""
    has = settings_of(chosen)
    own = gradient_dtype(recipe)
    if "reduce_dtype" not in has and words["reduce_dtype"] not in ("", own):
        raise InputError(
            f"reduce_dtype is a setting of FSDP; strategy {chosen.strategy!r} reduces in {own}"
        )
    for name in SETTINGS:
        value, default = words[name], DEFAULTS[name]
        if isinstance(default, bool) and not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, not {value!r}")
        if value != default and name not in has:
            owners = dict.fromkeys(stack.strategy for stack in STACKS if name in settings_of(stack))
            told = f"strategies that have it: {', '.join(owners)}"
            raise InputError(
                f"{name} is a setting of {SETTINGS[name]}; "
                f"strategy {chosen.strategy!r} has none; {told}"
            )
    if words["offload"] not in chosen.offloads:
        raise InputError(
            f"offload {words['offload']!r} does not exist under strategy {chosen.strategy!r} "
            f"with recipe {recipe!r}; allowed: {', '.join(chosen.offloads)}"
        )
    found = {name: words[name] for name in has} | {"offload": words["offload"]}
    return found | ({"reduce_dtype": words["reduce_dtype"] or own} if "reduce_dtype" in has else {})
