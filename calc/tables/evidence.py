"""Tables of published numbers: their verdicts, the ledgers, the calculators, why they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from calc.audit.claims import VERDICTS, Claim, Judgement, Way, judgements
from calc.audit.ledgers import Ledger, ledgers
from calc.formula import OVERHEAD_BYTES
from calc.models import load
from calc.tables.figures import bars
from calc.tables.text import LINES, markdown, size
from calc.units import UNITS, decimal, records

#: What each verdict means, and the colour it is set in.
MEANINGS: Mapping[str, tuple[str, str]] = {
    record["verdict"]: (record["meaning"], record["colour"]) for record in records("verdicts")
}


def verdict_counts() -> str:
    """How many claims have each verdict, and what it means."""
    found = [judgement.verdict for judgement in judgements()]
    rows = [
        [_coloured(verdict), found.count(verdict), MEANINGS[verdict][0]] for verdict in VERDICTS
    ]
    return markdown(["Verdict", ">Claims", "Meaning"], [*rows, ["All", len(found), ""]], total=True)


def _coloured(verdict: str) -> str:
    colour = MEANINGS[verdict][1]
    return f'<span class="verdict-{colour}">{verdict}</span>' if colour else verdict


def claims_table(*sources: str) -> str:
    """Every claim, or those of `sources`: as printed, the verdict, what the ledger gives."""
    heads = ["Claim", ">Printed", "Verdict", ">Ledger gives", ">Off by"]
    found = (each for each in judgements() if not sources or each.claim.source.id in sources)
    return markdown([*heads, "Ledger, and what is said of it"], map(_row, found))


def _row(found: Judgement) -> list[str]:
    claim, way = found.claim, found.way
    source = claim.source.title
    if claim.source.url:
        source = f"[{source}]({claim.source.url})"
    facts = [f"{source}, {claim.where}", claim.source.date, claim.kind]
    facts += [] if claim.source.confidence == "read at source" else [claim.source.confidence]
    return [
        f'<span id="{claim.id}">{claim.says}</span><br><small>{" · ".join(facts)}</small>',
        claim.printed + _meaning(claim),
        _coloured(found.verdict),
        f"{_written(way.value, claim.unit, claim.digit)}" if way else "–",
        _off(found.off),
        _said(found),
    ]


def _off(off: Fraction | None) -> str:
    if not off:
        return "–"
    percent = f"{decimal(100 * off, 1)} %"
    return f"+{percent}" if off > 0 else percent


def readings(*, inside: bool) -> tuple[Judgement, ...]:
    """Published measurements of whole amounts: those inside the band, or the others."""
    found = (j for j in judgements() if j.claim.kind == "measured" and j.claim.unit in UNITS)
    whole = (
        j for j in found if not (j.claim.minus or j.claim.per or j.claim.change or j.claim.limit)
    )
    return tuple(j for j in whole if inside == (j.verdict in ("exact", "rounds to")))


def readings_table(*, inside: bool) -> str:
    """What others read of real runs, beside what is computed; for those outside the band, why."""
    cells = map(_row, readings(inside=inside))
    why = "Ledger" if inside else "Why not"
    rows = [[what, read, computed, off, said] for what, read, _, computed, off, said in cells]
    return markdown(["Measured by others", ">Read", ">Computed", ">Off by", why], rows)


def readings_count() -> str:
    """In one sentence: how many of the readings lie inside the band."""
    found, others = len(readings(inside=True)), len(readings(inside=False))
    inside = f"Of {found + others} such readings {found} lie inside the band"
    return f"{inside}; what the others lack stands with each."


def _meaning(claim: Claim) -> str:
    if claim.limit:
        return "<br><small>the card</small>"
    if claim.printed.endswith(f" {claim.unit}"):
        return ""
    return f"<br><small>means {claim.unit}</small>"


def _written(value: Fraction, unit: str, digit: Fraction) -> str:
    decimals = max(0, len(str(digit.denominator)) - 1)
    if value.denominator != 1 and (unit != "B"):
        decimals += 1 if value < 1000 else 0
    return f"{decimal(value, decimals)} {unit}"


def _said(found: Judgement) -> str:
    claim = found.claim
    names = list(dict.fromkeys(_name(way, claim.setup.get("model")) for way in found.ways))
    if found.verdict == "inconsistent":
        text = _contradiction(found)
        text += f"; {', '.join(names)} would give this one" if names else ""
    elif found.verdict == "stale":
        pairs = zip(found.ways, names, strict=False)
        was = ", ".join(f"{name} under {way.strategy}" for way, name in pairs)
        text = f"printed when it counted {was}"
    else:
        against = f"against {_name(found.way)}" if found.way else "no ledger gives it"
        text = ", ".join(names) or against
    remarks = [f"Missing: {claim.missing}."] if found.verdict == "not decidable" else []
    if found.repaired and claim.repair:
        told = ", ".join(f"{key} {value}" for key, value in claim.repair.items())
        remarks.append(f"Right for {told}.")
    small = " ".join([*remarks, claim.note]).strip()
    return text + (f"<br><small>{small}</small>" if small else "")


def _contradiction(found: Judgement) -> str:
    if not found.way:
        return "it gives two numbers for the same"
    if found.claim.contradicts:
        return f"contradicts its own source; against {_name(found.way)}"
    return f"its other numbers count {_name(found.way)}"


def _name(way: Way, models: object = "") -> str:
    ledger, _, optimizer = way.name.partition(" + ")
    name = f"`{ledger}` with `{optimizer}`" if optimizer else f"`{ledger}`"
    nominal = isinstance(models, list) and way.model[0].isdigit()
    return f"{name}, {way.model} parameters" if nominal else name


def ledgers_table() -> str:
    """Every ledger that claims are compared with: bytes per parameter with AdamW, its title."""
    own = [ledger for ledger in ledgers().values() if ledger.calculator is None]
    rows = [[f"`{ledger.name}`", _per_param(ledger), ledger.title] for ledger in own]
    return markdown(["Ledger", ">Bytes per parameter", "What it counts"], rows)


def _per_param(ledger: Ledger) -> str:
    setup = {"model": "1B", "strategy": "single", "optimizer": "adamw"}
    amounts = Ledger(name="", title="", recipe=ledger.recipe, lines=ledger.lines).amounts(setup)
    found = decimal(sum(amounts.values(), Fraction(0)) / 10**9, 3).rstrip("0").rstrip(".")
    return "–" if found == "0" else found


_PARAMS = 70_553_706_496
_RUN = {"model": "llama-3.3-70b", "strategy": "zero3", "gpus": 8, "optimizer": "adamw"}


def _parts(ledger: Ledger) -> dict[str, int]:
    """A calculator's bytes per GPU for that run by line, what its factor adds as `margin`."""
    amounts = ledger.amounts(_RUN)
    found = {line: round(amount / Fraction(ledger.times)) for line, amount in amounts.items()}
    return {**found, "margin": round(sum(amounts.values())) - sum(found.values())}


