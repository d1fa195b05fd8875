"""The documents are true: every fence collected, every number recomputed, every output as kept."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from markdown_exec._internal.main import validator

from calc import check, cli
from site_build.fences import _EXECUTED, read_fences
from tests.examples import DOCS, GOLDEN, MODULES, PAGES, ROOT, SYBIL, golden, printed


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


#: What was true when it was written is not recomputed: it is history.
HISTORY = (ROOT / "CHANGELOG.md", DOCS / "changelog.md")


@pytest.mark.parametrize("document", [page for page in PAGES if page not in HISTORY], ids=name)
def test_every_number_is_marked_and_true(document):
    found = check.check(document.read_text(), file=name(document), answer=cli.answer, mend="make numbers")
    faults = [str(finding) for finding in found if not finding.ok]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("document", PAGES, ids=name)
def test_blocks_print_what_is_kept(document):
    kept = golden(document).read_text() if golden(document).is_file() else ""
    assert (printed(document) + "\n").lstrip() == kept, "look at the difference, then run make golden"


def test_no_kept_output_without_its_page():
    orphans = set(GOLDEN.rglob("*.*")) - {golden(page) for page in PAGES}
    assert not orphans, "run make golden"


@pytest.mark.parametrize("document", PAGES, ids=name)
def test_no_fence_is_passed_over(document):
    """Counted twice: by Sybil's lexer, and by the reader that the build uses."""
    examples = SYBIL.parse(document).examples()
    collected = [example.line for example in examples if example.parsed is not None]
    assert collected == [fence.line for fence in read_fences(document.read_text())]


def test_pytest_is_given_every_document(request):
    """`testpaths` reaches each page and module; only asked of a whole run."""
    if request.config.args_source.name != "TESTPATHS":
        pytest.skip("part of the tests were chosen on the command line")
    given = {Path(item.path) for item in request.session.items}
    with_examples = {path for path in (*PAGES, *MODULES) if list(SYBIL.parse(path).examples())}
    assert with_examples <= given


def test_each_fence_option_is_one_that_the_library_reads():
    """markdown-exec passes over an option it does not know, so the library itself is asked for them."""

    class Asked(dict):
        def pop(self, name, *default):
            asked.add(name)
            return super().pop(name, *default)

    asked = set()

    validator("python", Asked(exec="1"), {}, {}, None)
    assert _EXECUTED.keys() - {"title"} <= asked


def test_bad_fences_are_refused(tmp_path):
    for header in (
        'python exce="1"',
        "pyhton",
        'python exec="1" sources="above"',
        'json exec="1"',
        'python exec="yep"',
    ):
        page = tmp_path / "page.md"
        page.write_text(f"# Title\n\n```{header}\nprint(1)\n```\n")
        (example,) = SYBIL.parse(page).examples()
        with pytest.raises(AssertionError, match="line 3: "):
            example.evaluate()


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ('python exec="1"\n1 / 0', "ZeroDivisionError"),
        ('python exec="1"\nimport sys\nsys.stdout.write("x")', "missing from the page: 'x'"),
        ("python\nassert 1 == 2, 'one is not two'", "one is not two"),
        ("python\nimport torch\n)", "unmatched"),
        ("console\n$ python -m calc params 70B\n71B", "and not"),
        ("console\n$ ls", "only commands of calc"),
        ("console\n70B", "begins with"),
        ("sh\nmake nothing-such", "no target nothing-such"),
        ("sh\nif", "syntax error"),
        ("sh\npython -m calc params llama-3.3-71b", "did you mean"),
        ("json\n{", "Expecting"),
        ("yaml\na: [", "expected"),
        ("toml\na", "Expected"),
        ("markdown\n7 GB", "has no mark"),
    ],
)
def test_a_block_that_is_wrong_fails(tmp_path, block, fault):
    page = tmp_path / "page.md"
    page.write_text(f"```{block}\n```\n")
    (example,) = SYBIL.parse(page).examples()
    with pytest.raises(BaseException, match=fault):
        example.evaluate()


def test_blocks_share_a_namespace_only_within_a_session(tmp_path):
    page = tmp_path / "page.md"
    for option, fails in (("", True), (' session="a"', False)):
        page.write_text(f'```python exec="1"{option}\nx = 1\n```\n\n```python exec="1"{option}\nprint(x)\n```\n')
        first, second = SYBIL.parse(page).examples()
        first.evaluate()
        with pytest.raises(AssertionError, match="NameError") if fails else contextlib.nullcontext():
            second.evaluate()


def test_the_hooks_are_local_and_ask_the_command_line():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    offered = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {repo["repo"] for repo in hooks} == {"local"}
    for hook in (*hooks[0]["hooks"], *offered):
        _, *argv = hook["entry"].split()
        if "check" in argv and "ruff" not in argv:
            argv = argv[argv.index("check") :]
            assert cli.parser().parse_args([*argv, "README.md"]).command == "check"
    assert {hook["entry"].split()[0] for hook in offered} == {"sixteen-bytes"}
