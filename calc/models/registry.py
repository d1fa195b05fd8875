"""Where a model comes from: the known ones, a `config.json`, or a bare number of parameters."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from calc.models.architectures import from_config
from calc.models.tensors import Model, Tensor
from calc.units import InputError, records

MAX_PARAMS = 10**15
MAX_FILE_BYTES = 10**6
_COUNT = re.compile(
    r"([+-]?[0-9][0-9_,]{0,40}(?:\.[0-9]{1,40})?)(?:e\+?([0-9]{1,3}))?\s*([kmbt]?)", re.IGNORECASE
)
_POWERS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}


@cache
def known() -> tuple[Mapping[str, Any], ...]:
    """The records of `calc/data/models.json`: id, short name, config, source, Hub total."""
    return tuple(MappingProxyType(record) for record in records("models"))


@cache
def _names() -> Mapping[str, Mapping[str, Any]]:
    """Every name a known model answers to: id and short name, with and without `-instruct`."""
    names: dict[str, Mapping[str, Any]] = {}
    for record in known():
        full = record["id"].lower()
        for name in (full, full.split("/")[1], record["name"]):
            names[name] = record
    return names


def load(model: str) -> Model:
    """The model that `model` names: a known id or short name, a path, or a bare count.

    Names are read in any case, with or without `-Instruct`.
    A path is that of a `config.json` or of its folder.
    Raises `InputError` for an unknown name, an unreadable file, an impossible config or count.

    >>> load("llama-3.1-8b").num_params
    8030261248
    >>> load("70B").num_params
    70000000000
    """
    wanted = model.strip()
    record = _names().get(wanted.lower()) or _names().get(wanted.lower().replace("-instruct", ""))
    if record:
        return _known_model(record["id"])
    if count := _COUNT.fullmatch(wanted):
        return _bare_count(wanted, count)
    if path := _path(wanted):
        return from_config(_read(path), wanted)
    near = difflib.get_close_matches(wanted.lower(), _names(), n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"unknown model {wanted[:80]!r};{hint} give a name that `calc models` lists,"
        " the path of a config.json or of its folder, or a count of parameters such as 70B"
    )


def _path(wanted: str) -> Path | None:
    """The path that `wanted` is: it is written as one, or something is there."""
    written = wanted.endswith(".json") or wanted.startswith((".", "/", "~"))
    try:
        path = Path(wanted).expanduser()
        return path if wanted and (written or path.exists()) else None
    except (OSError, RuntimeError, ValueError):  # a name too long, no such user, a NUL
        return None


@cache
def _known_model(model_id: str) -> Model:
    return from_config(_names()[model_id.lower()]["config"], model_id)


def _bare_count(text: str, match: re.Match[str]) -> Model:
    digits, exponent, unit = match.groups()
    power = int(exponent or 0) + _POWERS[unit.lower()]
    numel = Fraction(re.sub("[_,]", "", digits)) * 10**power
    if numel.denominator != 1 or not 1 <= numel <= MAX_PARAMS:
        raise InputError(
            f"a count of parameters is a whole number from 1 to 10^15, not {text[:40]!r}"
        )
    why = "a bare count has no architecture, so activations, padding and the peak are not computed"
    told = f"{int(numel):,} parameters are taken as one tensor: {why}"
    one = Tensor(name="parameters", shape=(int(numel),), kind="other")
    return Model(
        name=text, model_type="", config=MappingProxyType({}), first=(one,), assumptions=(told,)
    )


def _read(path: Path) -> Mapping[str, Any]:
    """The JSON object in a `config.json`, or an `InputError` that says why there is none."""
    try:
        file = path / "config.json" if path.is_dir() else path
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputError(f"{file} is larger than 1 MB; that is no config.json")
        config = json.loads(data.decode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: JSON, UTF-8, a number without end
        raise InputError(f"{file} is not valid JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise InputError(f"{file} does not hold a JSON object, as a config.json does")
    return config
