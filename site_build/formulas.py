r"""A Python-Markdown extension that turns TeX formulas into MathML while the site is built.

`$4 + 12 / N$` in a line is a formula, and so is a paragraph that begins and ends with `$$`.
A dollar followed by a space, or closed before a digit, is money and stays as it is.
No script runs in the reader's browser; what the converter could not translate ends the build.
"""

import re
import xml.etree.ElementTree as etree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.exceptions import BuildError

ENVIRONMENTS = ("align", "align*", "cases", "matrix", "pmatrix")

_INLINE = r"(?<![\\$\w])\$(?=[^\s$])([^$\n\x02]*?[^\s\\$])\$(?![\w$])"


def mathml(tex: str, *, display: bool) -> str:
    r"""Return one formula as MathML; raise BuildError where a TeX command was left over in it."""
    braces = re.sub(r"\\\\|\\[{}]", "", tex)
    if braces.count("{") != braces.count("}"):
        raise BuildError(f"the formula {tex!r} opens and closes its braces a different number of times")
    for name in re.findall(r"\\begin\{([^}]*)\}", tex):
        if name not in ENVIRONMENTS:
            raise BuildError(f"the formula {tex!r} uses {name!r}; known environments: {', '.join(ENVIRONMENTS)}")
    try:
        markup = convert(re.sub(r"\\mathrm(?=\{[A-Za-z]+\})", r"\\text", tex), display="block" if display else "inline")
    except Exception as error:  # the converter raises a different class for each mistake
        raise BuildError(f"cannot read the formula {tex!r}: {error!r}") from error
    if "\\" in markup:
        left = ", ".join(sorted(set(re.findall(r"\\\w*", markup))))
        raise BuildError(f"the formula {tex!r} has no MathML for {left}")
    # One number, not three with operators between them.
    return markup.replace("</mn><mrow><mo>&#x0002C;</mo></mrow><mn>", ",")


class _Inline(InlineProcessor):
    def handleMatch(  # type: ignore[override]
        self, m: re.Match[str], data: str
    ) -> tuple[str, int, int]:
        return self.md.htmlStash.store(mathml(m[1], display=False)), m.start(0), m.end(0)


class _Block(BlockProcessor):
    def test(self, parent: etree.Element, block: str) -> bool:
        return block.lstrip().startswith("$$")

    def run(self, parent: etree.Element, blocks: list[str]) -> None:
        block = blocks.pop(0).strip()
        if len(block) < 5 or not block.endswith("$$"):
            raise BuildError(f"a formula opened with $$ ends with $$ and has no empty line: {block}")
        formula = etree.SubElement(parent, "div", {"class": "formula"})
        formula.text = self.parser.md.htmlStash.store(mathml(block[2:-2].strip(), display=True))


class FormulasExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(_Inline(_INLINE, md), "formula", 186)  # after code, 190
        md.parser.blockprocessors.register(_Block(md.parser), "formula", 75)


def makeExtension(**kwargs: object) -> FormulasExtension:
    return FormulasExtension(**kwargs)
