"""The notebook's own measurement, taken where torch is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.oracle, pytest.mark.quick]
NOTEBOOK = Path(__file__).parents[2] / "docs" / "walkthroughs" / "measure-it-yourself.ipynb"


def test_what_the_notebook_measures_is_what_it_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    display: Any = SimpleNamespace(Markdown=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert "Measured here" in shown[-1]
    assert {row.split(" | ")[-1] for row in shown[-1].splitlines()[2:]} == {"0 |"}
