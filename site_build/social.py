"""The one picture that other sites show beside a link: Home's bars, drawn by Chromium (`make social`).

The picture is kept in the repository with a hash of what it was drawn from, and a test asks whether that is still so.
"""

import hashlib
import os
import shutil
import struct
import zlib
from pathlib import Path

from calc.gpus import get
from calc.job import Job
from calc.models import load
from calc.tables.memory import state_bars

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/assets/img/social.png"
_STYLE = """
body { margin: 0; background: var(--sb-paper); color: var(--sb-ink); font-size: 28px; }
main { width: 1080px; height: 530px; padding: 50px 60px; overflow: hidden; }
h1 { margin: 0 0 6px; font: 600 58px/1.15 var(--sb-display); letter-spacing: -0.01em; }
p { margin: 0 0 26px; font: 30px/1.4 var(--md-text-font); color: var(--sb-ink-soft); }
html { font-size: 22px; }
main .fig { zoom: 1.5; width: 720px; margin: 0; max-width: none; }
main .fig-legend { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 12px 0 0; padding: 0; list-style: none;
  font: 15px var(--md-text-font); color: var(--sb-ink-soft); }
main .fig-legend li { display: flex; align-items: center; gap: 0.4em; }
"""


def body() -> str:
    """What is drawn, as HTML."""
    jobs = [
        Job.of(model=load("llama-3.3-70b"), world_size=8, strategy=name) for name in ("ddp", "zero1", "zero2", "zero3")
    ]
    figure = state_bars(jobs, get("h100-sxm5-80gb"), "Per GPU")
    return f"<main><h1>What training a model costs in memory</h1><p>70B on eight H100s, per GPU</p>{figure}</main>"


def drawn_from(png: bytes) -> str:
    """The hash that a picture carries, or nothing."""
    at = png.find(b"tEXtSource\0")
    return png[at + 11 : at + 75].decode("ascii") if at > 0 else ""


def source() -> str:
    return hashlib.sha256(body().encode()).hexdigest()


def draw() -> None:
    """Draw the picture; needs what `make test-browser` installs."""
    from playwright.sync_api import sync_playwright

    sheet = (ROOT / "docs/assets/css/site.css").read_text(encoding="utf-8")
    page_html = f'<style>{sheet}{_STYLE}</style><body data-md-color-scheme="default">{body()}</body>'
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, ("google-chrome", "chromium", "chromium-browser"))), None)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] * (os.getuid() == 0))
        page = browser.new_page(viewport={"width": 1200, "height": 630})
        page.set_content(page_html)
        png = page.screenshot()
        browser.close()
    note = b"tEXtSource\0" + source().encode("ascii")
    chunk = struct.pack(">I", len(note) - 4) + note + struct.pack(">I", zlib.crc32(note))
    end = len(png) - 12  # the closing IEND
    PICTURE.write_bytes(png[:end] + chunk + png[end:])


if __name__ == "__main__":
    draw()
