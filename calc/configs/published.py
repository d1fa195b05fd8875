"""The runs whose files the site publishes."""

from __future__ import annotations

from calc import configs
from calc.configs.formats import File
from calc.estimate import Run
from calc.models import load
from calc.units import records


def runs() -> dict[str, tuple[str, Run, tuple[str, ...]]]:
    """Each published run by name: its title, the run, and the formats that it is written in.

    >>> runs()["8b-zero2"][1].strategy
    'zero2'
    """
    found = {}
    for record in records("config-files"):
        run = Run(**{**record["run"], "model": load(record["run"]["model"])})
        found[record["name"]] = (record["title"], run, tuple(record["formats"]))
    return found


def files() -> dict[str, File]:
    """Every published file by its path under `/configs/`."""
    found = {}
    for name, (_, run, formats) in runs().items():
        for form in formats:
            file = configs.write(run, form.removesuffix(" auto"), auto=form.endswith("auto"))
            found[f"{name}/{file.name}"] = file
    return found
