"""A notebook becomes an ordinary page: mkdocs-jupyter runs it, and MkDocs renders what it showed.

On its own the plugin publishes Jupyter's own HTML, with half a megabyte of style, scripts from other servers,
number marks left in and headings in another form. Here a template of ours makes Markdown of the executed
notebook, which then takes the way of every page: the same formulas, tables, links and search.
"""

import json
import os
import tempfile
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs_jupyter.config import settings
from nbclient.exceptions import CellExecutionError

FOLDER = str(Path(__file__).with_suffix(""))
_own = SimpleNamespace(folder=None)


def on_startup(*, command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
    """No settings of the user's for the kernel, nothing written into their home, no port open to others."""
    _own.folder = tempfile.TemporaryDirectory(prefix="notebook-")
    own = _own.folder.name
    os.environ |= {"JUPYTER_CONFIG_DIR": FOLDER, "JUPYTER_RUNTIME_DIR": own, "IPYTHONDIR": own}
    settings.templates_dir = FOLDER


def on_shutdown() -> None:
    _own.folder.cleanup()


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str | None:
    if not page.file.src_uri.endswith(".ipynb"):
        return None
    try:
        page.render(config, files)  # the plugin's, which runs the notebook
    except CellExecutionError as error:
        raise PluginError(f"{page.file.src_uri}: {error}\nMend the notebook, then run make site.") from None
    text, _, _ = str(page.content).rpartition("<style>")  # Jupyter's, which the plugin appends
    page.content = None
    del page.render  # MkDocs's own again
    page.meta["description"] = json.loads(markdown)["metadata"]["description"]
    return unescape(text)
