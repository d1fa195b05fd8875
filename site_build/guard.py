"""The build guard, an MkDocs hook: a failed example or a stale number ends the build, whatever the flags.

On its own markdown-exec only logs a warning and publishes the traceback, `--strict` counts that
warning unless `-q` hid it, and a block that calls `sys.exit(0)` ends the build as a success.
While serving, the traceback stays on the page instead, so that it can be mended.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

from markdown_exec.logger import patch_loggers
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from site_build.fences import FenceError, read_fences

log = logging.getLogger("mkdocs.plugins.guard")

# MkDocs keeps this module for all rebuilds of one `mkdocs serve`.
_now = SimpleNamespace(serving=False, build=0, page="", faults=[], answer=None)


class _Recorder(logging.LoggerAdapter[logging.Logger]):
    """Keeps each warning of markdown-exec, also those that the log level hides."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, Any]:
        return f"markdown-exec: {msg}", kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= logging.WARNING:
            _now.faults.append(str(msg) % args if args else str(msg))
        super().log(level, msg, *args, **kwargs)


def on_startup(*, command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
    _now.serving = command == "serve"


def on_config(config: MkDocsConfig) -> None:
    patch_loggers(lambda name: _Recorder(logging.getLogger(f"mkdocs.plugins.{name}"), {}))
    for fence in config.mdx_configs["pymdownx.superfences"]["custom_fences"]:
        fence["format"] = _recording(fence["format"])


def on_pre_build(config: MkDocsConfig) -> None:
    _now.build += 1
    # Otherwise `make serve` rebuilds with the modules it imported first, and their old numbers.
    stale = ("calc.", "tests.", "site_build.form.")
    for name in [name for name in sys.modules if f"{name}.".startswith(stale)]:
        del sys.modules[name]
    from calc.cli import answer

    _now.answer = cache(answer)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> None:
    _now.page, _now.faults = page.file.src_uri, []
    try:
        # The whole file, so that the line number counts the front matter; of a notebook, what it showed.
        read_fences(markdown if page.file.src_uri.endswith(".ipynb") else page.file.content_string)
    except FenceError as error:
        _now.faults.append(str(error))
    _now.faults += _stale_numbers(page)


def _stale_numbers(page: Page) -> list[str]:
    from calc.check import check_file  # late, as `on_pre_build` drops the modules of the build before
    from calc.units import InputError

    try:
        found, _ = check_file(os.path.relpath(str(page.file.abs_src_path)), answer=_now.answer, mend="make numbers")
    except InputError as error:
        return [str(error)]
    return [str(finding) for finding in found if not finding.ok]


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> None:
    if not _now.faults:
        return
    fault = f"{page.file.src_uri}: {'; '.join(_now.faults)}\nMend the page, then run make site."
    if not _now.serving:
        raise PluginError(fault)
    log.error(fault)


def _recording(format_block: Any) -> Any:
    """Wrap a fence formatter: SuperFences would swallow its exceptions, and let SystemExit pass."""

    def format_recorded(source: str, language: str, css_class: str, options: Any, md: Any, **kwargs: Any) -> Any:
        if options.get("session"):
            # markdown-exec keeps a session for ever; here it lives for one page of one build.
            options["session"] = f"{options['session']} of {_now.page}, build {_now.build}"
        try:
            return format_block(source, language, css_class, options, md, **kwargs)
        except (Exception, SystemExit) as error:
            _now.faults.append(f"a block ended with {error!r}:\n{source}")
            return ""

    return format_recorded
