"""The calculator end to end: the package itself answers in the page, and nobody else is asked for anything."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from calc.cli import calculated
from calc.models import known
from site_build.form import GPU, GPUS, MODEL
from tests.browser import grid

pytestmark = pytest.mark.browser

PATH = "how-to/gpu-memory-calculator/"
SLOW = 60_000  # the first answer waits for Python
BAD = "error: unknown strategy 'zero4'; did you mean 'zero3'? allowed: "


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A fresh page; when the test is over it has asked only its own server and has had nothing to complain of."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    context.on("request", lambda request: said.append(request.url) if not ours(request.url, address) else None)
    yield page
    context.close()
    assert said == []


def ours(url: str, address: str) -> bool:
    return url.startswith((address, "data:", "blob:"))


def answer(page: Page) -> Locator:
    return page.locator(".calc-answer:not([aria-busy])")


def verdict(page: Page) -> Locator:
    return answer(page).locator(".calc-verdict")


def shown(page: Page) -> str:
    return page.evaluate("document.querySelector('.calc-answer').textContent.replace(/\\s+/g, '')")


def expected(page: Page, *argv: str, gpu: str = GPU) -> str:
    """The text of the page that CPython makes for a run."""
    _, found = calculated(["estimate", *argv, f"--gpu={gpu}"])
    script = "html => new DOMParser().parseFromString(html, 'text/html').body.textContent.replace(/\\s+/g, '')"
    return page.evaluate(script, found)


def test_the_first_answer_is_there_before_anything_is_loaded(page: Page, address: str) -> None:
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    page.goto(address + PATH, wait_until="networkidle")
    assert shown(page) == expected(page, MODEL, f"--gpus={GPUS}")
    assert [url for url in loaded if "assets/calculator" in url] == []


def test_a_change_loads_python_says_so_and_gives_a_link_that_another_reader_can_open(page: Page, address: str) -> None:
    page.goto(address + PATH)
    progress = page.locator(".calc-progress")
    # A fast machine may say it for a moment only, so all that is said is kept.
    progress.evaluate(
        "seen => { window.said = []; const keep = () => window.said.push(seen.textContent);"
        " new MutationObserver(keep).observe(seen, { childList: true, characterData: true, subtree: true }); }"
    )
    page.get_by_label("GPUs", exact=True).fill("16")
    expect(verdict(page)).to_contain_text("on 16 × H100", timeout=SLOW)
    expect(progress).to_have_text("")
    assert any("Fetching Python for this page" in said for said in page.evaluate("window.said"))
    assert shown(page) == expected(page, MODEL, "--gpus=16")

    page.get_by_label("Strategy").select_option("fsdp2")
    expect(page.locator("#calc-code-command")).to_contain_text("--strategy fsdp2")
    assert shown(page) == expected(page, MODEL, "--gpus=16", "--strategy=fsdp2")
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator(".calc-told")).to_have_text("Copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url == address + PATH + f"?model={MODEL}&gpu={GPU}&gpus=16&strategy=fsdp2"

    page.locator("#calc-code-command button").click()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == f"python -m calc estimate {MODEL} --gpus 16 --strategy fsdp2 --gpu {GPU}"

    page.get_by_role("button", name="Start again").click()
    expect(page).to_have_url(address + PATH)
    expect(verdict(page)).to_contain_text(f"on {GPUS} × H100")
    assert shown(page) == expected(page, MODEL, f"--gpus={GPUS}")

    page.goto(link)
    expect(verdict(page)).to_contain_text("on 16 × H100", timeout=SLOW)
    assert page.get_by_label("Strategy").input_value() == "fsdp2"
    assert shown(page) == expected(page, MODEL, "--gpus=16", "--strategy=fsdp2")


def test_bad_input_is_answered_with_the_lines_of_the_command_line(page: Page, address: str) -> None:
    page.goto(address + PATH + "?" + urlencode({"model": MODEL, "gpus": 8, "gpu": GPU, "strategy": "zero4"}))
    error = page.locator(".calc-error")
    expect(error).to_contain_text(BAD, timeout=SLOW)
    model, gpus = page.get_by_label("Model", exact=True), page.get_by_label("GPUs", exact=True)
    page.get_by_label("Strategy").select_option("zero3")
    tried = ((model, "<b>lama</b>"), (model, MODEL), (gpus, "0"), (gpus, "eight"), (gpus, "-1"), (gpus, "9" * 300))
    now = {"model": MODEL, "gpus": "8"}
    for field, value in tried:
        field.fill(value)
        field.press("Enter")
        now["model" if field is model else "gpus"] = value
        kind, line = calculated(["estimate", now["model"], f"--gpus={now['gpus']}", f"--gpu={GPU}"])
        if kind == "error":
            expect(error).to_have_text(line)
        else:
            expect(verdict(page)).to_contain_text("on 8 × H100")
    assert page.locator(".calc-answer table").count() == 0, "no old figures stay under an error"
    gpus.fill("8")
    expect(page.locator(".calc-answer table")).not_to_have_count(0)


def test_pasted_files_are_read_and_shared(page: Page, address: str, tmp_path: Path) -> None:
    config = next(record["config"] for record in known() if record["name"] == "qwen3-8b")
    text = json.dumps(dict(config), indent=2)
    page.goto(address + PATH)
    page.get_by_text("Paste a config.json").click()
    page.locator("textarea[name=config]").fill(text)
    expect(page.locator("#calc-code-command")).to_contain_text("estimate config.json", timeout=SLOW)
    (tmp_path / "config.json").write_text(text)
    alone = expected(page, str(tmp_path / "config.json"), f"--gpus={GPUS}")
    assert shown(page) == alone.replace(str(tmp_path / "config.json"), "config.json")

    page.get_by_text("Paste a DeepSpeed JSON or").click()
    page.locator("textarea[name=config-file]").fill('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}')
    expect(page.locator("#calc-code-command")).to_contain_text("--strategy zero1")
    before = shown(page)
    page.reload()
    expect(page.locator("#calc-code-command")).to_contain_text("--strategy zero1", timeout=SLOW)
    assert shown(page) == before
    page.locator("textarea[name=config-file]").fill('{"zero_optimisation": {}}')
    expect(page.locator(".calc-error")).to_contain_text("error: ds_config.json: ")
    page.locator("textarea[name=config-file]").fill("")
    page.get_by_role("link", name="16 GPUs").click()
    expect(verdict(page)).to_contain_text("on 16 × H100")
    expect(page.locator("#calc-code-command")).to_contain_text("estimate config.json --gpus 16")
    page.locator("textarea[name=config]").fill(text + " " * 9000)
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator(".calc-told")).to_contain_text("too long for a link")
    assert len(page.evaluate("navigator.clipboard.readText()")) < 300
    page.locator("textarea[name=config]").fill("")
    expect(page.get_by_label("Model", exact=True)).to_have_value(MODEL)
    expect(page.locator("#calc-code-command")).to_contain_text(f"estimate {MODEL}")


def test_back_forward_and_other_pages_keep_the_run(page: Page, address: str) -> None:
    """Material swaps pages without loading them, so that Python stays warm."""
    page.goto(address)
    page.evaluate("window.loadedOnce = true")
    page.get_by_role("link", name="How to", exact=True).first.click()
    page.get_by_role("link", name="GPU memory calculator").first.click()
    page.get_by_role("link", name="16 GPUs").click()
    expect(verdict(page)).to_contain_text("on 16 × H100", timeout=SLOW)
    page.get_by_role("link", name="32 GPUs").click()
    expect(verdict(page)).to_contain_text("on 32 × H100")
    page.go_back()
    expect(verdict(page)).to_contain_text("on 16 × H100")
    assert page.get_by_label("GPUs", exact=True).input_value() == "16"
    page.go_forward()
    expect(verdict(page)).to_contain_text("on 32 × H100")
    page.get_by_role("link", name="table", exact=True).click()
    expect(page).to_have_title("Models - Sixteen Bytes")
    page.go_back()
    expect(verdict(page)).to_contain_text("on 32 × H100")
    assert page.get_by_label("GPUs", exact=True).input_value() == "32"
    assert page.evaluate("window.loadedOnce"), "pages were loaded, not swapped"


def test_the_keyboard_is_enough(page: Page, address: str) -> None:
    page.goto(address + PATH)
    model = page.get_by_role("combobox", name="Model")
    for _ in range(40):
        page.keyboard.press("Tab")
        if model.evaluate("field => field === document.activeElement"):
            break
    page.keyboard.type("qwen3 8b")
    page.keyboard.press("ArrowDown")
    assert model.get_attribute("aria-expanded") == "true"
    assert page.locator(f"#{model.get_attribute('aria-activedescendant')}").inner_text().startswith("qwen3-8b")
    page.keyboard.press("Enter")
    assert model.input_value() == "qwen3-8b"
    assert model.get_attribute("aria-expanded") == "false"
    page.keyboard.press("Tab")
    page.keyboard.type("B200")
    page.keyboard.press("Tab")
    page.keyboard.type("4")
    expect(verdict(page)).to_contain_text("on 4 × B200 SXM", timeout=SLOW)
    assert shown(page) == expected(page, "qwen3-8b", "--gpus=4", gpu="b200-sxm")


def test_the_model_list_is_searched(page: Page, address: str) -> None:
    page.goto(address + PATH)
    model = page.get_by_role("combobox", name="Model")
    model.click()
    options = page.locator("#calc-models").get_by_role("option")
    assert options.count() == len(known())
    model.fill("deepseek v3")
    assert all("deepseek-v3" in name for name in options.all_inner_texts())
    model.press("Escape")
    expect(page.get_by_role("listbox")).to_be_hidden()
    model.fill("llama-3.1-8b")
    options.filter(has_text="llama-3.1-8b").first.click()
    expect(page.locator("#calc-code-command")).to_contain_text("estimate llama-3.1-8b", timeout=SLOW)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_and_axe_find_no_fault_in_an_answer(browser: Browser, address: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(address + PATH + "?" + urlencode({"model": "llama-3.1-8b", "gpus": 2, "gpu": "geforce-rtx-4090"}))
    expect(verdict(page)).to_contain_text("on 2 × GeForce RTX 4090", timeout=SLOW)
    for details in page.locator("article details").all():
        details.evaluate("details => details.open = true")
    page.locator("#calc-model").click()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    faults = Axe().run(page).response["violations"]
    assert [(fault["id"], node["html"][:200]) for fault in faults for node in fault["nodes"]] == []
    context.close()


def test_without_javascript_the_first_answer_and_the_command_line_stay(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address + PATH)
    expect(page.locator(".calc-form")).to_be_hidden()
    expect(page.get_by_text("The form needs JavaScript")).to_be_visible()
    expect(page.locator(".calc-verdict")).to_contain_text("on 8 × H100")
    expect(page.locator("#calc-code-command")).to_contain_text(f"python -m calc estimate {MODEL} --gpus {GPUS}")
    context.close()


def test_the_worker_in_the_browser_gives_cpythons_pages(page: Page, address: str) -> None:
    page.goto(address + PATH)
    chosen = random.Random(9).sample(grid.runs(), 36)
    told = page.evaluate(
        """async ([address, runs]) => {
            const worker = new Worker(address + "assets/js/calculator-worker.js", { type: "module" })
            const answers = []
            for (const argv of runs) {
                worker.postMessage({ argv, files: {} })
                answers.push(await new Promise(resolve => {
                    worker.onmessage = ({ data }) => data.doing ?? resolve(data.html ?? data.error ?? data.lost)
                }))
            }
            return answers
        }""",
        [address, chosen],
    )
    assert told == [calculated(argv)[1] for argv in chosen]
