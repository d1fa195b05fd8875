"""The JSON values of the commands that list what is known: registries and published claims."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from calc import gpus, models
from calc.units import UNITS

if TYPE_CHECKING:
    from calc.audit.claims import Judgement


def claims(_: argparse.Namespace) -> list[object]:
    # What one command alone needs is imported by it, so that the others start sooner.
    from calc.audit.claims import judgements

    return [_claim(found) for found in judgements()]


def _claim(found: Judgement) -> dict[str, object]:
    """A published number in its real unit, the verdict on it, and what the ledgers give."""
    claim, size = found.claim, UNITS.get(found.claim.unit)
    computed, repaired = (way.value if way else None for way in (found.way, found.repaired))
    return {
        "id": claim.id,
        "says": claim.says,
        "printed": claim.printed,
        "value": int(claim.value) if claim.value.denominator == 1 else float(claim.value),
        "unit": claim.unit,
        "kind": claim.kind,
        "verdict": found.verdict,
        "recipes": list(dict.fromkeys(way.name for way in found.ways)),
        "compared_with": found.way.name if found.way else None,
        "computed": None if computed is None else float(computed),
        "computed_bytes": round(computed * size) if computed is not None and size else None,
        "right_for": dict(claim.repair) if claim.repair else None,
        "repaired_bytes": round(repaired * size) if repaired is not None and size else None,
        "missing": claim.missing or None,
        "source": asdict(claim.source) | {"where": claim.where},
    }


def known_models(_: argparse.Namespace) -> list[object]:
    return [dict(record) for record in models.known()]


def _plain(item: Any) -> dict[str, Any]:
    """A registry entry as JSON: mappings and the copies of a recipe as objects, tuples as lists."""

    def inner(value: Any) -> dict[str, object]:
        return dict(value) if isinstance(value, Mapping) else asdict(value)

    entry = {field.name: getattr(item, field.name) for field in fields(item)}
    return dict(json.loads(json.dumps(entry, default=inner)))


def known_gpus(_: argparse.Namespace) -> list[object]:
    return [
        {
            "slug": slug,
            **_plain(gpu),
            "label_bytes": gpu.label_bytes,
            "driver_bytes": gpu.driver_bytes,
        }
        for slug, gpu in gpus.known().items()
    ]


def registry(registry: Mapping[str, object]) -> Callable[[argparse.Namespace], list[object]]:
    return lambda _: [_plain(item) for item in registry.values()]
