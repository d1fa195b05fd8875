"""What each framework's file can say, and a finished file with its run and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any

from calc.estimate import estimate
from calc.job import Job
from calc.precision import RECIPES, get_recipe
from calc.stacks import recipes_of
from calc.units import InputError, named, records, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of file: who reads it, and the runs it has words for.

    `instead` is the nearest strategy where it has none, `optimizers` its names for ours (None: not
    in the file; an empty name: made in the script), `always` the settings that its library fixes
    and `choices` those of which it has only some, both by strategy, recipe or `accumulating`, or
    under the empty name for all.
    """

    format: str
    title: str
    library: str
    file: str
    strategies: Sequence[str]
    recipes: Sequence[str]
    lora_recipes: Sequence[str]
    instead: Mapping[str, str]
    optimizers: Mapping[str, str] | None
    always: Mapping[str, Mapping[str, str | bool]]
    choices: Mapping[str, Mapping[str, list[str]]]
    change: str

    def recipes_for(self, job: Job) -> tuple[str, ...]:
        """The recipes that this file can say for the run's strategy, with or without adapters."""
        # `zero` and `deepspeed` are what DeepSpeed holds; on one GPU or under DDP no library does.
        zero = "deepspeed" in recipes_of(job.strategy)
        if job.strategy not in self.strategies:
            return ()
        names = self.lora_recipes if job.lora_rank else self.recipes
        held = (name for name in names if job.strategy in get_recipe(name).strategies)
        return tuple(name for name in held if zero == (name in ("zero", "deepspeed")))


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A config file: its text without the notes, and the run that it means."""

    format: Format
    job: Job
    body: str
    notes: tuple[str, ...] = ()
    auto: bool = False

    @property
    def name(self) -> str:
        """What the file is called where others look for it."""
        return self.format.file.replace(".json", "_auto.json") if self.auto else self.format.file

    @property
    def language(self) -> str:
        """The language of the file by its name: json, yaml or python."""
        return self.format.file.rpartition(".")[2].replace("py", "python")

    @property
    def head(self) -> tuple[str, ...]:
        """The run, the version that accepted the file, what to change, what the library decides."""
        job, form = self.job, self.format
        lora = f"LoRA of rank {job.lora_rank} on {job.lora_targets}"
        cards = "GPUs" if job.world_size > 1 else "GPU"
        return (
            f"{job.model.name} on {job.world_size:,} {cards}:",
            f"strategy {job.strategy}, recipe {job.recipe}, optimizer {job.optimizer}.",
            *([f"{lora}; the base is frozen in {job.base_dtype}."] if job.lora_rank else []),
            f"Accepted by {form.library} {version(form.library)}.",
            f"{form.change.replace('`', '')}.",
            *self.notes,
        )

    @property
    def foot(self) -> tuple[str, ...]:
        """What the run costs per GPU, computed."""
        job, found = self.job, estimate(self.job)
        batch = f"{job.micro_batch:,} × {job.seq_len:,} tokens"
        parts = [(field.name, getattr(found.states, field.name)) for field in fields(found.states)]
        told = ", ".join(f"{line} {text(amount, 'GB', 2)}" for line, amount in parts if amount)
        kept = f"Keeps {found.states.total:,} bytes per GPU, {text(found.states.total, 'GB', 2)}:"
        lines = (kept, f"{told or 'all is offloaded'}.")
        if not found.peak:
            return lines
        peak = f"{text(found.peak.bytes, 'GB', 2)} in {found.peak.phase}"
        return (*lines, f"Peaks at {peak}, {batch} at a time.")

    @property
    def text(self) -> str:
        """The whole file; JSON has no comments, so there head and foot stay outside."""
        if self.language == "json":
            return self.body
        head, foot = ("".join(f"# {line}\n" for line in lines) for lines in (self.head, self.foot))
        # As formatters want it after a function.
        gap = "\n\n" if self.language == "python" else "\n"
        return f"{head}\n{self.body}{gap}{foot}"


#: Every format by name, most asked first.
FORMATS: Mapping[str, Format] = MappingProxyType(
    {record["format"]: Format(**record) for record in records("configs")}
)


@cache
def keys(library: str, section: str = "") -> Mapping[str, object]:
    """The keys that a section of a library's file may have, with the defaults of plain values."""
    known = {(record["library"], record["section"]): record for record in records("config-keys")}
    record = known[library, section]
    return MappingProxyType({key: record["defaults"].get(key) for key in record["keys"]})


