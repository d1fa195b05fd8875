"""Each record has its row on its reference page, each row its record; each source is used and known.

The rows are those that the page's own executed blocks print, so a page that stops showing a table fails.
"""

from __future__ import annotations

import re

import pytest

from calc import check, cli
from calc.units import records
from tests.examples import DOCS, MODULES, PAGES, ROOT, printed

#: A registry, what names its records, and the page that shows them with `print(<registry>_table())`.
TABLES = [
    ("gpus", "slug", "gpus"),
    ("models", "name", "models"),
    ("optimizers", "name", "optimizers"),
    ("strategies", "name", "strategies-and-recipes"),
    ("recipes", "name", "strategies-and-recipes"),
]


def rows(page: str, block: str) -> list[str]:
    """The name, in code, of each row of the table that the block prints."""
    text = printed(DOCS / "reference" / f"{page}.md")
    table = re.search(rf"print\({block}\(\)\) -->\n\n\|.*\n\|.*\n((?:\|.*\n?)+)", text)
    assert table, f"docs/reference/{page}.md no longer prints {block}()"
    return [re.findall(r"`([^`]+)`", row.split("|")[1])[-1] for row in table[1].splitlines()]


@pytest.mark.parametrize(("registry", "key", "page"), TABLES)
def test_each_record_has_its_row_and_each_row_its_record(registry, key, page):
    shown, known = set(rows(page, f"{registry}_table")), {record[key] for record in cli.answer([registry])}
    assert shown == known, f"docs/reference/{page}.md and the records differ in {shown ^ known}; then run make golden"


#: Written out by hand, so that a record which is lost, or one that nobody meant, is seen.
EXPECTED = {
    "optimizers": "adamw adamw-amsgrad adamw8bit adamw8bit-trainer adamw8bit-torchao adamw4bit-torchao paged-adamw8bit "
    "adafactor adafactor-trainer lion lion8bit sgd sgd-momentum muon",
    "strategies": "single ddp zero1 zero2 zero3 fsdp1 fsdp2 hsdp",
    "recipes": "zero deepspeed fsdp2-mixed autocast fp32 pure-bf16 bf16-fp32-states megatron",
}


@pytest.mark.parametrize("registry", EXPECTED)
def test_the_registries_have_these_records_and_no_other(registry):
    assert [record["name"] for record in cli.answer([registry])] == EXPECTED[registry].split()


def test_as_many_models_and_cards_as_were_collected():
    assert len(cli.answer(["models"])) == 66
    assert len(cli.answer(["gpus"])) == 39


def cited(text: str) -> list[str]:
    """What the marks in prose name; a mark shown in code is none."""
    return re.findall(r"<!--~ (\S+) -->", " ".join(text[start:end] for start, end in check.prose(text)[1]))


def test_each_source_is_known_and_used():
    known = [source["id"] for source in records("sources")]
    assert len(set(known)) == len(known)
    in_data = {
        found
        for path in (*(ROOT / "calc" / "data").glob("*.json"), *(ROOT / "docs").glob("*/*.json"))
        if path.name not in ("gpus.json", "models.json")  # these quote theirs in full
        for found in re.findall(r'"source": "([^"]+)"', path.read_text())
    }
    in_prose = {found for page in PAGES for found in cited(page.read_text())}
    in_code = {found for module in MODULES for found in re.findall(r"`([a-z0-9-]+)`", module.read_text())}
    assert in_data - set(known) == set(), "name it in calc/data/sources.json, then run make golden"
    assert in_prose - set(known) == set(), "name it in calc/data/sources.json, then run make golden"
    unused = set(known) - in_data - in_prose - in_code
    assert not unused, f"a source that nothing uses: {unused}; take it out, then run make golden"
    assert rows("units-and-sources", "sources_table") == known


def test_facts_name_their_source():
    for registry in ("gpus", "models"):
        for record in records(registry):
            assert record.get("source") or record.get("sources"), record["name"]
