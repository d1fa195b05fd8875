"""Each page in Chromium: it asks nobody else for anything, says nothing to the console,
fits a phone, and axe finds no fault in either scheme."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


def pages(site: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(site)).removeprefix(".") for path in site.rglob("index.html"))


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def test_every_page_asks_only_its_own_server_and_has_nothing_to_complain(page: Page, site: Path, address: str) -> None:
    asked: set[str] = set()
    said: list[str] = []
    page.on("request", lambda request: asked.add(request.url))
    page.on("console", lambda message: said.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    for name in pages(site):
        page.goto(address + name, wait_until="load")
    assert [url for url in sorted(asked) if not url.startswith((address, "data:", "blob:"))] == []
    assert said == []


def test_every_page_fits_a_phone(page: Page, site: Path, address: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    wide = {}
    for name in pages(site):
        page.goto(address + name)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide[name] = width
    assert wide == {}


def test_axe_finds_no_fault(page: Page, site: Path, address: str) -> None:
    faults = []
    for name in pages(site):
        page.goto(address + name)
        for fault in Axe().run(page).response["violations"]:
            faults += [f"{name or 'home'}: {fault['id']}: {node['html'][:200]}" for node in fault["nodes"]]
    assert not faults, "\n".join(faults)