def _calculators() -> list[tuple[str, Mapping[str, str], dict[str, int]]]:
    return [
        (found.title, found.calculator, _parts(found))
        for found in ledgers().values()
        if found.calculator
    ]


#: The columns of the calculators' table: which lines each adds up.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "States": LINES,
    "Activations": ("activations",),
    "Gathered": ("transient",),
    "Constants": ("overhead",),
    "Margin": ("margin",),
}


def _sums(parts: Mapping[str, int]) -> dict[str, int]:
    return {title: sum(parts.get(line, 0) for line in lines) for title, lines in _COLUMNS.items()}


def calculators_table() -> str:
    """Each calculator's parts for Llama 3.3 70B, AdamW, ZeRO-3 on eight GPUs, 2,048 tokens."""
    rows = []
    for title, facts, parts in _calculators():
        sums, total = _sums(parts), sum(parts.values())
        per_param = decimal(Fraction(sums["States"] * 8, _PARAMS), 0)
        states = f"{size(sums['States'])}<br><small>{per_param} B × P</small>"
        rest = [size(sums[name] or None) for name in sums if name != "States"]
        said = f"**{size(total)}**<br><small>own: {facts['said']}</small>"
        rows.append([title.partition(",")[0], states, *rest, said])
    return markdown(["Calculator", *(f">{title}" for title in _COLUMNS), ">Per GPU"], rows)


