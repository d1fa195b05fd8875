"""`calc check`: marks are recomputed by lookup alone, and nothing but digits is ever rewritten."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from calc import check, cli
from calc.units import InputError
from site_build.fences import read_fences

ROOT = Path(__file__).parents[1]
ZERO3 = "estimate llama-3.3-70b gpus=8 strategy=zero3"
MARK = f"146.3 GB<!--= {ZERO3} : one_line_bytes -->"


def findings(text: str, **given) -> tuple[check.Finding, ...]:
    return check.check(text, file="page.md", answer=cli.answer, **given)


def only(text: str, **given) -> check.Finding:
    (found,) = findings(text, **given)
    return found


@pytest.mark.parametrize(
    "text",
    [
        MARK,
        f"It needs about **{MARK[:8]}**{MARK[8:]} per GPU.",
        f"It needs **146.3 GB** per GPU<!--= {ZERO3} : one_line_bytes -->.",
        f'"about 146 GB"<!--= {ZERO3} : one_line_bytes -->',
        f"136.3 GiB<!--= {ZERO3} : one_line_bytes -->",
        f"146,342,440,704<!--= {ZERO3} : one_line_bytes -->",
        "70,553,706,496<!--= params llama-3.3-70b : params_total -->",
        "70553706496<!--= params llama-3.3-70b : params_total -->",
        "70.6 billion parameters<!--= params llama-3.3-70b : params_total -->",
        "8 GPUs<!--= estimate 70B gpus=8 : run.world_size -->",
        "16 bytes per parameter<!--= estimate 70B gpus=1 : states_bytes / params 70B : params_total -->",
        "16.00 B/param<!--= estimate 70B gpus=1\n: states_bytes\n/ params 70B : params_total -->",
        "12.5 %<!--= estimate 70B gpus=8 strategy=zero3 : states.weights / estimate 70B gpus=1 : states.weights -->",
        "0.125×<!--= estimate 70B gpus=8 strategy=zero3 : states.weights / estimate 70B gpus=1 : states.weights -->",
        "-980.0 GB<!--= estimate 70B gpus=8 : states_bytes - estimate 70B gpus=1 : states_bytes -->",
        "1,260.0 GB<!--= estimate 70B gpus=8 : states_bytes + estimate 70B gpus=1 : states_bytes -->",
        "80 GB<!--= gpus : [slug=h100-sxm5-80gb].label_bytes -->",
        "80 GB<!--= gpus : [slug=h100-sxm5-80gb].label_bytes -->\r\n| a |\r\n|---|\r\n",
        "# 70B needs 146&nbsp;GB<!--= " + f"{ZERO3} : one_line_bytes -->",
    ],
)
def test_what_is_true_passes(text):
    found = only(text)
    assert found.kind == "true", found.message
    assert found.said == found.computed


def test_a_stale_number_is_told_with_its_place_and_the_command_that_mends_it():
    found = only("Two lines.\n\nIt is 146.2 GB" + MARK[8:], mend="make numbers")
    assert str(found) == (f"page.md:3:7: said 146.2 GB, computed 146.3 GB ({ZERO3} : one_line_bytes); run make numbers")
    assert found.sentence == "It is 146.2 GB"
    assert not found.ok


def test_the_number_is_written_as_the_text_writes_it():
    total = "<!--= params llama-3.3-70b : params_total -->"
    for said, computed in {
        "1 tensors": "70,553,706,496 tensors",
        "1,000": "70,553,706,496",
        "1000": "70553706496",
        "1.00 GB": "70.55 GB",
        "1.000 GiB": "65.708 GiB",
        "9 billion": "71 billion",
        "5 %": "7,055,370,649,600 %",
    }.items():
        assert only(said + total).computed == computed


def test_a_source_must_be_known_or_an_address():
    cited = "53 GB<!--~ text-c -->"
    assert only(cited).kind == "cited"
    assert only("53 GB<!--~ https://example.org/a -->").kind == "cited"
    found = only(cited.replace("text-c", "text-d"))
    assert found.kind == "unreadable"
    assert "unknown source 'text-d'; did you mean 'text-" in found.message


@pytest.mark.parametrize(
    "quantity",
    ["80 GB", "1.5 kB", "79.19 GiB", "2 TB", "81,559 MiB", "16 bytes per parameter", "2 B/param",
     "2.5 bytes/parameter", "**80** GB", "80&nbsp;GB", "80-GB", "3 bytes a parameter"],
)  # fmt: skip
def test_an_unmarked_quantity_of_bytes_is_an_error(quantity):
    found = only(f"# Title\n\nIt takes {quantity} of memory.\n")
    assert (found.kind, found.line, found.column) == ("unmarked", 3, 10 + quantity.startswith("*") * 2)


@pytest.mark.parametrize(
    "text",
    ["an 80GB card", "8 GPUs, 128 layers, 900 GB/s, 3 bits per parameter, 5 s", "`80 GB`", "``a ` 80 GB``",
     "---\ndescription: 80 GB\n---\n", "```text\n80 GB\n```", "    - ~~~\n      80 GB\n      ~~~\n",
     "<!-- 80 GB -->", '<img alt="80 GB">', "<code>80 GB</code>", "<math><mn>80</mn> 80 GB</math>", "$80 GB$",
     "$$\n80 GB\n$$", "[a](https://example.org 80 GB)", "https://example.org/80 GB-card".replace(" ", "%20"),
     "````markdown\n```\n80 GB\n```\n80 GB\n````\n"],
)  # fmt: skip
def test_what_is_no_prose_is_not_looked_at(text):
    assert findings(text) == ()


def test_marks_in_code_are_documentation_of_marks():
    assert findings(f"`{MARK}`\n\n```markdown\n{MARK}\n```\n") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"---\ntitle: {MARK}\n---\n", "front matter"),
        (f"| a | {MARK} |\n", "table cells"),
        (f"a | {MARK}\n", "table cells"),
        (MARK.replace("<!--=", "<!-- ="), "space after <!--"),
        (MARK.replace("-->", ""), "never closed"),
        ("none" + MARK[8:], "no number"),
        (f"34 layers. {MARK[8:]}", "no number"),
        ("7 KB<!--= params 70B : params_total -->", "unknown unit 'KB'; allowed: B, kB, MB"),
        ("7<!--= -->", "no query"),
        ("7<!--= params 70B params_total -->", "no query"),
        ("7<!--= params 70B : -->", "no query"),
        ("7<!--= params 70B : name -->", "not a number"),
        ("7<!--= estimate 70B gpus=1 : one_line_bytes -->", "is null, not a number"),
        ("7<!--= params 70B : tensors -->", "not a number"),
        ("7<!--= params 70B : params_totals -->", "did you mean 'params_total'?"),
        ("7<!--= params 70B : params_total.x -->", "no parts"),
        ("7<!--= params 70B : params_total[[ -->", "cannot read the path"),
        ("7<!--= gpus : 99999999999999999999 -->", "unknown position"),
        ("7<!--= gpus : [slug=h100-sxm-80gb].label_bytes -->", "did you mean 'h100-sxm5-80gb'?"),
        ("7<!--= params llama-3.3-71b : params_total -->", "did you mean 'llama-3.3-70b'?"),
        ("7<!--= estimate 70B gpus=0 : states_bytes -->", "world_size"),
        ("7<!--= params 70B : params_total / estimate 70B gpus=1 : one_line_bytes -->", "not a number"),
        ("7<!--= params 70B : params_total / estimate llama-3.1-8b gpus=1 : one_line.bucket -->", "divides nothing"),
        ("7<!--= params 70B : params_total + params 70B : params_total + params 70B : params_total -->", "two joined"),
        ("7<!--= params 70B : params_total * 2 -->", "no query"),
    ],
)
def test_what_cannot_be_read_is_told_and_left_alone(text, reason):
    found = only(text)
    assert found.kind == "unreadable"
    assert reason in found.message
    assert "\n" not in found.message


@pytest.mark.parametrize(
    "query",
    [
        "check README.md : 0.line",
        "oom - : requested_bytes",
        "params help=me : params_total",
        "params /etc/passwd : params_total",
        "params ../config.json : params_total",
        "params ~/config.json : params_total",
        "params --json : params_total",
        "params -h : params_total",
        "params $(id) : params_total",
        "__import__('os').system('id') : x",
        "params 70B : __class__.__mro__",
        "params 70B : params_total ** 9 ** 9 ** 9",
        "params 9" + "9" * 300 + " : params_total",
        "params 1e400 : params_total",
        "params nan : params_total",
        "estimate 70B gpus=1000000000000000000000 : states_bytes",
        "params " + "a/" * 150 + "a : x",
        "params 70B : " + "a." * 150 + "a",
        "params 70B : " + "[" * 150,
        "params 70B : x" + " " * 800,
    ],
)
def test_a_hostile_mark_is_refused(query):
    assert only(f"7<!--= {query} -->").kind == "unreadable"


@pytest.mark.parametrize("value", [True, None, "7", float("nan"), float("inf"), [], {}])
def test_only_a_number_is_a_number(value):
    with pytest.raises(InputError, match="not a number"):
        check.query("params 70B : a", lambda argv: {"a": value})


def test_arithmetic_is_exact():
    third = check.query("a : x / b : x", lambda argv: {"x": 1 if argv[0] == "a" else 3})
    assert third == Fraction(1, 3)
    assert check.query("a : x", lambda argv: {"x": 0.1}) == Fraction(1, 10)


def test_a_question_asked_twice_is_answered_once():
    asked = []

    def answer(argv):
        asked.append(argv)
        return {"x": 7}

    assert len(check.check("7<!--= a : x --> and 7<!--= a : x -->", file="", answer=answer)) == 2
    assert asked == [("a",)]


def test_an_unclosed_fence_would_hide_what_follows():
    with pytest.raises(InputError, match="the fence opened in line 2 is never closed"):
        findings("a\n```python\n80 GB\n")


@given(
    st.lists(
        st.sampled_from(
            ["`", "``", "```", "~~~", "\n", "\n\n", "$", "$$", "<!--", "-->", "<!--=", "<!--~", "<", ">", "<code>",
             "</code>", "7", " ", "GB", "a", "](", "(", ")", "https://", "\\", "\r", "| ", "- ", "> ", "params 70B : ",
             "params_total", "---\n", "[", "]", "*", "/", "\u2028", "\x0b"]
        ),
        max_size=60,
    ).map("".join)
)  # fmt: skip
@example("<!--=" * 30)
@example("`" * 9 + "``$$<!--=-->")
def test_no_text_is_a_traceback_and_prose_keeps_every_place(text):
    try:
        visible, _ = check.prose(text)
    except InputError:
        return
    assert len(visible) == len(text)
    for found in findings(text):
        assert found.kind in ("true", "stale", "cited", "unmarked", "unreadable")


@pytest.mark.parametrize(
    "unit",
    ["<!--", "<!--=", "`", "`a``b", "``` ", "$", "$a ", "$$a", "<code>", "<a ", "](", "1,", "1 ", "1 GB ", "-1", "\\",
     "<!--= a -->", "7<!--= a : b -->", "- ", "> ", "a b ", "\n---\n", "https://"],
)  # fmt: skip
def test_a_file_costs_what_it_weighs(unit):
    """Twice the text takes about twice the steps; a quadratic scan would not end on this."""
    with contextlib.suppress(InputError):
        findings(unit * (200_000 // len(unit)))


# --- files ----------------------------------------------------------------------------------------


def check_file(path: Path, **given):
    return check.check_file(str(path), answer=cli.answer, **given)


STALE = MARK.replace("146.3", "9.9")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_fix_rewrites_the_digits_and_nothing_else(tmp_path, newline, bom):
    page = tmp_path / "page.md"
    text = newline.join([f"{bom}# Tîtle", "", f"A {STALE} b, <!-- = bad --> 7 GB", f"`{STALE}`", ""])
    page.write_bytes(text.encode())
    page.chmod(0o640)
    left, changed = check_file(page, fix=True)
    assert page.read_bytes() == text.replace("9.9", "146.3", 1).encode()
    assert page.stat().st_mode & 0o777 == 0o640
    assert [(found.said, found.computed) for found in changed] == [("9.9 GB", "146.3 GB")]
    assert [found.kind for found in left] == ["true", "unreadable", "unmarked"]
    assert list(tmp_path.iterdir()) == [page]


def test_a_file_that_is_true_is_not_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(MARK)
    os.utime(page, ns=(1, 1))
    assert check_file(page, fix=True)[1] == ()
    assert page.stat().st_mtime_ns == 1


def test_a_link_stays_a_link(tmp_path):
    target = tmp_path / "target.md"
    target.write_text(STALE)
    (tmp_path / "link.md").symlink_to(target)
    check_file(tmp_path / "link.md", fix=True)
    assert (tmp_path / "link.md").is_symlink()
    assert target.read_text() == MARK


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_notebooks_are_checked_in_their_markdown_cells(tmp_path, indent, ascii_only):
    notebook = {
        "cells": [
            {"cell_type": "code", "source": ["'80 GB'"], "outputs": [{"text": ["80 GB"]}]},
            {"cell_type": "markdown", "source": ['# \U0001f600 "é"\t\\\n', f"It is {STALE}\n", "80GB"]},
            {"cell_type": "markdown", "source": f"7 {MARK}", "metadata": {}},
        ],
        "nbformat": 4,
    }
    page = tmp_path / "page.ipynb"
    text = json.dumps(notebook, indent=indent, ensure_ascii=ascii_only) + "\n"
    page.write_text(text)
    left, changed = check_file(page, fix=True)
    assert [found.kind for found in left] == ["true", "true"]
    assert page.read_text() == text.replace("9.9", "146.3")
    (stale,) = changed
    assert text.splitlines()[stale.line - 1][stale.column - 1 :].startswith("9.9 GB")


def test_half_a_character_in_a_notebook_can_be_told(tmp_path):
    page = tmp_path / "page.ipynb"
    source = f"\ud800 {STALE} 7<!--= params \udfff : x -->"
    page.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": source}]}))
    left, changed = check_file(page, fix=True)
    assert "\\ud800 146.3 GB<!--=" in page.read_text()
    assert [found.kind for found in left] == ["true", "unreadable"]
    "".join(str(found) for found in (*left, *changed)).encode()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("page.md", b"\xff\xfe1\x00", "not valid UTF-8"),
        ("page.md", b"a\0b", "NUL"),
        ("page.md", b"a" * (check.MAX_FILE_BYTES + 1), "not a file of at most 10,000,000 bytes"),
        ("page.md", b"```\n", "never closed"),
        ("page.md", b"1 GB " * 30_000, "more than 20,000 quantities of bytes"),
        ("page.md", b"1<!--= a -->" * 30_000, "more than 10,000 marked numbers"),
        ("page.ipynb", b"{", "not a notebook"),
        ("page.ipynb", b'{"a": 1, "a": "b"}', "not a notebook"),
        ("page.ipynb", b"[" * 100_000, "not a notebook"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name, content, reason):
    page = tmp_path / name
    page.write_bytes(content)
    with pytest.raises(InputError) as error:
        check_file(page, fix=True)
    assert str(error.value).startswith(f"{page}: ")
    assert reason in str(error.value)
    assert page.read_bytes() == content


def test_what_is_no_file_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "loop.md").symlink_to(tmp_path / "loop.md")
    for path in (tmp_path, tmp_path / "none.md", tmp_path / "pipe.md", tmp_path / "loop.md", tmp_path / "a\0b"):
        with pytest.raises(InputError):
            check_file(path)


def test_what_cannot_be_replaced_keeps_its_text(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(STALE)

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        check_file(page, fix=True)
    assert page.read_text() == STALE
    assert list(tmp_path.iterdir()) == [page]


# --- the command ----------------------------------------------------------------------------------


def test_one_bad_file_keeps_no_other_from_being_checked_and_mended(tmp_path, capsys):
    for name, content in {"a.md": b"\xff", "b.md": STALE.encode(), "c.ipynb": b"{", "d.md": MARK.encode()}.items():
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / name) for name in ("a.md", "b.md", "c.ipynb", "d.md", "e.md")]
    assert cli.main(["check", "--fix", *files]) == 2
    out, err = capsys.readouterr()
    assert out == f"{files[1]}:1: 9.9 GB → 146.3 GB in: 9.9 GB\n"
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["error", files[at]] for at in (0, 2, 4)]
    assert (tmp_path / "b.md").read_text() == MARK
    assert (tmp_path / "a.md").read_bytes() == b"\xff"


@pytest.mark.parametrize(
    ("text", "options", "status"),
    [
        (MARK, [], 0),
        ("7 GB", [], 1),
        ("7 GB", ["--only-marked"], 0),
        (STALE, ["--only-marked"], 1),
        (STALE, ["--fix"], 0),
        ("7 GB<!--= params 70B : x -->", ["--only-marked", "--fix"], 2),
        (f"{STALE} and 7 GB<!-- = bad -->", [], 2),
        ("no number", [], 0),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_status_says_true_stale_or_unreadable(tmp_path, capsys, text, options, status, as_json):
    page = tmp_path / "page.md"
    page.write_text(text)
    assert cli.main(["check", str(page), *options, *(["--json"] if as_json else [])]) == status
    out, err = capsys.readouterr()
    assert err == ""
    if as_json:
        found = json.loads(out)
        assert all(finding["ok"] for finding in found) == (status == 0)
        assert {key for finding in found for key in finding} <= {
            "file", "line", "column", "kind", "said", "computed", "ok", "message",
        }  # fmt: skip
    else:
        assert bool(out) == (status > 0 or options == ["--fix"])


# --- the page's example, in a repository of its own -------------------------------------------------


@pytest.fixture
def other(tmp_path):
    """A repository of somebody else, where `sixteen-bytes` is installed."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sixteen-bytes"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m calc "$@"\n')
    program.chmod(0o755)

    def run(line):
        environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": os.devnull}
        ended = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path / "repository", env=environment, capture_output=True, text=True
        )
        return ended.returncode, ended.stdout + ended.stderr

    (tmp_path / "repository").mkdir()
    assert run("git init -q .")[0] == 0
    return run, tmp_path / "repository"


