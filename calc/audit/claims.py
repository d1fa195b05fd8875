"""Published claims as data → verdicts: which named ledger gives a number, and by how much it is
off.

Nothing here is fitted: a claim is compared with the ledgers that its own stated setup allows, and
an estimate then with every other recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import Any

from calc.audit.ledgers import ledgers, quantities
from calc.estimate import estimate
from calc.formula import OVERHEAD_BYTES
from calc.job import DEFAULTS, Job
from calc.models import load
from calc.precision import RECIPES, get_recipe
from calc.stacks import get_strategy
from calc.units import UNITS, InputError, named, records

#: In this order: the first that holds is the verdict.
VERDICTS = (
    "inconsistent",
    "stale",
    "exact",
    "rounds to",
    "different ledger",
    "wrong",
    "not decidable",
)
KINDS = ("measured", "estimated", "claimed")
CONFIDENCES = (
    "read at source",
    "read in an excerpt",
    "secondary",
    "from memory, arithmetic checked",
)
STATES = ("weights", "master", "gradients", "optimizer")
#: A measurement agrees with a ledger from 1 % under it (what a meter misses) to 8 % over it (what the
#: allocator adds: the largest share that our own band has); a measured change within 8 % either way.
UNDER, OVER = Fraction(1, 100), Fraction(8, 100)
#: With nothing as near as this, a claim is wrong.
NEAR = Fraction(25, 100)
#: The recipes that a stated precision allows; an unstated one allows them all.
PRECISIONS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "": tuple(RECIPES),
        "mixed": ("zero", "deepspeed", "fsdp2-mixed", "autocast", "megatron"),
        "bf16": ("pure-bf16", "bf16-fp32-states"),
        "fp32": ("fp32",),
    }
)
#: Tried where a claim does not say which optimizer it means.
UNSTATED = ("adamw", "adamw8bit")
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
    """One published number: what it says in our words, for which setup, as printed, in which real
    unit.

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
        """One unit of the last printed digit that counts: 0.1 for 52.5, 1 for 297, 10 for an
        estimate of 420.
        """
        whole, _, decimals = self.printed.split()[0].replace(",", "").partition(".")
        zeros = len(whole) - len(whole.rstrip("0")) if self.about or self.kind != "measured" else 0
        return Fraction(1, 10 ** len(decimals)) if decimals else Fraction(10**zeros)

    def agrees(self, way: Way) -> str:
        """`exact`, `rounds to` (rounded or truncated as printed; a measurement: inside its band),
        or nothing.
        """
        half, computed = self.digit / 2, way.value
        if computed == self.value:
            return "exact"
        if self.kind == "measured":
            under = OVER if self.minus or self.change else UNDER
            high = way.high or computed * (1 + OVER)
            inside = computed * (1 - under) - half <= self.value <= high + half
        else:
            inside = (
                self.value - half
                <= computed
                < self.value + (self.digit if self.digit <= 1 else half)
            )
        return "rounds to" if inside else ""


@cache
def claims() -> Mapping[str, Claim]:
    """Every claim by id, in the order of `calc/data/claims.json`, where each stands under its
    source.

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
    """One named ledger applied to a claim, for one count and strategy, and the value that it gives."""

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


def ways(claim: Claim, *, wide: bool = False) -> Iterator[Way]:
    """Each named ledger that the claim's setup allows, or with `wide` every recipe, and what it
    gives.
    """
    setup = claim.setup
    if claim.of == "peak":
        yield from _peak(claim)
        return
    models, strategies = _list(setup.get("model", ())), _list(setup.get("strategy", "single"))
    names = (
        tuple(RECIPES)
        if wide
        else _list(setup.get("ledger", PRECISIONS[setup.get("precision", "")]))
    )
    for model, strategy, name in product(models, strategies, names):
        free = wide or "ledger" in setup or not get_strategy(strategy).stage
        if not free and strategy[:4] not in {other[:4] for other in get_recipe(name).strategies}:
            continue  # no strategy of this family holds that recipe
        for optimizer in (
            _list(setup.get("optimizer", UNSTATED)) if ledgers()[name].recipe else ("",)
        ):
            way = Way(ledger=name, optimizer=optimizer, model=model, strategy=strategy)
            yield replace(way, value=_value(claim, way))


def _peak(claim: Claim) -> Iterator[Way]:
    """The peak that `estimate` gives for the claim's run, where it knows the layers."""
    given = {name: claim.setup[name] for name in DEFAULTS if name in claim.setup}
    job = Job.of(
        **{**given, "model": load(claim.setup["model"]), "world_size": claim.setup["gpus"]}
    )
    if peak := estimate(job).peak:
        way = Way(
            ledger=job.recipe,
            optimizer=job.optimizer,
            model=claim.setup["model"],
            strategy=job.strategy,
        )
        yield replace(
            way, value=peak.bytes * SCALES[claim.unit], high=peak.high * SCALES[claim.unit]
        )


