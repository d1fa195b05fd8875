"""Serves the built site on this machine, as a server would: under a path, with nothing beside it."""

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """The address of the site's first page."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{site.name}/"
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
