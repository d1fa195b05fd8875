"""Messages as PyTorch, DeepSpeed and others really print them, and the lines that they point at."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calc.cli import answer, main
from calc.estimate import estimate
from calc.job import Job
from calc.models import load
from calc.oom import Message, candidates, notes, read, requests, segment
from calc.units import InputError

GIB, MIB = 2**30, 2**20
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 3 has a total capacity of 79.19 GiB of "
    "which 1.06 GiB is free. Including non-PyTorch memory, this process has 78.12 GiB memory in use. Of the allocated "
    "memory 76.05 GiB is allocated by PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    "See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 0; 79.20 GiB total capacity; 75.66 GiB already "
    "allocated; 1.13 GiB free; 76.05 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
    "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
    "PYTORCH_CUDA_ALLOC_CONF"
)
RUN = Job.of(model=load("llama-3.1-8b"), world_size=8, strategy="fsdp2", seq_len=2048)
FOUND = estimate(RUN)


def gib(amount: str) -> int:
    head, _, tail = amount.partition(".")
    hundredths = int(head) * 100 + int(tail)
    return (hundredths * GIB * 2 + 100) // 200


@pytest.mark.parametrize(
    ("message", "figures"),
    [
        (NEW.format(asked="3.92 GiB"), ("3.92", "79.19", "76.05", "77.30")),
        (OLD.format(asked="2.00 GiB"), ("2.00", "79.20", "75.66", "76.05")),
        # PyTorch 2.1 misspelt the word.
        (
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacty of 15.78 GiB of which 1.23 GiB"
            " is free. Process 7 has 13.89 GiB memory in use. Of the allocated memory 13.00 GiB is allocated by"
            " PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
            ("2.50", "15.78", "13.00", "13.00"),
        ),
        # Before 1.5 "reserved" was "cached".
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 11.17 GiB total capacity; 10.60 GiB"
            " already allocated; 0.20 GiB free; 0.40 GiB cached)",
            ("1.00", "11.17", "10.60", "0.40"),
        ),
        # CUDA graphs put a clause between the two figures.
        (
            "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of"
            " 63.98 GiB of which 0.50 GiB is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, with"
            " 2.00 GiB allocated in private pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by PyTorch but"
            " unallocated.",
            ("1.50", "63.98", "60.00", "61.00"),
        ),
        # DeepSpeed's see_memory_usage: GiB, printed as GB; its lines are padded with blanks.
        ("MA 14.96 GB \\\n   Max_MA 17.25 GB         CA 15.50 GB         Max_CA 18 GB", (None, None, "14.96", "15.50")),
        ("CUDA error: out of memory", (None, None, None, None)),
    ],
    ids=["2.6", "1.13", "2.1", "1.4", "HIP", "DeepSpeed", "no figures"],
)
def test_every_wording_is_read(message: str, figures: tuple[str | None, ...]) -> None:
    found = read(message)
    assert (found.requested, found.capacity, found.allocated) == tuple(f and gib(f) for f in figures[:3])
    assert found.reserved == pytest.approx(gib(figures[3]), abs=1) if figures[3] else found.reserved is None


@given(st.integers(1, 10**5), st.sampled_from(["KiB", "MiB", "GiB", "KB", "MB", "GB"]))
def test_a_printed_amount_is_binary_whatever_its_unit_is_called(hundredths: int, unit: str) -> None:
    found = read(f"CUDA out of memory. Tried to allocate {hundredths // 100}.{hundredths % 100:02} {unit} (")
    size = 1024 ** ("KMG".index(unit[0]) + 1)
    assert abs(found.requested * 100 - hundredths * size) <= 50
    assert abs(found.precision * 200 - size) < 200
    assert found.binary_gb == (len(unit) == 2)


def test_the_first_failure_of_a_log_is_read() -> None:
    log = "step 1 | MA 3.00 GB CA 4.00 GB\n" + OLD.format(asked="2.00 GiB") + "\n" + NEW.format(asked="3.92 GiB")
    assert (read(log).requested, read(log).allocated) == (gib("2.00"), gib("75.66"))
    assert "2 failures in this text: the first is read" in notes(read(log))


def test_a_cut_message_is_not_completed_from_the_next_one() -> None:
    cut = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total"
    found = read(cut + "\n" + NEW.format(asked="3.92 GiB"))
    assert (found.requested, found.capacity, found.allocated) == (gib("2.00"), None, None)


@given(st.integers(1, 10**11))
def test_a_segment_holds_the_request_and_little_more(size: int) -> None:
    assert segment(size) >= size
    assert segment(size) % (2 * MIB) == 0
    assert segment(size) - size < (20 if size < 10 * MIB else 2) * MIB
    assert segment(size) <= segment(size + 1) or segment(size) == 20 * MIB


def printed(num_bytes: int) -> str:
    """As PyTorch's format_size prints it."""
    unit, name = (GIB, "GiB") if num_bytes >= GIB else (MIB, "MiB")
    return f"{num_bytes / unit:.2f} {name}"


