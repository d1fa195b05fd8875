"""Published claims: each is a test named after its source and its place there, and each verdict is pinned."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from calc import cli
from calc.audit import claims as audit
from calc.audit.claims import Claim, Source, Way, claims, judge, judgements, text_b_forms
from calc.audit.ledgers import ledgers
from calc.optimizers import OPTIMIZERS
from calc.precision import RECIPES
from calc.stacks import STRATEGIES
from calc.tables import evidence
from calc.units import UNITS, InputError, decimal, records

VERDICTS = Path(__file__).parent / "verdicts.json"
PINNED = json.loads(VERDICTS.read_text("utf-8"))
BY_ID = {found.claim.id: found for found in judgements()}


def place(claim: Claim) -> str:
    return f"{claim.source.title}: {claim.where}: {claim.id}"


@pytest.mark.parametrize("claim", claims().values(), ids=place)
def test_each_claim_has_its_pinned_verdict(claim: Claim) -> None:
    """Looked over one by one; a new claim is added to tests/verdicts.json with the verdict that it gets."""
    found = BY_ID[claim.id]
    assert found.verdict == PINNED[claim.id]
    assert found.verdict in audit.VERDICTS
    if found.verdict in ("exact", "rounds to"):
        assert found.ways, "what reproduces a number is named"
    if found.verdict == "not decidable":
        assert claim.missing, "it says which assumption is missing"
    if claim.repair:
        assert found.repaired, "the repair gives the number"
        assert found.verdict in ("inconsistent", "stale", "different ledger", "wrong")


def test_no_verdict_is_pinned_twice_or_without_its_claim() -> None:
    assert PINNED.keys() == claims().keys()
    assert set(PINNED.values()) == set(audit.VERDICTS), "every verdict occurs"


#: Whole amounts that somebody measured, with what they ran stated in full or nearly so.
READINGS = (
    *("pytorch-zero-model", "pytorch-zero-ddp", "pytorch-zero-step", "pytorch-vit-step", "torchao-adamw"),
    *("torchao-8bit", "torchao-4bit", "torchtune-7b-sgd", "torchtune-389-sgd", "torchtune-389-adamw"),
    *("torchtune-3b-baseline", "ms-swift-1.8b", "qwen-7b-zero3", "litgpt-7b-weights", "litgpt-70b-nf4"),
    *("peft-70b-fsdp", "hf-fsdp-rank0", "bloom-checkpoint", "llmc-moment", "megatron-llm-falcon"),
    *("llama-cookbook-7b", "lomo-adamw", "pytorch-124260-wrap", "ipex-646-resident", "fairscale-627-weights"),
    *("megatron-fsdp-shard", "deepspeed-2899-load"),
)
#: The same, outside the band, with a word of what stands between.
OUTSIDE = {
    "litgpt-phi2": "gpus 2",  # its file says two devices, its table four
    "peft-70b-qlora-offload": "reserved",
    "lomo-lomo": "activations",
}


def test_what_others_measured_lies_inside_the_band_or_says_why_not() -> None:
    inside = {found.claim.id for found in evidence.readings(inside=True)}
    outside = {found.claim.id: evidence._said(found) for found in evidence.readings(inside=False)}
    assert set(READINGS) <= inside
    assert BY_ID["deepspeed-1680-ratio"].verdict == "exact"
    for name, word in OUTSIDE.items():
        assert word in outside[name]
    assert all("Missing: " in why or "Right for " in why for why in outside.values())
    assert f"Of {len(inside) + len(outside)} such readings {len(inside)} lie" in evidence.readings_count()
    for each in (True, False):
        assert evidence.readings_table(inside=each).count("\n") >= len(evidence.readings(inside=each))


def test_no_claim_without_a_source_in_our_own_words_and_a_place() -> None:
    for claim in claims().values():
        source = claim.source
        assert source.title
        assert source.date
        assert claim.where
        assert claim.says, claim.id
        assert (source.url or "").startswith("https://") or source.id in ("text-a", "text-b", "text-c"), source.id
    assert len(claims()) >= 200
    texts = {claim.source.id for claim in claims().values()}
    assert {"text-a", "text-b", "text-c", "zero-paper"} <= texts


def test_all_45_cells_of_zero_table_1_are_claims_that_their_formula_gives() -> None:
    cells = [found for name, found in BY_ID.items() if name.startswith("zero-table-1-")]
    assert len(cells) == 45
    for cell in cells:
        assert cell.verdict in ("exact", "rounds to")
        assert [way.name for way in cell.ways] == ["zero + adamw"]


def test_printed_and_real_unit_are_never_mixed() -> None:
    """A GB that is a GiB is read as one, and differs from its decimal namesake by the ratio of the two."""
    said = [claim for claim in claims().values() if claim.printed.split()[1] != claim.unit]
    assert len(said) >= 15
    for claim in said:
        printed, real = claim.printed.split()[1], claim.unit
        assert real == printed[0] + "i" + printed[1:], claim.id
    torchao = BY_ID["torchao-adamw"]
    assert torchao.claim.value == Fraction("51.6")
    assert torchao.way is not None
    assert torchao.way.value * UNITS["GiB"] == 8 * 6_738_415_616
    mistaken = judge(replace(torchao.claim, unit="GB"))
    assert mistaken.way is not None
    assert mistaken.way.value / torchao.way.value == Fraction(UNITS["GiB"], UNITS["GB"])


def test_a_changed_recipe_changes_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without DeepSpeed's fp32 gradients nothing counts 20 bytes, so Text C's first rows lose their ledger."""
    rows = [claims()[name] for name in ("text-c-ddp", "text-c-zero1", "text-c-zero2")]
    assert [judge(row).verdict for row in rows] == ["exact", "exact", "rounds to"]
    recipe = RECIPES["deepspeed"]
    thinner = {**RECIPES, "deepspeed": replace(recipe, copies=recipe.copies[:3])}
    monkeypatch.setattr("calc.audit.ledgers.get_recipe", thinner.__getitem__)
    assert [judge(row).verdict for row in rows[:2]] == ["different ledger", "different ledger"]
    assert not any(way.ledger == "deepspeed" for way in judge(rows[0]).ways)


