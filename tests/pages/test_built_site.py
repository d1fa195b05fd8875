"""The built site: self-contained, sound, every link alive, nothing of the workshop left in it."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib
import pytest

pytestmark = pytest.mark.usefixtures("site")

ROOT = Path(__file__).parents[2]
OWN = "https://site.invalid/"  # where the fixture pretends to publish
HTML = "{http://www.w3.org/1999/xhtml}"
# A browser fetches these without being asked; a plain link it does not.
LOADING_ATTRIBUTES = ("src", "srcset", "poster", "data", "action", "background")
LOADING_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
ELSEWHERE = re.compile(r"\s*([a-z][a-z0-9+.-]*:)?//|\s*(https?|wss?|ftp):", re.IGNORECASE)
CSS_LOAD = re.compile(r"""(?:url\(\s*['"]?|@import\s+['"])([^'")]+)""")

# What an unfinished or unread piece of Markdown leaves in the text of a page.
LEFTOVERS = {
    "a traceback": re.compile(r"Traceback \(most recent call last\)"),
    "a number mark": re.compile(r"<!--[=~]"),
    "TeX": re.compile(r"\$\$|\\(?:frac|text|cdot|mathrm|times)\b"),
    "an icon shortcode": re.compile(r":(?:material|octicons|fontawesome|simple)-[a-z-]+:"),
    "a block delimiter": re.compile(r"^/// ?\w*", re.MULTILINE),
    "a snippet line": re.compile(r"--8<--"),
    "an attribute list": re.compile(r"\{:? ?[.#][\w-]+[^}]*\}"),
    "a code fence": re.compile(r"```|~~~"),
    "a footnote reference": re.compile(r"\[\^\w+\]"),
}


@cache
def parse(path: Path) -> tuple[Element, tuple[str, ...]]:
    parser = html5lib.HTMLParser(tree=html5lib.getTreeBuilder("etree"))
    document = parser.parse(path.read_text(encoding="utf-8"))
    return document, tuple(f"line {line}: {code} {data or ''}" for (line, _), code, data in parser.errors)


def pages(site: Path) -> Iterator[tuple[str, Element]]:
    for path in sorted(site.rglob("*.html")):
        yield str(path.relative_to(site)), parse(path)[0]


def prose(element: Element) -> Iterator[str]:
    """The text of an element without its code, where anything may be shown."""
    if element.tag in (f"{HTML}code", f"{HTML}pre", f"{HTML}script", f"{HTML}style"):
        return
    yield element.text or ""
    for child in element:
        yield from prose(child)
        yield child.tail or ""


def test_each_source_page_is_published(site: Path) -> None:
    missing = []
    for source in (ROOT / "docs").rglob("*.md"):
        page = source.relative_to(ROOT / "docs").with_suffix("")
        folder = page.parent if page.name == "index" else page
        if not (site / folder / "index.html").is_file():
            missing.append(str(source))
    assert not missing


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = []
    for name, document in pages(site):
        for element in document.iter():
            given = [element.get(attribute, "") for attribute in LOADING_ATTRIBUTES]
            if element.tag == f"{HTML}link" and LOADING_RELATIONS & set(element.get("rel", "").split()):
                given.append(element.get("href", ""))
            if element.tag == f"{HTML}style":
                given += CSS_LOAD.findall(element.text or "")
            given += CSS_LOAD.findall(element.get("style", ""))
            loads += [f"{name}: {url}" for url in given if ELSEWHERE.match(url) and not url.startswith(OWN)]
    for sheet in site.rglob("*.css"):
        loads += [
            f"{sheet.relative_to(site)}: {url}"
            for url in CSS_LOAD.findall(sheet.read_text(encoding="utf-8"))
            if ELSEWHERE.match(url)
        ]
    assert not loads, "a third party would be asked for these; take them out, then run make test"


def test_every_page_carries_the_content_security_policy_first(site: Path) -> None:
    for name, document in pages(site):
        first = document.find(f"{HTML}head")[0]
        assert first.get("http-equiv") == "Content-Security-Policy", name
        assert "default-src 'self'" in first.get("content", ""), name


def test_no_id_is_given_twice(site: Path) -> None:
    for name, document in pages(site):
        ids = Counter(element.get("id") for element in document.iter() if element.get("id"))
        assert [found for found, times in ids.items() if times > 1] == [], name


def test_tags_nest(site: Path) -> None:
    faults = [f"{path.relative_to(site)} {error}" for path in sorted(site.rglob("*.html")) for error in parse(path)[1]]
    assert not faults


def test_nothing_of_the_workshop_is_left_in_the_text(site: Path) -> None:
    left = []
    for path in sorted(site.rglob("*.html")):
        article = next(parse(path)[0].iter(f"{HTML}article"), None)
        if article is None:
            continue
        text = "".join(prose(article))
        comments = "".join(re.findall(r"<!--.*?-->", path.read_text(encoding="utf-8"), re.DOTALL))
        for what, pattern in LEFTOVERS.items():
            left += [f"{path.relative_to(site)}: {what}: {found[0]!r}" for found in pattern.finditer(text + comments)]
    assert not left


def test_titles_and_descriptions_are_there_and_differ(site: Path) -> None:
    titles: Counter[str] = Counter()
    descriptions: Counter[str] = Counter()
    for name, document in pages(site):
        if name == "404.html":
            continue
        title = (document.findtext(f".//{HTML}title") or "").strip()
        described = document.find(f".//{HTML}meta[@name='description']")
        description = "" if described is None else described.get("content", "").strip()
        assert title, f"{name} has no title"
        assert 40 <= len(description) <= 200, (
            f"{name} has a description of {len(description)} letters; 40 to 200 are shown"
        )
        titles[title] += 1
        descriptions[description] += 1
    assert [text for text, times in (titles + descriptions).items() if times > 1] == []


def test_headings_step_down_one_at_a_time(site: Path) -> None:
    for name, document in pages(site):
        article = next(document.iter(f"{HTML}article"))
        levels = [
            int(element.tag[-1])
            for element in article.iter()
            if re.fullmatch(r"h[1-6]", str(element.tag).removeprefix(HTML))
        ]
        assert levels[:1] == [1], f"{name} does not begin with its one title"
        assert levels.count(1) == 1, f"{name} has {levels.count(1)} titles"
        assert all(after <= before + 1 for before, after in pairwise(levels)), f"{name}: {levels}"


def test_pictures_speak(site: Path) -> None:
    for name, document in pages(site):
        article = next(document.iter(f"{HTML}article"))
        for image in article.iter(f"{HTML}img"):
            assert image.get("alt"), f"{name}: a picture without alt"
        for drawing in article.iter("{http://www.w3.org/2000/svg}svg"):
            if drawing.get("role") == "img":
                assert drawing.find("{http://www.w3.org/2000/svg}title") is not None, f"{name}: a figure without title"


def test_every_page_can_be_searched_for(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    published = {str(path.parent.relative_to(site)) for path in site.rglob("index.html")}
    assert {"" if folder == "." else f"{folder}/" for folder in published} <= found


def test_links_and_fragments_lead_somewhere(site: Path) -> None:
    lychee = Path(sys.executable).with_name("lychee")
    run = subprocess.run(
        [
            lychee,
            "--offline",
            "--include-fragments",
            "--index-files",
            "index.html",
            "--no-progress",
            "--root-dir",
            site.parent,
            *site.rglob("*.html"),
        ],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}\nmend the links, then run make test"
