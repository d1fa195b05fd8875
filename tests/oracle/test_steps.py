"""The temporaries of a step: `calc` against the record, and the record against the libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.oracle.record import ROOT, recorded
from tests.oracle.stepped import Step, cases, elements, predicted

CASES = list(cases())
GROUPS = ("measured", "divided", "compiled")


def test_every_step_is_recorded_and_no_other() -> None:
    found = recorded("step-temporaries")
    assert {group: list(found[group]) for group in GROUPS} == {
        group: [str(case) for case in CASES if case.group == group] for group in GROUPS
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group} {case}")
def test_calc_says_what_was_measured(case: Step) -> None:
    assert predicted(case) == recorded("step-temporaries")[case.group][str(case)]


def test_the_steps_that_were_measured_differ() -> None:
    """Each way of each optimizer, on the tensors of a model in 16 bits, in bytes per element."""
    found = recorded("step-temporaries")["measured"]
    model = [case for case in CASES if case.tensors == "model" and case.dtype == "bf16"]
    spread = {str(case): found[str(case)] / elements(case) for case in model}
    assert spread["adamw foreach bf16 model"] == 2.0
    assert spread["adamw fused bf16 model"] == spread["sgd foreach bf16 model"] == 0.0
    assert spread["adafactor-trainer bf16 model"] > spread["muon fused bf16 model"] > 0.5


def measured(*groups: str) -> Any:
    """What the libraries of this environment allocate; a process of its own, which may compile."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.oracle.step_temporaries", *groups],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.oracle
@pytest.mark.quick
def test_the_libraries_still_allocate_what_is_recorded() -> None:
    found = measured("measured", "divided")
    for group in ("measured", "divided"):
        assert found[group] == recorded("step-temporaries")[group]


@pytest.mark.oracle
def test_the_compiler_still_plans_the_buffers_that_are_recorded() -> None:
    assert measured("compiled")["compiled"] == recorded("step-temporaries")["compiled"]
