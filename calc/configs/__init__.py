"""`Job` ⇄ the config files of DeepSpeed, Accelerate, PyTorch, Transformers and trainers on them.

`write` gives the file for a run, or says that the framework has no words for it and what would do.
`read` gives what a DeepSpeed JSON or an Accelerate YAML says about a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calc.configs import accelerate, deepspeed, writing, yaml
from calc.configs.formats import FORMATS, File, Format, fitted, keys, natural, version
from calc.job import Job
from calc.models import Model
from calc.settings import DEFAULTS
from calc.units import InputError, named

__all__ = ["FORMATS", "File", "Format", "Imported", "keys", "natural", "read", "version", "write"]

MAX_FILE_BYTES = 1_000_000


def write(job: Job, name: str, *, auto: bool = False) -> File:
    """The file of format `name` for `job`; `auto` leaves to Transformers what it fills in.

    Raises `InputError` for an unknown format, and where the format cannot say the run, with what
    would do.

    >>> from calc.models import load
    >>> job = Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="zero2")
    >>> json.loads(write(job, "deepspeed").text)["zero_optimization"]["stage"]
    2
    """
    form = named("format", name, FORMATS)
    if auto:
        reduce, prefetch, _ = writing.buckets(job.model).values()
        job = job.but(reduce_bucket_size=reduce, stage3_prefetch_bucket_size=prefetch)
    job, notes = fitted(job, form)
    return File(format=form, job=job, body=writing.body(job, form, auto), notes=notes, auto=auto)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a config file says: `says` holds, `leaves` is the library's choice, `notes` list it."""

    says: Mapping[str, Any]
    leaves: Mapping[str, Any]
    notes: tuple[str, ...]

    def over(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `Job` in `given` with the file's; `InputError` where the two differ."""
        asked = {key for key, value in given.items() if value != DEFAULTS.get(key)}
        for key in asked & self.says.keys():
            if given[key] != self.says[key]:
                option = f"--{key.replace('_', '-')} {given[key]}"
                raise InputError(
                    f"{option} contradicts the config file, which says {key} {self.says[key]}"
                )
        return {
            **given,
            **{key: value for key, value in self.leaves.items() if key not in asked},
            **self.says,
        }


def read(path: str, world_size: int, model: Model) -> Imported:
    """The fields of `Job` in a DeepSpeed JSON or an Accelerate YAML, on `world_size` GPUs.

    Raises `InputError`, one line, for an unreadable file, one over 1 MB, one of another tool, an
    unknown or contradictory key.
    """

    def other(config: Any) -> tuple[dict[str, Any], list[str]]:
        found = config if isinstance(config, Mapping) else _json(Path(path).parent / config)
        return deepspeed.read(found, world_size, model)

    file = Path(path)
    try:
        if file.suffix in (".yaml", ".yml"):
            says, leaves, notes = accelerate.read(_yaml(file), world_size, other)
        else:
            (says, notes), leaves = other(_json(file)), {}
    except InputError as error:
        raise InputError(f"{file.name}: {error}") from None
    told = ", ".join(f"{key} {value}" for key, value in says.items())
    return Imported(
        says=says, leaves=leaves, notes=tuple(f"{file.name}: {note}" for note in (told, *notes))
    )


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputError("larger than 1 MB, the limit for a config")
        return data.decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text") from None


def _yaml(file: Path) -> Mapping[str, Any]:
    text = _text(file)
    try:
        return yaml.load(text)
    except InputError as error:
        seen = {line.partition(":")[0].rstrip() for line in text.splitlines()} & keys(
            "accelerate"
        ).keys()
        raise InputError(
            f"{'' if seen else 'not a DeepSpeed or Accelerate file: '}{error}"
        ) from None


def _json(file: Path) -> Mapping[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(twice := dict(items)) < len(items):
            names = [name for name, _ in items]
            raise InputError(
                f"key {next(name for name in twice if names.count(name) > 1)!r} is given twice"
            )
        return twice

    try:
        found = json.loads(_text(file), object_pairs_hook=pairs)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise InputError(f"holds a JSON {type(found).__name__}, not an object of keys")
    return found