def known(title: str, found: Any, section: str = "") -> Mapping[str, Any]:
    """`found`, a section of a DeepSpeed or Accelerate file, once the library knows its keys."""
    if not isinstance(found, Mapping):
        words = {"DeepSpeed": "JSON object", "Accelerate": "mapping"}
        raise InputError(f"{section} must be a {words[title]}, not {type(found).__name__}")
    field = f"{title} key in {section}" if section else f"{title} key"
    for key in found:
        named(field, key, keys(title.lower(), section))
    return found


@cache
def version(library: str) -> str:
    """The version of a library whose keys are recorded.

    >>> version("accelerate")
    '1.15.0'
    """
    return next(
        str(record["version"]) for record in records("config-keys") if record["library"] == library
    )


def natural(job: Job, form: Format) -> Job:
    """`job`, whose recipe nobody asked for, with the file's first where it cannot say it."""
    held = form.recipes_for(job)
    return job if job.recipe in held or not held else job.but(recipe=held[0], reduce_dtype="")


def fitted(job: Job, form: Format) -> tuple[Job, tuple[str, ...]]:
    """The run as this file means it, and a note for each setting that its library decides.

    Raises `InputError`, which names what would do, where the file has no word for the run.
    """
    if job.recipe not in form.recipes_for(job):
        others = [name for name, other in FORMATS.items() if job.recipe in other.recipes_for(job)]
        written = f"; written as it is by: --format {', '.join(others)}" if others else ""
        raise InputError(f"{form.title} has no words for {_missing(job, form)}{written}")
    if form.optimizers is not None:
        named(f"optimizer of {form.title}", job.optimizer, form.optimizers)
    for axis in ("tp", "pp", "cp", "ep"):
        if getattr(job, axis) > 1:
            raise InputError(
                f"{form.title} files are written for {axis} 1 here, not {getattr(job, axis)}"
            )
    settings, scopes = job.settings, ["", job.strategy, job.recipe]
    if job.accumulation > 1:
        scopes.append("accumulating")
    for field, allowed in (
        pair for scope in scopes for pair in form.choices.get(scope, {}).items()
    ):
        if settings[field] not in allowed:
            told = f"{field} {' or '.join(allowed)}"
            raise InputError(f"{form.title} files have {told} here, not {settings[field]}")
    fixed = dict(pair for scope in scopes for pair in form.always.get(scope, {}).items())
    changed = {
        field: value
        for field, value in fixed.items()
        if settings[field] != value and job.has(field)
    }
    told = f"{form.title} always takes"
    notes = (f"{told} {field} {value}; it is counted so." for field, value in changed.items())
    return job.but(**changed), tuple(notes)


def _missing(job: Job, form: Format) -> str:
    """What the file has no words for, and its equivalent there."""
    if job.strategy not in form.strategies:
        near = form.instead[job.strategy]
        recipe = next(name for name in RECIPES if near in RECIPES[name].strategies)
        equivalent = f"--strategy {near} --recipe {recipe}"
        return f"strategy {job.strategy!r}; its equivalent there: {equivalent}"
    if not (form.lora_recipes if job.lora_rank else form.recipes):
        return "adapters" if job.lora_rank else "a run without adapters; those take --lora-rank"
    held = ", ".join(form.recipes_for(job))
    return f"recipe {job.recipe!r} under strategy {job.strategy!r}; there it has: {held}"
