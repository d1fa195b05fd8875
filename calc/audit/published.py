"""A published number as data: what it says, for which setup, and whether a computed one agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import Any

from calc.precision import RECIPES
from calc.units import UNITS, InputError, named, records

KINDS = ("measured", "estimated", "claimed")
CONFIDENCES = (
    "read at source",
    "read in an excerpt",
    "secondary",
    "from memory, arithmetic checked",
)
#: A measurement agrees with a ledger from 1 % under it (what a meter misses) to 8 % over it (what
#: the allocator adds: the largest share that our own band has); a measured change within 8 %.
UNDER, OVER = Fraction(1, 100), Fraction(8, 100)
#: The recipes that a stated precision allows; an unstated one allows them all.
PRECISIONS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "": tuple(RECIPES),
        "mixed": ("zero", "deepspeed", "fsdp2-mixed", "autocast", "megatron"),
        "bf16": ("pure-bf16", "bf16-fp32-states"),
        "fp32": ("fp32",),
    }
)
#: What a computed amount is multiplied by to stand in a claim's real unit.
SCALES: Mapping[str, Fraction] = MappingProxyType(
    {unit: Fraction(1, size) for unit, size in UNITS.items()}
    | {"B/param": Fraction(1), "bit/param": Fraction(8), "×": Fraction(1), "%": Fraction(100)}
    | {"billion": Fraction(1, 10**9)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where claims were published, when, and how we read it."""

    id: str
    title: str
    url: str | None
    date: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One published number: what it says in our words, for which setup, in which real unit.

    `of` names the ledger lines that it adds up: `states`, `total`, lines joined by +, or the `peak`
    of a run.
    `minus` and `per` are changes of the setup whose amount is taken off, or divided by; `change`
    says that a line was itself measured as a difference, `about` that trailing zeros do not count.
    `limit` says that the run fits in that much, `budget` is what the largest model fills, in bytes.
    `siblings` are claims of the same source that one ledger must give as well; `contradicts` is the
    setup that the source gives elsewhere, or that its other figures confirm, as a change of this
    one: from both the number must follow. `now` is the ledger that the tool uses today, `missing`
    the assumption without which the claim cannot be decided, and `repair` a change of the setup
    that makes it right.
    Raises `InputError` where a name or a unit is not known.
    """

    id: str
    source: Source
    where: str
    says: str
    printed: str
    kind: str
    setup: Mapping[str, Any]
    unit: str = ""
    of: str = "states"
    minus: Mapping[str, Any] | None = None
    per: Mapping[str, Any] | None = None
    change: bool = False
    about: bool = False
    limit: bool = False
    budget: int = 0
    siblings: Sequence[str] = ()
    contradicts: Mapping[str, Any] | None = None
    now: str = ""
    missing: str = ""
    repair: Mapping[str, Any] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", self.unit or self.printed.split()[1])
        precision, confidence = self.setup.get("precision", ""), self.source.confidence
        known = {
            "kind": KINDS,
            "unit": tuple(SCALES),
            "precision": tuple(PRECISIONS),
            "confidence": CONFIDENCES,
        }
        for value, field in zip((self.kind, self.unit, precision, confidence), known, strict=True):
            named(f"{field} of claim {self.id!r}", value, dict.fromkeys(known[field]))

    @property
    def value(self) -> Fraction:
        """The printed number, in its real unit."""
        return Fraction(self.printed.split()[0].replace(",", ""))

    @property
    def digit(self) -> Fraction:
        """A unit of the last printed digit that counts: 0.1 for 52.5, 10 for an estimate of 420."""
        whole, _, decimals = self.printed.split()[0].replace(",", "").partition(".")
        zeros = len(whole) - len(whole.rstrip("0")) if self.about or self.kind != "measured" else 0
        return Fraction(1, 10 ** len(decimals)) if decimals else Fraction(10**zeros)

    def agrees(self, way: Way) -> str:
        """`exact`, `rounds to` (a measurement: inside its band), or nothing."""
        half, computed = self.digit / 2, way.value
        if computed == self.value:
            return "exact"
        if self.kind == "measured":
            under = OVER if self.minus or self.change else UNDER
            high = way.high or computed * (1 + OVER)
            inside = computed * (1 - under) - half <= self.value <= high + half
        else:
            most = self.value + (self.digit if self.digit <= 1 else half)
            inside = self.value - half <= computed < most
        return "rounds to" if inside else ""


@cache
def claims() -> Mapping[str, Claim]:
    """Every claim by id, in the order of `calc/data/claims.json`, each under its source.

    >>> claims()["text-c-zero2"].value
    Fraction(297, 1)
    """
    found: dict[str, Claim] = {}
    for record in records("claims"):
        source = Source(**{field.name: record[field.name] for field in fields(Source)})
        for entry in record["claims"]:
            setup = MappingProxyType({**record.get("setup", {}), **entry.get("setup", {})})
            if entry["id"] in found:
                raise InputError(f"two claims are called {entry['id']!r}")
            found[entry["id"]] = Claim(**{**entry, "source": source, "setup": setup})
    return MappingProxyType(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One named ledger applied to a claim, for one count and strategy, and what it gives."""

    ledger: str
    optimizer: str
    model: str
    strategy: str
    value: Fraction = Fraction(0)
    high: Fraction | None = None

    @property
    def name(self) -> str:
        """Ledger and optimizer, as `calc claims` lists them."""
        return f"{self.ledger} + {self.optimizer}" if self.optimizer else self.ledger
