"""Serves the built site on this machine, as a server would: under a path, with nothing beside it."""

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import SITE_URL


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site's first page, which the site takes for its own: else pages are not swapped."""
    root = tmp_path_factory.mktemp("served")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    address = f"http://127.0.0.1:{server.server_port}/{site.name}/"
    shutil.copytree(site, root / site.name)
    for page in (*root.rglob("*.html"), *root.rglob("*.xml")):
        page.write_text(page.read_text(encoding="utf-8").replace(SITE_URL, address), encoding="utf-8")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield address
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, object]:
    """The system's own browser: Playwright's would be a download of its own."""
    names = ("google-chrome", "chromium", "chromium-browser")
    browser = next(filter(None, map(shutil.which, names)), None)
    assert browser, f"none of {', '.join(names)} is installed"
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    root = ["--no-sandbox"] if os.getuid() == 0 else []
    return {"executable_path": browser, "headless": True, "args": quiet + root}
