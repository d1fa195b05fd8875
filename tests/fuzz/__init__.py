"""Hostile input, and what the command line may answer to it: an answer, or one line and status 2."""

from __future__ import annotations

import contextlib
import io
import signal
from pathlib import Path
from random import Random

from calc.cli import main
from tests.fuzz.inputs import KINDS

__all__ = ["KINDS", "attempt"]

#: Of the processor's time, so that a busy machine is no hang; twice what ten thousand layers on every card take.
HANGS_AFTER_SECONDS = 20


def attempt(kind: str, seed: str, folder: Path) -> int:
    """The exit status for one input; raises whatever a user would see as a traceback, or for a broken contract."""
    argv = KINDS[kind](Random(seed), folder)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_PROF, HANGS_AFTER_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(argv)
    except SystemExit as ended:  # argparse, after --help
        return int(ended.code or 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    said = [stream.buffer.getvalue().decode() for stream in (out, err) if not stream.flush()]
    told = said[1].splitlines()
    checks = argv[0] == "check"
    assert status in ((0, 1, 2) if checks else (0, 2)), argv
    if status == 2 and not checks:
        assert not said[0], (argv, said)
        assert len(told) == 1, (argv, said[1])
    assert all(line.startswith(("error: ", "# ")) for line in told), (argv, said[1])
    return status


def _hang(number: int, frame: object) -> None:
    raise RuntimeError(f"no answer after {HANGS_AFTER_SECONDS} s")
