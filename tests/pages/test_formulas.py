"""TeX becomes MathML or an error, money stays money, and number marks leave no trace."""

import pytest
from markdown import markdown
from mkdocs.exceptions import BuildError

from site_build.formulas import mathml


def published(text: str) -> str:
    return str(markdown(text, extensions=["site_build.formulas", "site_build.marks", "tables"]))


def test_a_formula_in_a_line_and_one_on_its_own() -> None:
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">' in published("so $12/N$ bytes")
    own = published("$$\n16 P\n$$")
    assert own.startswith('<div class="formula"><math')
    assert 'display="block"' in own


@pytest.mark.parametrize("text", ["from $5 to $10", "costs $5", "`$x$`", r"\$x\$", "US$5 or US$6"])
def test_money_and_code_stay_as_they_are(text: str) -> None:
    assert "<math" not in published(text)


def test_a_grouped_number_is_one_number() -> None:
    assert "<mn>70,553,706,496</mn>" in mathml("70{,}553{,}706{,}496", display=False)


def test_an_upright_unit_is_one_word() -> None:
    assert "<mtext>GB</mtext>" in mathml(r"\mathrm{GB}", display=False)


@pytest.mark.parametrize("tex", [r"\nosuchcommand{x}", r"\frac{1", r"a \bogus b", r"\begin{nothing} a \end{nothing}"])
def test_what_cannot_be_translated_ends_the_build(tex: str) -> None:
    with pytest.raises(BuildError, match="formula"):
        mathml(tex, display=True)


def test_an_open_formula_ends_the_build() -> None:
    with pytest.raises(BuildError, match=r"ends with \$\$"):
        published("$$ x\n\ny $$")


def test_marks_vanish_from_prose_headings_and_cells_but_not_from_code() -> None:
    page = (
        "# It is 3 GB<!--= a b : c -->\n\n5 GB<!--~ text-c -->, `1<!--= shown -->`.\n\n"
        "<!--= first : thing -->opens a line\n\n| a |\n|---|\n| 1<!--~ x --> |\n"
    )
    html = published(page)
    assert "<!--" not in html
    assert "<code>1&lt;!--= shown --&gt;</code>" in html
    assert "<h1>It is 3 GB</h1>" in html
    assert "<td>1</td>" in html
