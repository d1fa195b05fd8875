"""The alarm, proved: each fault is planted in a scratch copy, and the message that tells it is read.

A guard that was never seen to fail guards nothing. Each message also names the command that mends
the fault or tries it again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.planted

ROOT = Path(__file__).parents[2]
HOME = "docs/index.md"


def python(folder: Path, *argv: str) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1", "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run([sys.executable, "-m", *argv], cwd=folder, env=env, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def notice(folder: Path, *chosen: str) -> tuple[int, str]:
    unused = ("cacheprovider", "playwright", "base_url", "hypothesispytest")  # each takes a while to load
    return python(folder, "pytest", "-q", *(f"-pno:{plugin}" for plugin in unused), *chosen)


def append(text: str) -> Callable[[str], str]:
    return lambda old: f"{old}\n{text}\n"


def block(header: str, source: str) -> Callable[[str], str]:
    return append(f"```{header}\n{source}\n```")


def swap(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert text.count(old) == 1, f"{old!r} is no longer there once: plant this fault elsewhere"
        return text.replace(old, new)

    return change


def without_last(text: str) -> str:
    return json.dumps(json.loads(text)[:-1])


def one_row_less(name: str) -> Callable[[str], str]:
    return append(f'_whole = {name}\n\n\ndef {name}():\n    return _whole().rpartition("\\n")[0]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done to which file, which tests must notice, and what they must say."""

    file: str
    plant: Callable[[str], str]
    noticed_by: tuple[str, ...]
    says: tuple[str, ...]