@pytest.mark.parametrize("wording", [NEW, OLD])
@pytest.mark.parametrize(
    ("line", "num_bytes"),
    [
        ("reduce-scatter input", 4 * (2 * 128_256 * 4096 + 4096)),
        ("gathered root", 2 * (2 * 128_256 * 4096 + 4096)),
        ("gathered layer", 2 * 218_112_000),
        ("logits in fp32", 4 * 2048 * 128_256),
        ("one optimizer state of a shard [16032, 4096]", 4 * 16032 * 4096),
        ("MLP intermediate in bf16", 2 * 2048 * 14336),
    ],
)
def test_a_request_leads_back_to_its_line(wording: str, line: str, num_bytes: int) -> None:
    message = read(wording.format(asked=printed(segment(num_bytes))))
    (match,) = (c for c in candidates(message, FOUND) if c.line == line and c.exact)
    assert match.bytes == num_bytes
    assert match.off_by == num_bytes - message.requested
    assert match.lever


@given(st.sampled_from([amount for _, _, amount in requests(FOUND) if segment(amount) > 20 * MIB]))
def test_whatever_the_run_asks_for_is_found_again(num_bytes: int) -> None:
    message = read(OLD.format(asked=printed(segment(num_bytes))))
    found = candidates(message, FOUND)
    assert any(c.exact and abs(c.bytes - num_bytes) <= 2 * MIB + 2 * message.precision for c in found)
    assert [c.exact for c in found] == sorted((c.exact for c in found), reverse=True)


def test_it_says_when_it_cannot_tell() -> None:
    assert candidates(read(OLD.format(asked="20.00 MiB")), FOUND) == ()
    assert "any tensor up to 10 MiB" in notes(read(OLD.format(asked="20.00 MiB")))[0]
    assert candidates(read(OLD.format(asked="33.33 GiB")), FOUND) == ()
    told = answer(["oom", OLD.format(asked="33.33 GiB"), "llama-3.1-8b", "--gpus", "8", "--strategy", "fsdp2"])["notes"]
    assert "it cannot be told from the size alone" in told[-1]
    assert "has no figures" in answer(["oom", "CUDA error: out of memory"])["notes"][0]


def test_a_report_is_compared_with_what_is_kept() -> None:
    kept = FOUND.states.total
    (match,) = (c for c in candidates(read(f"MA {kept / GIB:.2f} GB CA 15.5 GB"), FOUND) if c.phase == "between steps")
    assert (match.bytes, match.exact) == (kept, True)


def test_notes_on_fragments_neighbours_and_what_never_fits() -> None:
    pieces = Message(requested=GIB, capacity=80 * GIB, free=GIB // 2, allocated=70 * GIB, reserved=78 * GIB)
    assert any("8.00 GiB are reserved and unused" in line for line in notes(pieces))
    neighbour = Message(requested=GIB, capacity=80 * GIB, free=GIB, allocated=40 * GIB, reserved=41 * GIB)
    assert any("38.00 GiB of the card" in line for line in notes(neighbour))
    assert any("larger than the card" in line for line in notes(Message(requested=90 * GIB, capacity=80 * GIB)))


def test_the_message_may_be_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "job.err"
    log.write_text(NEW.format(asked="3.92 GiB"))
    assert answer(["oom", str(log)]) == answer(["oom", log.read_text()])
    monkeypatch.setattr("sys.stdin", io.StringIO(log.read_text()))
    assert answer(["oom", "-"]) == answer(["oom", str(log)])


def test_the_contract_s_keys(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["oom", NEW.format(asked="3.92 GiB"), "llama-3.1-8b", "--gpus", "8", "--strategy", "fsdp2"]
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= {"requested_bytes", "capacity_bytes", "allocated_bytes", "reserved_bytes", "candidates"}
    assert found["candidates"][0].keys() >= {"line", "phase", "bytes", "off_by"}
    assert main(argv) == 0
    assert "reduce-scatter input: 4,202,708,992 bytes, exactly" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["hello", "", "\0", "out", "/no/such/file.log"])
def test_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="no out-of-memory message here"):
        answer(["oom", text])
