"""What a reader does on a page: search it, sort its tables, take them along, print it."""

import gzip
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

#: The promise holds for every page; the calculator's Python comes with a reader's first change.
MOST_BYTES = 150_000

#: What people type, and the page that is to be among the first three.
SEARCHES = {
    "70B 8xH100": "walkthroughs/70b-on-8xh100/",
    "OOM": "how-to/cuda-out-of-memory/",
    "8-bit Adam": "walkthroughs/adamw-vs-8bit-adam/",
    "DeepSpeed config": "how-to/configs/",
    "nvidia-smi": "how-it-works/why-nvidia-smi-shows-more/",
    "QLoRA": "how-to/lora-and-qlora-memory/",
}


def test_a_page_costs_a_reader_what_is_promised(browser: Browser, site: Path, address: str) -> None:
    """All that is transferred until nothing more is asked for, as a server that compresses would send it."""
    heavy = {}
    for path in site.rglob("index.html"):
        name = str(path.parent.relative_to(site)).removeprefix(".")
        page, sizes = browser.new_page(), []
        page.on("response", lambda response, sizes=sizes: sizes.append(len(gzip.compress(response.body(), 9))))
        page.goto(address + name, wait_until="networkidle")
        if sum(sizes) > MOST_BYTES:
            heavy[name] = sum(sizes)
        page.close()
    assert heavy == {}


@pytest.mark.parametrize("typed", SEARCHES)
def test_search_finds_what_people_type(page: Page, address: str, typed: str) -> None:
    page.goto(address)
    page.keyboard.press("/")
    page.keyboard.type(typed)
    found = page.locator(".md-search-result__item > a")
    expect(found.first).to_be_visible()
    links = [str(link.get_attribute("href")) for link in found.all()[:3]]
    assert any(SEARCHES[typed] in link for link in links), links


def test_a_table_is_sorted_searched_and_copied(browser: Browser, address: str) -> None:
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address + "reference/gpus/")
    table = page.locator(".sortable table").first
    first = table.locator("tbody tr:visible td:first-child")
    label = table.get_by_role("button", name="Label")
    label.click()
    assert "16GB" in first.first.inner_text()
    label.click()
    assert label.locator("..").get_attribute("aria-sort") == "descending"
    assert "MI455X" in first.first.inner_text()
    page.get_by_label("Search", exact=True).last.fill("h100 sxm5")
    page.get_by_role("button", name="Copy as CSV").click()
    expect(page.get_by_role("status").filter(has_text="1 rows copied")).to_be_visible()
    head, row, rest = page.evaluate("navigator.clipboard.readText()").split("\r\n")
    assert head.startswith('"GPU","Label","Driver","Visible to a process"')
    assert row.startswith('"H100 SXM5 80GB h100-sxm5-80gb","80 GB","85.52 GB","85.03 GB"')
    assert rest == ""
    context.close()


def test_the_headings_of_a_long_table_stay_in_sight(page: Page, address: str) -> None:
    page.goto(address + "reference/models/")
    box = page.locator(".sortable .md-typeset__scrollwrap").first
    box.evaluate("box => box.scrollTop = 500")
    head = box.locator("th").first
    expect(head).to_be_in_viewport()
    assert (
        head.evaluate(
            "th => th.getBoundingClientRect().top - th.closest('.md-typeset__scrollwrap').getBoundingClientRect().top"
        )
        <= 1
    )


def test_the_keyboard_reaches_the_text_first_and_shows_where_it_is(page: Page, address: str) -> None:
    page.goto(address)
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.inner_text().strip() == "Skip to content"
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash !== ''")
    page.keyboard.press("Tab")
    page.wait_for_function("document.activeElement.closest('article') !== null")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_nothing_moves_for_those_who_ask(browser: Browser, address: str) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(address)
    longest = """Math.max(...[...document.querySelectorAll('*')].map(element =>
        Math.max(...getComputedStyle(element).transitionDuration.split(',').map(parseFloat))))"""
    assert page.evaluate(longest) <= 0.001
    context.close()


def test_print_is_the_text_alone_with_what_was_folded(page: Page, address: str) -> None:
    page.goto(address + "how-it-works/activation-memory/")
    answer = page.get_by_text("536,870,912 bytes")
    expect(answer).to_be_hidden()
    page.emulate_media(media="print")
    expect(answer).to_be_visible()
    expect(page.locator(".md-header")).to_be_hidden()
    expect(page.locator(".md-footer")).to_be_hidden()
