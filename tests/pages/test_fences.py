"""What a fenced block may look like, and that anything else is refused with its line."""

import pytest

from site_build.fences import FenceError, read_fences


def test_each_block_is_read_with_its_line_options_and_dedented_text() -> None:
    page = (
        "Text and `inline`.\n\n"
        '```python exec="1" source="above"\nprint(1)\n```\n\n'
        '=== "Tab"\n\n    ````text title="a file"\n    ```\n      deeper\n    ````\n'
    )
    shown, nested = read_fences(page)
    assert (shown.line, shown.language, dict(shown.options)) == (3, "python", {"exec": "1", "source": "above"})
    assert (shown.source, shown.executed) == ("print(1)\n", True)
    assert (nested.line, nested.source, nested.executed) == (9, "```\n  deeper\n", False)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('python exce="1"', "unknown fence option 'exce'"),
        ('python exec="yes please"', "exec='yes please' is not of the form"),
        ('python exec="1" linenums="1"', "unknown fence option 'linenums'"),
        ('python exec="1" exec="1"', "given twice"),
        ("python exec=1", "cannot read the fence header"),
        ('python  exec="1"', "cannot read the fence header"),
        ("{.python}", "cannot read the fence header"),
        ("", "cannot read the fence header"),
        ("pyhton", "unknown fence language 'pyhton'"),
        ("Python", "cannot read the fence header"),
        ('json exec="1"', "only python blocks are executed"),
    ],
)
def test_a_bad_header_is_refused_with_its_line(header: str, message: str) -> None:
    with pytest.raises(FenceError, match=r"^line 3: ") as refusal:
        read_fences(f"\n\n```{header}\n1\n```\n")
    assert message in str(refusal.value)


def test_an_unclosed_block_is_refused() -> None:
    with pytest.raises(FenceError, match="line 1: this fence is never closed with ````"):
        read_fences("````python\n1\n```\n")
