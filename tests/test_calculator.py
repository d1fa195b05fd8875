"""The calculator's answer: the figures of the estimate itself, links and commands that mean the run, safe text."""

import json
import re
import zipfile
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qsl

import html5lib
import pytest

from calc import cli, gpus
from calc.answers import runs
from calc.estimate import estimate
from calc.fit import verdict
from calc.job import Job
from calc.models import load
from calc.settings import CHOICES, SETTINGS
from calc.tables.calculator import calculator, options, query
from site_build.browser import PARTS, PYODIDE, pack
from site_build.form import form

ROOT = Path(__file__).parents[1]
H100 = gpus.get("h100-sxm5-80gb")
LLAMA = load("llama-3.1-8b")
RUNS = (
    Job.of(model=LLAMA),
    Job.of(model=LLAMA, world_size=8),
    Job.of(model=LLAMA, world_size=16, strategy="fsdp2", wrap="block+ends", no_sync=True, accumulation=4),
    Job.of(model=LLAMA, world_size=8, strategy="fsdp1", recipe="pure-bf16", optimizer="adamw8bit", seq_len=8191),
    Job.of(model=LLAMA, world_size=8, strategy="zero2", offload="optimizer", checkpointing="none", micro_batch=3),
    Job.of(model=LLAMA, world_size=4, strategy="ddp", lora_rank=8, lora_targets="q_proj,v_proj", base_dtype="nf4"),
    Job.of(model=load("70B"), world_size=8),
)


def tables(html: str) -> list[list[list[str]]]:
    """The cells of each table as text, its head first."""
    document = html5lib.parse(html, namespaceHTMLElements=False)
    return [
        [["".join(cell.itertext()) for cell in row if cell.tag in ("td", "th")] for row in table.iter("tr")]
        for table in document.iter("table")
    ]


def run_of(argv: list[str]) -> Job:
    return runs.run(cli.parser().parse_args(["estimate", *argv]))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(options(run).values()))
def test_the_link_and_the_command_of_a_run_mean_that_run(run: Job) -> None:
    given = [f"--{name}={value}" for name, value in options(run).items()]
    assert run_of([run.model.name, *given]) == run
    words = dict(parse_qsl(query(run, H100).removeprefix("?")))
    assert load(words.pop("model")).num_params == run.model.num_params
    assert words.pop("gpu") == H100.slug
    assert words == options(run)
    command = re.search(r"python -m calc estimate ([^<]*)", calculator(estimate(run), H100))[1].split()
    assert run_of(command) == run


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(options(run).values()))
def test_the_ledger_adds_up_to_the_estimate(run: Job) -> None:
    found = estimate(run)
    ledger = tables(calculator(found, H100))[0]
    exact = [row[-2].replace(",", "") for row in ledger[1:]]
    assert sum(map(int, exact[:-1])) == int(exact[-1])
    assert int(exact[-1]) == (found.peak.bytes if found.peak else found.states.total)


def test_each_alternative_says_what_its_own_page_says() -> None:
    found = estimate(Job.of(model=load("llama-3.3-70b"), world_size=8, micro_batch=2, checkpointing="none"))
    page = calculator(found, H100)
    links = re.findall(r'<a class="calc-run" href="\?([^"]*)">', page)
    rows = tables(page)[1][1:]
    assert len(links) == len(rows) > 8
    for link, (_, _, peak, said) in zip(links, rows, strict=True):
        words = dict(parse_qsl(link.replace("&amp;", "&")))
        card = gpus.get(words.pop("gpu"))
        other = estimate(run_of([words.pop("model"), *(f"--{name}={value}" for name, value in words.items())]))
        assert said == str(verdict(other, card)).capitalize()
        assert f"PyTorch allocates {peak} per GPU" in calculator(other, card)
        assert other.peak.bytes < found.peak.bytes or card.visible_bytes > H100.visible_bytes


def test_a_card_without_public_memory_and_a_bare_count_get_no_verdict() -> None:
    unread = next(gpu for gpu in gpus.known().values() if gpu.visible_bytes is None)
    assert "No verdict" in calculator(estimate(RUNS[1]), unread)
    assert "No verdict" in calculator(estimate(RUNS[-1]), H100)


def test_what_the_reader_wrote_stays_text(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(LLAMA.config) | {"model_type": "llama"}))
    kind, page = cli.calculated(["estimate", str(folder), "--gpus=2", f"--gpu={H100.slug}"])
    assert kind == "html"
    document = html5lib.parse(page, namespaceHTMLElements=False)
    assert list(document.iter("img")) == []
    assert [href for a in document.iter("a") if not (href := a.get("href", "")).startswith("?model=")] == []


def test_bad_input_is_the_line_that_the_command_line_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["lama", "--gpus=8"], ["70B"], ["70B", "--gpus=x"], ["70B", "--gpus=8", "--tpu"], ["70B", "--gpus=0"]):
        kind, line = cli.calculated(["estimate", *argv, f"--gpu={H100.slug}"])
        assert cli.main(["estimate", *argv]) == 2
        assert (kind, line) == ("error", capsys.readouterr().err.rstrip("\n"))


def test_the_form_has_a_field_for_every_option_and_its_words() -> None:
    document = html5lib.parse(form(cli.parser()), namespaceHTMLElements=False)
    labels = {label.get("for") for label in document.iter("label")}
    fields = {f.get("name"): f for tag in ("input", "select", "textarea") for f in document.iter(tag)}
    assert {field.get("id") for field in fields.values()} == labels
    offered = {
        action.option_strings[0].removeprefix("--")
        for action in cli.parser()._subparsers._group_actions[0].choices["estimate"]._actions
        if action.option_strings and action.dest not in ("help", "json", "gate", "timeline")
    }
    assert fields.keys() == offered | {"model", "config"}
    for name in CHOICES.keys() - {"reduce_dtype"}:
        words = {option.get("value") for option in fields[name.replace("_", "-")].iter("option")}
        assert words == set(CHOICES[name])
    assert {name.replace("_", "-") for name in SETTINGS} <= fields.keys()


def test_calc_travels_whole_and_the_same_each_time() -> None:
    packed = pack()
    assert packed == pack()
    names = set(zipfile.ZipFile(BytesIO(packed)).namelist())
    assert {"calc/cli.py", "calc/data/models.json", "calc/tables/calculator.py"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_pyodide_is_pinned_by_hash_and_nobodys_address_is_kept() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not [name for name, package in packages.items() if "resolved" in package]
    wanted = json.loads((ROOT / "package.json").read_text())["dependencies"]
    assert wanted == {"pyodide": packages["node_modules/pyodide"]["version"]}
    assert json.loads((PYODIDE / "package.json").read_text())["version"] == wanted["pyodide"]
    assert all((PYODIDE / part).is_file() for part in PARTS)
