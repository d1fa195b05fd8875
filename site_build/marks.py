"""A Python-Markdown extension that leaves number marks out of the published page.

A mark is the HTML comment behind a number that says how to recompute it (`<!--= … -->`) or whose
number it is (`<!--~ … -->`). Marks shown in code stay, since code is set aside before.
"""

import re
import xml.etree.ElementTree as etree

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.postprocessors import Postprocessor

_MARK = r"<!--[=~].*?-->"


class _Inline(InlineProcessor):
    """Drops a mark before the heading or cell that it stands in is read any further."""

    def handleMatch(  # type: ignore[override]
        self, m: re.Match[str], data: str
    ) -> tuple[etree.Element | str, int, int]:
        return "", m.start(0), m.end(0)


class _Block(Postprocessor):
    """Drops a mark that opened a line and was therefore set aside as raw HTML."""

    def run(self, text: str) -> str:
        return re.sub(_MARK, "", text, flags=re.DOTALL)


class MarksExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(_Inline(_MARK, md), "number_marks", 188)  # after code, 190
        md.postprocessors.register(_Block(md), "number_marks", 25)  # after raw_html, 30


def makeExtension(**kwargs: object) -> MarksExtension:
    return MarksExtension(**kwargs)
