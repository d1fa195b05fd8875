"""The contract of the command line: JSON keys, exit status, one line for bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calc.cli import answer, main
from calc.units import InputError


def test_estimate_holds_the_right_values_of_70b_on_eight_gpus() -> None:
    found = answer(["estimate", "llama-3.3-70b", "--gpus", "8", "--strategy", "zero3"])
    assert found["states_bytes"] == sum(found["states"].values()) == 141_107_412_992
    assert found["one_line_bytes"] == sum(found["one_line"].values()) == 146_342_440_704
    assert found["one_line"]["activations"] == 2 * 80 * 2048 * 8192 + 4 * 2048 * 128256
    assert found["model"]["params_total"] == 70_553_706_496


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--gpus", "16"], 75.8),
        (["--gpus", "8"], 146.3),
    ],
)
def test_one_line_total_of_70b_as_text_b_publishes_it(options: list[str], printed: float) -> None:
    assert round(answer(["estimate", "llama-3.3-70b", *options])["one_line_bytes"] / 1e9, 1) == printed


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], 131.6),
        (["--optimizer", "adamw8bit"], 83.4),
        (["--optimizer", "adamw8bit", "--recipe", "pure-bf16"], 51.3),
    ],
)
def test_8b_on_one_gpu(options: list[str], printed: float) -> None:
    found = answer(["estimate", "llama-3.1-8b", "--gpus", "1", *options])
    assert round(found["one_line_bytes"] / 1e9, 1) == printed


def test_ddp_keeps_a_live_bucket_as_large_as_the_gradients() -> None:
    found = answer(["estimate", "llama-3.1-8b", "--gpus", "4", "--strategy", "ddp"])
    assert found["one_line"]["bucket"] == found["one_line"]["gradients"] == 2 * 8_030_261_248


def test_a_bare_count_has_states_and_no_total() -> None:
    found = answer(["estimate", "70B", "--gpus", "8"])
    assert found["states_bytes"] == 140_000_000_000
    assert found["one_line_bytes"] is None
    assert found["one_line"]["activations"] is None
    assert any("no architecture" in line for line in found["assumptions"])


def test_defaults_are_listed_first() -> None:
    assert answer(["estimate", "8B", "--gpus", "1"])["assumptions"][0] == (
        "strategy single, recipe zero, optimizer adamw"
    )
    assert answer(["estimate", "8B", "--gpus", "2", "--strategy", "fsdp2"])["run"]["recipe"] == "fsdp2-mixed"


def test_lora_has_state_for_trainable_parameters_only() -> None:
    found = answer(["estimate", "llama-3.1-8b", "--gpus", "1", "--lora-rank", "16"])
    assert found["model"]["params_trainable"] == 41_943_040
    assert found["states"]["optimizer"] == 8 * 41_943_040
    assert found["one_line"]["weights"] == 2 * (8_030_261_248 + 41_943_040)


@pytest.mark.parametrize("command", ["models", "gpus", "optimizers", "recipes", "strategies"])
def test_registries_print_as_text_and_as_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main([command]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(rows) > 0


def test_fit_says_its_defaults_what_ddp_does_not_do_and_what_tight_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "llama-3.3-70b", "--gpu", "h100-sxm5-80gb"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "strategy zero3, recipe zero, optimizer adamw"
    columns, row = (re.split(r"\s{2,}", line) for line in told[2:4])
    assert dict(zip(columns, row, strict=True))["verdict"] == "fits"
    assert "16: tight" in told[3]
    assert told[4] == "note: tight, by an allowance that has not been measured on a GPU"
    found = answer(["fit", "llama-3.1-8b", "--strategy", "ddp", "--gpu", "h100-sxm5-80gb"])
    assert found["rows"][0]["note"] == "more GPUs under DDP add throughput, not capacity"
    assert found["assumptions"][0] == "strategy ddp, recipe zero, optimizer adamw"
    assert main(["estimate", "llama-3.3-70b", "--gpus", "16", "--gpu", "h100-sxm5-80gb"]) == 0
    assert "verdict: tight, by an allowance that has not been measured on a GPU" in capsys.readouterr().out


def test_fit_answers_for_the_cards_that_are_named() -> None:
    rows = answer(["fit", "llama-3.3-70b", "--gpu", "b200-sxm", "--gpu", "h200-sxm5"])["rows"]
    assert [(row["gpu"], row["num_gpus_one_line"]) for row in rows] == [("B200 SXM", 8), ("H200 SXM5", 16)]
    assert [row["label_limit_bytes"] for row in rows] == [171_000_000_000, 133_950_000_000]


BAD = [
    (["estimate", "lama-3.3-70b", "--gpus", "8"], "lama-3.3-70b"),
    (["estimate", "8B", "--gpus", "0"], "world_size must be a whole number from 1"),
    (["estimate", "8B", "--gpus", "-4"], "world_size must be a whole number from 1"),
    (["estimate", "8B", "--gpus", "eight"], "not a whole number: 'eight'"),
    (["estimate", "8B"], "--gpus"),
    (["estimate", "8B", "--gpus", "8", "--strategy", "zero4"], "did you mean 'zero"),
    (["estimate", "8B", "--gpus", "8", "--recipe", "bf16"], "unknown recipe 'bf16'"),
    (["estimate", "8B", "--gpus", "8", "--optimizer", "adam"], "did you mean 'adamw'"),
    (["estimate", "8B", "--gpus", "8", "--recipe", "fsdp2-mixed"], "zero3 takes recipe: zero, deepspeed"),
    (["estimate", "8B", "--gpus", "2", "--strategy", "single"], "takes world_size 1"),
    (["estimate", "8Q", "--gpus", "8"], "8Q"),
    (["estimate", "0B", "--gpus", "8"], "0B"),
    (["estimate", "8B", "--gpus", "1", "--base-dtype", "nf4"], "lora_rank"),
    (["fit", "8B"], "bare count '8B'"),
    (["fit", "llama-3.1-8b", "--gpu", "h1000"], "unknown gpu 'h1000'"),
    (["fitt", "8B"], "fitt"),
    ([], "COMMAND"),
]


@pytest.mark.parametrize(("argv", "said"), BAD, ids=[" ".join(argv) or "nothing" for argv, _ in BAD])
def test_bad_input_is_one_line_and_status_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"model_type": "llama"', '{"model_type": "frobnicate"}'])
def test_a_broken_config_is_one_line(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(content)
    assert main(["params", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_long_message_is_refused_with_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("a" * 10_000_001)
    assert main(["oom", str(tmp_path / "log")]) == 2
    assert "longer than 10,000,000 characters" in capsys.readouterr().err


def shell(line: str, **environment: str) -> tuple[int, bytes, bytes]:
    root = Path(__file__).parents[1]
    line = line.replace("calc", f"{sys.executable} -m calc")
    ended = subprocess.run(["bash", "-c", line], cwd=root, env=os.environ | environment, capture_output=True)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("set -o pipefail; calc models --json | head -c 9", 0, b""),
        ("calc gpus > /dev/full", 2, b"error: cannot print the answer: No space left on device\n"),
        ("calc gpus >&-", 0, b""),
        ("calc oom - <&-", 2, b"error: no out-of-memory message here"),
        ("printf 'Tried to allocate 3.00 GiB \\xff' | calc oom - --json", 0, b""),
        ("calc params $'\\xff'", 2, b"error: unknown model '\\udcff'"),
    ],
)
def test_a_closed_or_broken_stream_is_no_traceback(line: str, status: int, said: bytes) -> None:
    code, _, err = shell(line)
    assert code == status, err
    assert err.startswith(said)
    assert err.count(b"\n") == bool(said)


def test_what_a_terminal_cannot_write_is_escaped() -> None:
    code, out, err = shell("calc fit llama-3.1-8b", PYTHONIOENCODING="latin-1")
    assert (code, err) == (0, b"")
    assert b"\\u2013" in out


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BrokenPipeError(), 0, ""),
        (OSError(28, "No space left on device"), 2, "error: cannot print the answer: No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["broken pipe", "full disk", "interrupt"],
)
def test_what_ends_the_printing_is_no_traceback(
    error: BaseException,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ends(argv: object) -> int:
        raise error

    monkeypatch.setattr("calc.cli._main", ends)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert main([]) == status
        print("lost")  # goes nowhere, and so does what was still to be flushed
    assert capsys.readouterr().err == said


def test_a_mark_asks_what_has_an_answer() -> None:
    with pytest.raises(InputError, match=r"unknown question 'check'; .*allowed: params"):
        answer(["check", "README.md"])


def test_the_text_says_the_peak_its_band_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.3-70b", "--gpus", "8", "--strategy", "fsdp2", "--gpu", "h100-sxm5-80gb"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "peak 154.6 GB in forward+backward (layers_bwd); a process needs 155.2 GB to 163.3 GB"
    assert lines[2] == "verdict: does not fit"


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp"])
def test_the_timeline_adds_up_to_the_peak(strategy: str) -> None:
    found = answer(
        ["estimate", "llama-3.2-3b", f"--gpus={1 if strategy == 'single' else 8}", "--strategy", strategy, "--timeline"]
    )
    running: dict[str, int] = {}
    for event in found["timeline"]:
        running[event["line"]] = running.get(event["line"], 0) + event["bytes"]
        assert event["total"] == sum(running.values()), event
    assert max(event["total"] for event in found["timeline"]) == found["peak"]["bytes"]
    assert max(moment["bytes"] for moment in found["curve"]) == found["peak"]["bytes"]
    for moment in found["curve"]:
        assert moment["bytes"] == sum(line["bytes"] for line in moment["lines"])
    assert {moment["layer"] for moment in found["curve"]} == {None, *range(28)}


def test_without_the_timeline_an_answer_has_none_and_its_text_shows_where_the_curve_is_highest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ["estimate", "llama-3.2-3b", "--gpus", "8"]
    assert "timeline" not in answer(run)
    assert answer(["estimate", "8B", "--gpus", "8", "--timeline"])["timeline"] is None
    main([*run, "--timeline"])
    shown = capsys.readouterr().out.partition("where the memory curve of the step is highest")[2]
    peak = answer(run)["peak"]
    assert shown.split()[:2] == [peak["instant"], f"{peak['bytes']:,}"]