def test_inconsistent_is_found_by_what_the_siblings_say() -> None:
    row = claims()["text-c-zero3"]
    alone = judge(replace(row, siblings=()))
    assert alone.verdict == "rounds to"
    assert {way.name for way in alone.ways} == {"pure-bf16 + adamw8bit", "bf16-fp32-states + adamw8bit"}
    found = judge(row)
    assert found.way is not None
    assert (found.verdict, found.way.value) == ("inconsistent", 175)


@pytest.mark.parametrize(
    ("name", "alone", "computed"),
    [
        ("text-a-zero1", "wrong", 35),  # 14 + 14 + 56/8
        ("text-a-zero3", "wrong", Fraction("10.5")),  # its 84 GB over eight, not 12
        ("litgpt-phi2", "wrong", Fraction(10 * 2_779_683_840, 4 * 10**9)),  # its file says two devices
        ("hf-t5-adafactor", "wrong", 0),  # its own page: no average per element is stored
    ],
)
def test_inconsistent_is_found_by_the_source_s_other_setup(name: str, alone: str, computed: Fraction) -> None:
    row = claims()[name]
    assert judge(replace(row, contradicts=None)).verdict == alone
    found = judge(row)
    assert found.way is not None
    assert (found.verdict, round(found.way.value, 1)) == ("inconsistent", round(Fraction(computed), 1))


def test_a_number_that_follows_from_both_setups_is_not_inconsistent() -> None:
    row = claims()["litgpt-phi2"]
    two = replace(row, setup={**row.setup, "gpus": 2})
    assert judge(two).verdict == "rounds to"
    assert judge(replace(two, contradicts={"gpus": 4})).verdict == "inconsistent"


def test_stale_is_what_the_tool_no_longer_prints() -> None:
    found = BY_ID["deepspeed-zero2"]
    assert found.way is not None
    assert decimal(found.way.value, 2) == "11.28"
    assert {way.strategy for way in found.ways} == {"zero1"}, "4 + 16/N, which its page still shows"


def claim(printed: str, kind: str = "estimated", **given: object) -> Claim:
    source = Source(id="s", title="s", url=None, date="d", confidence="read at source")
    return Claim(
        id="c", source=source, where="w", says="s", printed=printed, kind=kind, setup={"model": "70B"}, **given
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("printed", "kind", "computed", "verdict"),
    [
        ("52.5 GB", "estimated", "52.5", "exact"),
        ("41.3 GB", "estimated", "41.25", "rounds to"),  # half away from zero
        ("297 GB", "claimed", "297.5", "rounds to"),  # or truncated
        ("297 GB", "claimed", "298", ""),
        ("297 GB", "claimed", "296.4", ""),
        ("1,200 GB", "estimated", "1249", "rounds to"),  # trailing zeros do not count in an estimate
        ("1,200 GB", "estimated", "1260", ""),
        ("100 GB", "measured", "100.9", "rounds to"),  # a meter misses up to 1 %
        ("100 GB", "measured", "102", ""),
        ("108 GB", "measured", "100", "rounds to"),  # and an allocator adds up to 8 %
        ("109 GB", "measured", "100", ""),
    ],
)
def test_tolerance_is_the_printed_precision_or_the_band(printed: str, kind: str, computed: str, verdict: str) -> None:
    way = Way(ledger="", optimizer="", model="", strategy="", value=Fraction(computed))
    assert claim(printed, kind).agrees(way) == verdict


