"""The frameworks of this environment, measured again: what is recorded must still be so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle.cases import CASES, Case, is_quick
from tests.oracle.record import file_of, measured, recorded

pytestmark = pytest.mark.oracle
PYTHON = ("python", "machine")


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest) -> tuple[dict[str, str], dict[str, Any]]:
    """Versions and what was measured, of the cases that this session selected, in one go."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if "case" in getattr(item, "fixturenames", ()) and item.path == request.path
    ]
    return measured(chosen)


@pytest.mark.quick
def test_the_frameworks_are_those_of_the_records(fresh: tuple[dict[str, str], dict[str, Any]]) -> None:
    for name in ("optimizers", "ranks"):
        kept = {key: value.split("+")[0] for key, value in recorded(name)["versions"].items() if key not in PYTHON}
        assert kept == {key: value.split("+")[0] for key, value in fresh[0].items() if key not in PYTHON}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.quick if is_quick(case) else ()) for case in CASES], ids=str
)
def test_the_record_still_holds(case: Case, fresh: tuple[dict[str, str], dict[str, Any]]) -> None:
    assert fresh[1][str(case)] == recorded(file_of(case))["cases"][str(case)]
