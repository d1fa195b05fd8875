"""A page is found, light, passed on with its picture, and leads on."""

import gzip
import json
import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import html5lib
import pytest

from site_build import social
from tests.conftest import SITE_URL

pytestmark = pytest.mark.usefixtures("site")

#: What DESIGN promises for a page; the calculator and the notebook may be heavier.
MOST_BYTES = 150_000
LOADED = re.compile(r"""<(?:script|link|img)\b[^>]*?\b(?:src|href)="([^"]+\.(?:js|css|svg|png|woff2))["?]""")


def pages(site: Path) -> dict[str, object]:
    """Each page by its address below the site, without the slash at its end, as a tree."""
    return {
        str(path.parent.relative_to(site)).removeprefix("."): html5lib.parse(
            path.read_text(encoding="utf-8"), namespaceHTMLElements=False
        )
        for path in sorted(site.rglob("index.html"))
    }


def article_links(site: Path) -> dict[str, set[str]]:
    """Which pages the text of a page links to, its menus left out."""
    found = {}
    for name, document in pages(site).items():
        links = (urldefrag(link.get("href", ""))[0] for link in document.find(".//article").iter("a"))
        reached = (urljoin(f"{SITE_URL}{name}/" if name else SITE_URL, link) for link in links if link)
        found[name] = {link.removeprefix(SITE_URL).strip("/") for link in reached if link.startswith(SITE_URL)}
    return found


def test_every_page_is_within_three_clicks_of_the_first_without_the_menus(site: Path) -> None:
    links, reached = article_links(site), {""}
    for _ in range(3):
        reached |= {link for name in reached for link in links.get(name, ())}
    assert set(links) - reached == set()


def test_the_first_page_leads_to_each_answer_in_one(site: Path) -> None:
    wanted = ("how-to/gpu-memory-calculator", "how-it-works/16-bytes-per-parameter", "how-to/configs")
    wanted += ("evidence/published-numbers-checked", "evidence/verification", "numbers-that-cannot-go-stale")
    assert set(wanted) <= article_links(site)[""]


def test_every_page_ends_in_what_it_leaves_out_and_where_to_go_next(site: Path) -> None:
    for name, document in pages(site).items():
        if name in ("changelog", "contributing"):
            continue
        article = document.find(".//article")
        sections: list[list] = []
        for element in article.iter():
            if element.tag == "h2":
                sections.append([])
            if sections:
                sections[-1].append(element)
        assert "".join(sections[-1][0].itertext()).startswith(("What this leaves out", "What is not verified")), name
        links = [link.get("href") for link in sections[-1] if link.tag == "a" and link.get("class") != "headerlink"]
        assert links or not name, f"{name} ends without a way on"


def test_a_page_is_light(site: Path) -> None:
    fonts = len(gzip.compress((site / "assets/fonts/stix-two-math.woff2").read_bytes(), 9))
    heavy = {}
    for path in site.rglob("index.html"):
        text = path.read_text(encoding="utf-8")
        files = {(path.parent / name).resolve() for name in LOADED.findall(text)} | {path}
        weight = sum(len(gzip.compress(file.read_bytes(), 9)) for file in files) + fonts * ("<math" in text)
        if weight > MOST_BYTES:
            heavy[str(path.relative_to(site))] = weight
    assert heavy == {}


def test_a_link_that_is_passed_on_has_its_picture(site: Path) -> None:
    for name, document in pages(site).items():
        told = {meta.get("property"): meta.get("content") for meta in document.iter("meta") if meta.get("property")}
        assert told["og:image"] == f"{SITE_URL}assets/img/social.png"
        assert told["og:url"] == (f"{SITE_URL}{name}/" if name else SITE_URL)
        assert told["og:title"]
        assert told["og:description"]
    png = (site / "assets/img/social.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert social.drawn_from(png) == social.source(), "its numbers changed: run make social and look at it"


def test_a_missing_page_leads_back(site: Path) -> None:
    document = html5lib.parse((site / "404.html").read_text(encoding="utf-8"), namespaceHTMLElements=False)
    links = [link.get("href") for link in document.find(".//article").iter("a")]
    assert all(link.startswith("/sixteen-bytes/") for link in links), "wherever the missing page would have been"
    assert len(links) == 4


def test_what_people_type_is_in_a_title_or_near_it(site: Path) -> None:
    """All words in one entry of the search index; the browser test looks at the order."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    split = re.compile(index["config"]["separator"])
    for typed in ("70B 8xH100", "OOM", "8-bit Adam", "DeepSpeed config"):
        wanted = set(split.split(typed.lower()))
        found = []
        for entry in index["docs"]:
            words = set(split.split(re.sub(r"<[^>]+>|[.,:;()]", " ", f"{entry['title']} {entry['text']}").lower()))
            if all(any(word.startswith(part) for word in words) for part in wanted):
                found.append(entry["location"])
        assert found, typed
