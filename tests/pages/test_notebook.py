"""The one notebook: stored without outputs, true, and published as a page like the others."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from calc.check import check_file
from calc.cli import answer
from tests.oracle.cases import CONFIGS

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "walkthroughs" / "measure-it-yourself.ipynb"
CELLS = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def published(site: Path) -> str:
    text = (site / "walkthroughs" / NOTEBOOK.stem / "index.html").read_text("utf-8")
    return text.partition("<article")[2].partition("</article>")[0]


def test_it_is_stored_without_outputs() -> None:
    assert [cell for cell in CELLS if cell.get("outputs") or cell.get("execution_count")] == []


def test_its_numbers_are_marked_and_true() -> None:
    assert [str(found) for found in check_file(str(NOTEBOOK), answer=answer)[0] if not found.ok] == []


def test_its_model_is_the_one_that_was_measured() -> None:
    (config,) = (
        ast.literal_eval(node.value)
        for source in CODE
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "config"
    )
    assert config == CONFIGS["odd"]


def test_the_build_runs_it_and_nothing_differs(site: Path) -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", published(site), re.DOTALL)
    last = [re.findall(r"<td[^>]*>(.*?)</td>", row)[-1] for row in rows if "<td" in row]
    assert last == ["0"] * 15


def test_it_reads_like_any_other_page(site: Path) -> None:
    page = published(site)
    assert 'class="headerlink" href="#what-this-leaves-out"' in page
    assert 'href="../../evidence/verification/"' in page
    assert [word for word in ("jp-", "<style", "<script", "jupyter") if word in page] == []


def test_it_can_be_downloaded_as_it_is_stored(site: Path) -> None:
    copied = site / "walkthroughs" / NOTEBOOK.stem / NOTEBOOK.name
    assert copied.read_bytes() == NOTEBOOK.read_bytes()
    assert f'<a href="{NOTEBOOK.name}" download>' in published(site)
