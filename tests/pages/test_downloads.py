"""What is published beside the pages: data files that keep their schema, and a list of all pages."""

import json
import re
from pathlib import Path

import html5lib
import jsonschema
import pytest

from site_build.downloads import ANSWERS

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture(scope="module")
def schema(site: Path) -> dict:
    return json.loads((site / "data" / "schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_data_file_keeps_the_schema(site: Path, schema: dict, name: str) -> None:
    data = json.loads((site / "data" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(data)
    assert data.keys() == {"$schema", "license", name}


def test_the_schema_refuses_an_unknown_field_and_bytes_that_are_no_integer(site: Path, schema: dict) -> None:
    data = json.loads((site / "data" / "gpus.json").read_text(encoding="utf-8"))
    for change in ({"visible_byte": 1}, {"visible_bytes": 85.03}):
        wrong = data | {"gpus": [data["gpus"][0] | change]}
        assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)


def test_counted_parameters_are_published(site: Path) -> None:
    data = json.loads((site / "data" / "models.json").read_text(encoding="utf-8"))
    totals = {record["name"]: record["params_total"] for record in data["models"]}
    assert totals["llama-3.3-70b"] == 70_553_706_496


def test_llms_txt_lists_every_page_with_what_it_answers(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# Sixteen Bytes\n\n> ")
    listed = re.findall(r"^- \[(.+)\]\((\S+)\): .{40,}$", text, re.MULTILINE)
    published = {
        html5lib.parse(path.read_text(encoding="utf-8"), namespaceHTMLElements=False).find(".//link[@rel='canonical']")
        for path in site.rglob("index.html")
    }
    addresses = {link.get("href") for link in published if link is not None}
    assert {url for _, url in listed} | {"https://site.invalid/sixteen-bytes/"} == addresses
