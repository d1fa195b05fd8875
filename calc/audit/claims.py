"""Published claims → verdicts: which named ledger gives a number, and by how much it is off.

Nothing here is fitted: a claim is compared with the ledgers that its own stated setup allows, and
an estimate then with every other recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

from calc.audit.ledgers import ledgers, quantities
from calc.audit.published import PRECISIONS, SCALES, UNDER, Claim, Source, Way, claims
from calc.estimate import estimate
from calc.formula import OVERHEAD_BYTES
from calc.job import Job
from calc.models import load
from calc.precision import RECIPES, get_recipe
from calc.settings import DEFAULTS
from calc.stacks import get_strategy
from calc.units import UNITS

__all__ = ["VERDICTS", "Claim", "Judgement", "Source", "Way", "claims", "judge", "judgements"]

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
STATES = ("weights", "master", "gradients", "optimizer")
#: With nothing as near as this, a claim is wrong.
NEAR = Fraction(25, 100)
#: Tried where a claim does not say which optimizer it means.
UNSTATED = ("adamw", "adamw8bit")


def ways(claim: Claim, *, wide: bool = False) -> Iterator[Way]:
    """What each named ledger gives that the claim's setup allows, or with `wide` every recipe."""
    setup = claim.setup
    if claim.of == "peak":
        yield from _peak(claim)
        return
    models, strategies = _list(setup.get("model", ())), _list(setup.get("strategy", "single"))
    stated = _list(setup.get("ledger", PRECISIONS[setup.get("precision", "")]))
    names = tuple(RECIPES) if wide else stated
    for model, strategy, name in product(models, strategies, names):
        free = wide or "ledger" in setup or not get_strategy(strategy).stage
        if not free and strategy[:4] not in {other[:4] for other in get_recipe(name).strategies}:
            continue  # no strategy of this family holds that recipe
        optimizers = _list(setup.get("optimizer", UNSTATED)) if ledgers()[name].recipe else ("",)
        for optimizer in optimizers:
            way = Way(ledger=name, optimizer=optimizer, model=model, strategy=strategy)
            yield replace(way, value=_value(claim, way))


def _peak(claim: Claim) -> Iterator[Way]:
    """The peak that `estimate` gives for the claim's run, where it knows the layers."""
    given = {name: claim.setup[name] for name in DEFAULTS if name in claim.setup}
    model, gpus = claim.setup["model"], claim.setup["gpus"]
    job = Job.of(**{**given, "model": load(model), "world_size": gpus})
    if peak := estimate(job).peak:
        scale = SCALES[claim.unit]
        way = Way(ledger=job.recipe, optimizer=job.optimizer, model=model, strategy=job.strategy)
        yield replace(way, value=peak.bytes * scale, high=peak.high * scale)


def _list(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value


def _value(claim: Claim, way: Way) -> Fraction:
    """What `way` gives for the claim, in the claim's real unit."""
    amount, params = _bytes(way, claim.setup, claim.of), load(way.model).num_params
    if other := claim.minus or claim.per:
        names = [key for key in other if key in ("ledger", "optimizer", "strategy")]
        changed = replace(way, **{key: other[key] for key in names})
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


#: The word, the ways that give the number, and the one that the claim is compared with.
_Verdict = tuple[str, Sequence[Way], Way | None]


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


def _verdict(claim: Claim) -> _Verdict:
    allowed = tuple(ways(claim))
    hits = () if claim.limit else tuple(way for way in allowed if claim.agrees(way))
    return (
        _inconsistent(claim, allowed, hits)
        or _stale(claim, hits)
        or _agreed(claim, hits)
        or _elsewhere(claim, allowed)
        or _refuted(claim, allowed)
    )


def _inconsistent(claim: Claim, allowed: Sequence[Way], hits: Sequence[Way]) -> _Verdict | None:
    """Where the source's other numbers, or its setup as given elsewhere, contradict the claim."""
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
    return None


def _stale(claim: Claim, hits: Sequence[Way]) -> _Verdict | None:
    """Where the ledger that the tool uses today gives another number."""
    if not claim.now:
        return None
    today = next(ways(replace(claim, setup={**claim.setup, "ledger": claim.now})))
    return None if claim.agrees(today) else ("stale", hits, today)


def _agreed(claim: Claim, hits: Sequence[Way]) -> _Verdict | None:
    if exact := [way for way in hits if claim.agrees(way) == "exact"]:
        return "exact", exact, exact[0]
    return ("rounds to", hits, hits[0]) if hits else None


def _elsewhere(claim: Claim, allowed: Sequence[Way]) -> _Verdict | None:
    """Where no stated ledger can decide, or another recipe gives an estimate."""
    if not allowed:
        return "not decidable", (), None
    if claim.kind == "measured" or claim.limit or claim.minus or claim.per:
        return None
    others = tuple(way for way in ways(claim, wide=True) if claim.agrees(way))
    return ("different ledger", others, others[0]) if others else None


def _refuted(claim: Claim, allowed: Sequence[Way]) -> _Verdict:
    smallest = min(allowed, key=lambda way: way.value)
    nearest = min(allowed, key=lambda way: abs(way.value - claim.value))
    if claim.limit:
        nearest = smallest
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


#: Activation terms tried on text B: tokens, a, b and c of
#: tokens·(a·hidden·layers + b·hidden + c·vocabulary).
FORMS = (512, 1024, 2048, 4096, 8192, 16384), (0, 2), range(0, 69, 2), range(0, 17, 2)


@cache
def text_b_forms() -> tuple[int, int, int]:
    """How many activation terms were tried on text B, give its four totals, and pass 76 GB too.

    Total: 16 or 10 bytes per parameter, divided, + 1.5 GB + one term of `FORMS`, with nominal and
    with exact counts of parameters. 76 GB is 95 % of an 80GB card, which its text leaves out.
    """
    names = ("text-b-8b", "text-b-8b-8bit", "text-b-70b-8", "text-b-70b-16")
    asked = [claims()[name] for name in names]
    tried = fits = over = 0
    for count in (0, 1):
        rooms = []
        for claim in asked:
            setup = {"strategy": "single", **claim.setup, "model": claim.setup["model"][count]}
            states = sum(ledgers()["zero"].amounts(setup).values())
            left = int(claim.value * UNITS["GB"] - states) - OVERHEAD_BYTES
            sizes = (int(quantities(setup)[name]) for name in ("hidden", "layers", "vocab"))
            rooms.append((left, *sizes))
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