def forgotten_table() -> str:
    """What each calculator leaves out, the unit that it prints, and the version that was read."""
    rows = []
    for title, facts, _ in _calculators():
        name = f"[{title}]({facts['url']})" if facts["url"] else title
        read = f"{facts['read']}; figure {facts['obtained']}"
        rows.append([name, facts["forgets"], facts["unit"], read])
    return markdown(["Calculator", "Leaves out", "Prints", "Read"], rows)


def calculators_bars() -> str:
    """The same as bars, against the 16 bytes per parameter of AdamW with a master copy."""
    rows = {}
    for title, _, parts in _calculators():
        shown = {line: parts.get(line, 0) for line in (*LINES, "activations", "transient")}
        shown["overhead"] = parts.get("overhead", 0) + parts["margin"]
        rows[title.partition(",")[0]] = shown
    told = "; ".join(f"{name} {size(sum(parts.values()))}" for name, parts in rows.items())
    title = "70B on eight GPUs by ten calculators"
    return bars(rows, 2 * _PARAMS, "16 bytes per parameter, over eight", title, f"Per GPU: {told}.")


def differences_table(differences: Iterable[Mapping[str, str]]) -> str:
    """Each of `differences`, with the least and the most that it is worth per GPU.

    It has the `column` that it sums, a `title` and its `reason`.
    """
    found = [_sums(parts) for _, _, parts in _calculators()]
    rows = []
    for record in differences:
        amounts = sorted(sums[record["column"]] for sums in found)
        least = size(amounts[0]) if amounts[0] else "nothing"
        rows.append([record["title"], least, size(amounts[-1]), record["reason"]])
    totals = sorted(sum(sums.values()) for sums in found)
    looks = [total - total * UNITS["GB"] // UNITS["GiB"] for total in totals]
    why = "2³⁰ bytes printed as GB look 6.9 % smaller"
    rows.append(["The unit", size(looks[0]), size(looks[-1]), why])
    factor = decimal(Fraction(totals[-1], totals[0]), 1)
    rows.append(["Altogether", size(totals[0]), size(totals[-1]), f"a factor of {factor}"])
    return markdown(["Difference", ">Least", ">Most", "Why"], rows, total=True)


def spread() -> str:
    """In one sentence: how many calculators, and from where to where they go."""
    totals = sorted(sum(parts.values()) for _, _, parts in _calculators())
    ends = f"from {size(totals[0])} to {size(totals[-1])} per GPU"
    run = "The same run, Llama 3.3 70B with AdamW on eight GPUs"
    return f"**{run}, takes {ends} by {len(totals)} calculators.**"


def text_b_room() -> str:
    """What Text B's totals leave for activations, with nominal and with exact parameters."""
    rows = []
    for title, count in (("nominal, 70B", "70B"), ("exact", "llama-3.3-70b")):
        room, half = [], UNITS["GB"] // 2
        for total, gpus in ((146, 8), (76, 16)):
            left = total * UNITS["GB"] - int(16 * load(count).num_params / gpus) - OVERHEAD_BYTES
            room.append(f"{size(left - half, 'GB', 2)} to {size(left + half, 'GB', 2)}")
        rows.append([title, *room, f"more than {size(left, 'GB', 2)}"])
    heads = ["Parameters", ">Leaves for 146 at eight", ">Leaves for 76 at sixteen"]
    return markdown([*heads, ">Needed to leave out 80GB cards at sixteen"], rows)