PROSE = ("tests/test_docs.py", "-k", "marked_and_true")
KEPT = ("tests/test_docs.py", "-k", "what_is_kept")
FAULTS = {
    "AdamW's second moment halved": Fault(
        file="calc/optimizers/base.py",
        plant=swap(" * prod(shape) * itemsize\n", " * prod(shape) * itemsize * 3 // 4\n"),
        noticed_by=("tests/test_docs.py", "calc/optimizers/__init__.py"),
        says=(
            r"docs/index\.md:\d+:\d+: said 141\.1 GB, computed 123\.5 GB \(estimate llama-3\.3-70b .*run make numbers",
            r"run make golden",
            r"134217728",
        ),
    ),
    "a GPU's memory changed": Fault(
        file="calc/data/gpus.json",
        plant=swap('"visible_bytes": 85028896768', '"visible_bytes": 80028896768'),
        noticed_by=("tests/test_docs.py",),
        says=(r"said 85\.03 GB, computed 80\.03 GB .*run make numbers", r"run make golden"),
    ),
    "a stale mark": Fault(
        file=HOME,
        plant=append("It has 7.1 GB<!--= params 70B : params_total -->."),
        noticed_by=PROSE,
        says=(
            r"docs/index\.md:\d+:8: said 7\.1 GB, computed 70\.0 GB \(params 70B : params_total\); run make numbers",
        ),
    ),
    "a mark that asks nothing": Fault(
        file=HOME,
        plant=append("It has 7.1 GB<!--= params 70B : params_totals -->."),
        noticed_by=PROSE,
        says=(r"did you mean 'params_total'\? .*by hand, then run make numbers",),
    ),
    "an unmarked quantity": Fault(
        file="README.md",
        plant=append("It takes 7 GB."),
        noticed_by=PROSE,
        says=(r"README\.md:\d+:10: 7 GB has no mark.*then run make numbers",),
    ),
    "a source that nobody knows": Fault(
        file=HOME,
        plant=append("They say 7 GB<!--~ text-z -->."),
        noticed_by=PROSE,
        says=(r"unknown source 'text-z'; did you mean .*run make numbers",),
    ),
    "a misspelt fence option": Fault(
        file=HOME,
        plant=block('python exec="1" sesion="a"', "print(1)"),
        noticed_by=(HOME,),
        says=(r"line \d+: unknown fence option 'sesion'; allowed here: .*\n.*make test",),
    ),
    "a fence of unknown language": Fault(
        file=HOME,
        plant=block("pyhton", "print(1)"),
        noticed_by=(HOME,),
        says=(r"line \d+: unknown fence language 'pyhton'; known: .*\n.*make test",),
    ),
    "a raising block": Fault(
        file=HOME,
        plant=block('python exec="1"', "1 / 0"),
        noticed_by=(HOME,),
        says=(r"ZeroDivisionError", r"make test"),
    ),
    "an output behind the page's back": Fault(
        file=HOME,
        plant=block('python exec="1"', 'import sys\nsys.stdout.write("lost")'),
        noticed_by=(HOME,),
        says=(r"missing from the page: 'lost'", r"make test"),
    ),
    "a command that prints something else": Fault(
        file=HOME,
        plant=block("console", "$ python -m calc params 70B\n71B"),
        noticed_by=(HOME,),
        says=(r"\$ python -m calc params 70B\nprints\n", r"make test"),
    ),
    "a make target that is gone": Fault(
        file="README.md",
        plant=block("sh", "make cite"),
        noticed_by=("README.md",),
        says=(r"the Makefile has no target cite", r"make test"),
    ),
    "a kept output out of date": Fault(
        file="tests/golden/index.md",
        plant=append("more"),
        noticed_by=KEPT,
        says=(r"look at the difference, then run make golden",),
    ),
    "a row of a registry deleted": Fault(
        file="calc/tables/reference.py",
        plant=one_row_less("gpus_table"),
        noticed_by=("tests/test_docs_registries.py",),
        says=(r"docs/reference/gpus\.md .*google-tpu-v7x.*then run make golden",),
    ),
    "a record of a registry deleted": Fault(
        file="calc/data/recipes.json",
        plant=without_last,
        noticed_by=(*KEPT[:1], "tests/test_docs_registries.py"),
        says=(r"run make golden", r"a source that nothing uses: .*'megatron-dist-optimizer'"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_alarm_goes_off(scratch: Path, name: str) -> None:
    fault = FAULTS[name]
    file = scratch / fault.file
    file.write_text(fault.plant(file.read_text()))
    code, said = notice(scratch, *fault.noticed_by)
    assert code == 1, said
    for message in fault.says:
        assert re.search(message, said), f"{message!r} is not in:\n{said}"


def test_there_is_no_alarm_without_a_fault(scratch: Path) -> None:
    chosen = {name for fault in FAULTS.values() for name in fault.noticed_by if "." in name}
    code, said = notice(scratch, *sorted(chosen))
    assert code == 0, said


def test_the_named_commands_mend_what_they_say(scratch: Path) -> None:
    home, kept = scratch / HOME, scratch / "tests/golden/index.md"
    before, table = home.read_text(), kept.read_text()
    home.write_text(before + "\nIt has 70.0 GB<!--= params 70B : params_total -->.\n")
    true = home.read_text()
    home.write_text(true.replace("70.0 GB<!--= params 70B", "7.1 GB<!--= params 70B"))
    code, said = python(scratch, "calc", "check", "--fix", HOME)
    assert code == 0, said
    assert "7.1 GB → 70.0 GB in: It has 7.1 GB." in said
    assert home.read_text() == true
    kept.write_text("old")
    (scratch / "tests/golden/gone.md").write_text("old")
    code, said = python(scratch, "tests.examples")
    assert code == 0, said
    assert kept.read_text() == table
    assert not (scratch / "tests/golden/gone.md").exists()


@pytest.mark.parametrize("flags", [("--quiet",), ("--quiet", "--strict"), ("--verbose",)], ids=" ".join)
def test_the_build_ends_at_a_raising_block_whatever_its_flags(scratch: Path, flags: tuple[str, ...]) -> None:
    home = scratch / HOME
    home.write_text(block('python exec="1"', "1 / 0")(home.read_text()))
    code, said = python(scratch, "mkdocs", "build", *flags)
    assert code == 1, said
    assert re.search(r"index\.md: .*ZeroDivisionError", said, re.DOTALL), said
    assert "make site" in said
    assert not (scratch / "site" / "index.html").exists()


def test_the_built_site_is_looked_at(scratch: Path) -> None:
    """What only the built page shows: a dead link that a block printed, and a request to others."""
    home = scratch / HOME
    text = block('python exec="1"', 'print("[there](nothing-such/)")')(home.read_text())
    home.write_text(append('<script src="https://cdn.example/a.js"></script>')(text))
    code, said = notice(scratch, "tests/pages/test_built_site.py")
    assert code == 1, said
    for message in (r"index\.html: https://cdn\.example/a\.js", r"nothing-such", r"make test"):
        assert re.search(message, said), f"{message!r} is not in:\n{said}"


def test_the_build_ends_at_a_failing_notebook_cell(scratch: Path) -> None:
    if "mkdocs-jupyter" not in (scratch / "mkdocs.yml").read_text():
        pytest.skip("the site has no notebook")
    notebooks = sorted((scratch / "docs").rglob("*.ipynb"))
    assert notebooks, "mkdocs-jupyter is configured, but there is no notebook"
    notebook = json.loads(notebooks[0].read_text())
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["source"] = ["1 / 0"]
    notebooks[0].write_text(json.dumps(notebook))
    code, said = python(scratch, "mkdocs", "build", "--strict")
    assert code != 0, said
    assert "ZeroDivisionError" in said