def test_a_measured_change_may_be_smaller_too() -> None:
    way = Way(ledger="", optimizer="", model="", strategy="", value=Fraction(100))
    assert claim("93 GB", "measured", change=True).agrees(way) == "rounds to"
    assert claim("93 GB", "measured").agrees(way) == ""


def test_a_claim_that_names_what_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="unknown unit of claim 'c' 'GiBs'; allowed"):
        claim("1 GB", unit="GiBs")
    with pytest.raises(InputError, match="unknown kind of claim"):
        claim("1 GB", "guessed")


def test_every_name_in_the_data_is_known() -> None:
    for found in claims().values():
        for setup in (found.setup, *filter(None, (found.minus, found.per, found.repair, found.contradicts))):
            for key, known in (("ledger", ledgers()), ("optimizer", OPTIMIZERS), ("strategy", STRATEGIES)):
                names = setup.get(key, ())
                assert {names} if isinstance(names, str) else set(names) <= set(known), found.id
        assert set(found.siblings) <= set(claims()), found.id
    used = re.findall(r"[\w.-]+", json.dumps(records("claims")))
    idle = {name for name, ledger in ledgers().items() if not ledger.calculator} - set(RECIPES) - set(used)
    assert not idle, "a ledger that no claim names"


CALCULATORS = {name: ledger for name, ledger in ledgers().items() if ledger.calculator}


@pytest.mark.parametrize("name", CALCULATORS)
def test_each_calculator_is_recomputed_to_its_printed_digit(name: str) -> None:
    ledger = CALCULATORS[name]
    setup = {"model": "llama-3.3-70b", "strategy": "zero3", "gpus": 8, "optimizer": "adamw"}
    total = sum(ledger.amounts(setup).values()) / UNITS["GB"]
    assert ledger.calculator is not None
    said = ledger.calculator["said"]
    assert abs(total - Fraction(said)) <= Fraction(1, 10 ** len(said.partition(".")[2])) * Fraction(51, 100)


def test_the_calculators_disagree_from_88_to_308() -> None:
    setup = {"model": "llama-3.3-70b", "strategy": "zero3", "gpus": 8, "optimizer": "adamw"}
    totals = [sum(ledger.amounts(setup).values()) // UNITS["MB"] for ledger in CALCULATORS.values()]
    assert (min(totals), max(totals)) == (88_192, 307_521)


def test_text_b_cannot_be_told_apart() -> None:
    """Its four totals follow from many activation terms, so none of them can be called its own."""
    tried, fits, over = text_b_forms()
    assert (tried, fits, over) == (7560, 95, 35)


def test_text_b_holds_together_with_nominal_counts_and_one_term() -> None:
    names = {way.name for way in BY_ID["text-b-70b-8"].ways}
    assert names == {"one-line-4 + adamw", "one-line-8 + adamw"}
    totals = [
        next(way.value for way in BY_ID[name].ways if (way.ledger, way.model) == ("one-line-8", count))
        for name, count in (
            ("text-b-8b", "8B"),
            ("text-b-8b-8bit", "8B"),
            ("text-b-70b-8", "70B"),
            ("text-b-70b-16", "70B"),
        )
    ]
    assert [decimal(total, 1) for total in totals] == ["132.1", "84.1", "146.3", "76.3"]


def test_the_command_line_lists_each_claim() -> None:
    listed = cli.answer(["claims"])
    assert isinstance(listed, list)
    assert [row["id"] for row in listed] == list(claims())  # type: ignore[index]
    row = next(row for row in listed if row["id"] == "text-c-zero3")  # type: ignore[index]
    expected = {"id", "value", "unit", "kind", "verdict", "recipes", "source"}
    assert expected <= row.keys()  # type: ignore[attr-defined]
    assert (row["value"], row["unit"], row["computed"], row["source"]["id"]) == (53, "GB", 175.0, "text-c")  # type: ignore[index]
    assert json.loads(json.dumps(listed)) == listed