def test_the_example_of_the_page_is_true_from_the_first_line_to_the_last(other):
    run, folder = other
    page = (ROOT / "docs" / "numbers-that-cannot-go-stale.md").read_text()
    blocks = {fence.options.get("title", fence.language): fence.source for fence in read_fences(page)}
    readme = folder / "README.md"
    readme.write_text(blocks["README.md"])
    (folder / "code.py").write_text("# 7 GB<!--= never : read -->\n")
    ((hook,),) = (repo["hooks"] for repo in yaml.safe_load(blocks[".pre-commit-config.yaml"])["repos"])
    assert hook["types_or"] == ["markdown", "jupyter"]
    run("git add .")
    check_all = f"{hook['entry']} $(git ls-files '*.md' '*.ipynb')"
    assert run(check_all) == run(blocks["sh"]) == (0, "")

    before, after = (line[1:] for line in blocks["change"].splitlines())
    assert before in blocks["README.md"]
    readme.write_text(blocks["README.md"].replace(before, after))
    assert run(check_all) == (1, blocks["refused"])
    assert run(blocks["sh"]) == (123, blocks["refused"])  # as xargs says it
    assert run("sixteen-bytes check --fix README.md") == (0, blocks["mended"])
    assert readme.read_text() == blocks["README.md"].replace(before, after.replace("141.1", "70.6"))
    assert run(check_all) == (0, "")


def test_the_hooks_for_others_take_files_and_mend_them(other):
    run, folder = other
    check_only, mend = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (folder / "a b.md").write_text(f"{STALE} and 7 GB")
    for hook, status, text in ((check_only, 1, STALE), (mend, 0, MARK), (check_only, 0, MARK)):
        assert run(shlex.join([*hook["entry"].split(), *hook["args"], "a b.md"]))[0] == status
        assert (folder / "a b.md").read_text() == f"{text} and 7 GB"