def _list(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value


def _value(claim: Claim, way: Way) -> Fraction:
    """What `way` gives for the claim, in the claim's real unit."""
    amount, params = _bytes(way, claim.setup, claim.of), load(way.model).num_params
    if other := claim.minus or claim.per:
        changed = replace(
            way, **{key: other[key] for key in other if key in ("ledger", "optimizer", "strategy")}
        )
        second = _bytes(changed, {**claim.setup, **other}, other.get("of", claim.of))
        amount = amount - second if claim.minus else amount / second
    if claim.budget:
        amount = claim.budget * params / amount
    return amount * SCALES[claim.unit] / (params if claim.unit.endswith("/param") else 1)


def _bytes(way: Way, setup: Mapping[str, Any], of: str) -> Fraction:
    chosen = {"model": way.model, "strategy": way.strategy, "optimizer": way.optimizer}
    lines = ledgers()[way.ledger].amounts({**setup, **chosen})
    wanted = {"states": STATES, "total": tuple(lines)}.get(of, of.split("+"))
    return sum((lines.get(line, Fraction(0)) for line in wanted), Fraction(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A claim's verdict and every way that gives its number.

    `way` is the best of them, or the one that was expected, or the nearest; `repaired` the one that
    gives the number once the claim's own `repair` is made.
    """

    claim: Claim
    verdict: str
    ways: Sequence[Way]
    way: Way | None
    repaired: Way | None = None

    @property
    def off(self) -> Fraction | None:
        """Printed ÷ computed - 1, of `way`."""
        return self.claim.value / self.way.value - 1 if self.way and self.way.value else None


def judge(claim: Claim) -> Judgement:
    """The verdict on a claim: the first of `VERDICTS` that holds.

    >>> found = judge(claims()["text-c-zero3"])
    >>> found.verdict, int(found.way.value), found.repaired.name
    ('inconsistent', 175, 'pure-bf16 + adamw8bit')
    """
    verdict, found, way = _verdict(claim)
    mended = replace(claim, setup={**claim.setup, **(claim.repair or {})})
    repaired = next((way for way in ways(mended) if claim.repair and claim.agrees(way)), None)
    return Judgement(claim=claim, verdict=verdict, ways=found, way=way, repaired=repaired)


def _verdict(claim: Claim) -> tuple[str, Sequence[Way], Way | None]:
    allowed = tuple(ways(claim))
    hits = () if claim.limit else tuple(way for way in allowed if claim.agrees(way))
    siblings = [claims()[name] for name in claim.siblings]
    same = [other for other in siblings if (other.setup, other.unit) == (claim.setup, claim.unit)]
    if any(other.value != claim.value for other in same):
        return "inconsistent", hits, None
    own = [{way.name for way in ways(other) if other.agrees(way)} for other in siblings]
    expected = [way for way in allowed if own and way.name in set.intersection(*own)]
    if expected and not set(expected) & set(hits):
        return "inconsistent", hits, expected[0]
    if claim.contradicts:
        other = tuple(ways(replace(claim, setup={**claim.setup, **claim.contradicts})))
        for stated in (other, allowed):
            if not any(claim.agrees(way) for way in stated):
                return "inconsistent", hits, stated[0]
    if claim.now:
        today = next(ways(replace(claim, setup={**claim.setup, "ledger": claim.now})))
        if not claim.agrees(today):
            return "stale", hits, today
    if exact := [way for way in hits if claim.agrees(way) == "exact"]:
        return "exact", exact, exact[0]
    if hits:
        return "rounds to", hits, hits[0]
    if not allowed:
        return "not decidable", (), None
    plain = claim.kind != "measured" and not (claim.limit or claim.minus or claim.per)
    if others := tuple(way for way in ways(claim, wide=plain) if plain and claim.agrees(way)):
        return "different ledger", others, others[0]
    smallest = min(allowed, key=lambda way: way.value)
    nearest = (
        smallest if claim.limit else min(allowed, key=lambda way: abs(way.value - claim.value))
    )
    if claim.missing or claim.limit:  # then only a number below every ledger can be refuted
        bound = not (claim.minus or claim.change or claim.of == "peak")
        too_small = bound and claim.value < smallest.value * (1 - UNDER)
        return "wrong" if too_small else "not decidable", (), nearest
    near = abs(claim.value - nearest.value) <= NEAR * nearest.value
    return "different ledger" if near else "wrong", (), nearest


@cache
def judgements() -> tuple[Judgement, ...]:
    """The verdict on every claim, in the order of the data."""
    return tuple(judge(claim) for claim in claims().values())


#: Activation terms tried on text B, tokens·(a·hidden·layers + b·hidden + c·vocabulary): tokens, a, b and c.
FORMS = (512, 1024, 2048, 4096, 8192, 16384), (0, 2), range(0, 69, 2), range(0, 17, 2)


@cache
def text_b_forms() -> tuple[int, int, int]:
    """How many activation terms were tried on text B, give all its four totals, and also pass 76 GB
    at sixteen.

    Total: 16 or 10 bytes per parameter, divided, + 1.5 GB + one term of `FORMS`, with nominal and
    with exact counts of parameters. 76 GB is 95 % of an 80GB card, which its text leaves out.
    """
    asked = [
        claims()[name] for name in ("text-b-8b", "text-b-8b-8bit", "text-b-70b-8", "text-b-70b-16")
    ]
    tried = fits = over = 0
    for count in (0, 1):
        rooms = []
        for claim in asked:
            setup = {"strategy": "single", **claim.setup, "model": claim.setup["model"][count]}
            left = (
                int(claim.value * UNITS["GB"] - sum(ledgers()["zero"].amounts(setup).values()))
                - OVERHEAD_BYTES
            )
            rooms.append(
                (left, *(int(quantities(setup)[name]) for name in ("hidden", "layers", "vocab")))
            )
        for tokens, a, b, c in product(*FORMS):
            off = [
                tokens * (a * h * layers + b * h + c * vocab) - left
                for left, h, layers, vocab in rooms
            ]
            tried += 1
            if max(map(abs, off)) <= UNITS["GB"] // 2:
                fits += 1
                over += off[3] > 0
    return tried, fits, over
