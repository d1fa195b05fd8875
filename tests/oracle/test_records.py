"""`calc` against the recorded allocations, to the byte; needs no framework."""

from __future__ import annotations

import pytest

from calc.stacks import refuse
from calc.units import InputError
from tests.oracle.cases import CASES, CONFIGS, PAIRED, Case
from tests.oracle.predicted import predicted, reduced, tensors, terms
from tests.oracle.record import FILES, file_of, recorded
from tests.oracle.verification import (
    divided_table,
    models_table,
    named_table,
    optimizer_table,
    pairs_table,
    peaks_table,
    rank_table,
    refusals_table,
    summary_table,
    tracked_table,
)

FOUND = {name: found for file in FILES for name, found in recorded(file)["cases"].items()}
RAN = [case for case in CASES if "error" not in FOUND[str(case)]]


def test_every_case_is_recorded_and_no_other() -> None:
    assert list(FOUND) == [str(case) for file in FILES for case in CASES if file_of(case) == file]


@pytest.mark.parametrize("case", [case for case in RAN if case.model == "sizes"], ids=str)
def test_the_state_of_lone_tensors(case: Case) -> None:
    found = FOUND[str(case)]
    assert list(tensors(case)) == found["by_tensor"]
    if not case.optimizer.startswith("nf4"):
        assert terms(case)[2].once_bytes == found["shared"]


@pytest.mark.parametrize("case", [case for case in RAN if case.model in CONFIGS], ids=str)
def test_what_the_largest_rank_holds(case: Case) -> None:
    assert predicted(case) == reduced(case, FOUND[str(case)])


PAIRS = [case for case in CASES if case.stack in PAIRED and case.model == "even" and case.world_size == 2]
#: fp32 weights with a master copy, and bitsandbytes' AdamW of fp32 weights: calc has no words for them.
UNNAMED = [
    case
    for case in PAIRS
    if case.dtype != "bf16" and (case.stack.startswith("deepspeed") or case.optimizer == "adamw32bit")
]


@pytest.mark.parametrize("case", [case for case in PAIRS if case not in UNNAMED], ids=str)
def test_calc_refuses_the_pairs_that_fail_and_no_other(case: Case) -> None:
    stack, recipe, optimizer = terms(case)
    if "error" not in FOUND[str(case)]:
        refuse(stack.strategy, recipe, optimizer)
        return
    with pytest.raises(InputError, match="does not run under"):
        refuse(stack.strategy, recipe, optimizer)


def test_what_the_named_lines_are_worth() -> None:
    """The lines outside the ledger are small, but for the tensors that a DeepSpeed partition cuts."""
    lines = predicted(next(case for case in CASES if str(case) == "deepspeed2 bf16 adamw odd 8"))
    assert lines["scalars"] == 4
    assert lines["edge"] > lines["gradients"] // 4


def test_the_tables_of_the_verification_page_show_every_refusal_and_no_difference() -> None:
    assert {row.split(" | ")[-2] for row in optimizer_table().splitlines()[2:]} == {"0"}
    assert {row.split(" | ")[-2] for row in models_table().splitlines()[2:]} == {"0"}
    *exact, tracked = [row.split(" | ")[-1] for row in summary_table().splitlines()[2:]]
    assert exact == ["0 |", "0 |", "0 |", "– |"]
    assert tracked.startswith("by at most 0.")  # per cent
    assert len(tracked_table().splitlines()) - 2 == sum(
        len(recorded("tracker")[group]) for group in ("llama", "others")
    )
    assert "| `llama-3.3-70b` | 22 | -0.000" in peaks_table()
    assert {row.split(" | ")[-1] for row in divided_table("odd", 8).splitlines()[2:]} == {"0 |"}
    for table in (rank_table("odd", 8), rank_table("lora", 2), named_table("odd", 4)):
        assert {cell.strip() for row in table.splitlines()[2:] for cell in row.split(" | ")[4:5]} <= {"0", "0 |"}
    assert "| `adamw8bit-torchao` | yes | yes | yes | not bf16 | yes | yes | yes |" in pairs_table()
    assert all(f"{case.dtype} `{case.optimizer}`" in refusals_table() for case in CASES if case not in RAN)
