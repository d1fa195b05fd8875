"""An MkDocs hook that publishes what calc answers as files: `data/*.json` and, from the navigation, `llms.txt`.

Both are made anew in each build, so that neither can say anything but what the pages say.
"""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

#: One file for each of these commands; `docs/data/schema.json` says what is in them.
ANSWERS = ("models", "gpus", "optimizers", "recipes", "strategies", "claims", "sources")
_pages: list[tuple[str, list[Page]]] = []


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for name in ANSWERS:
        content = json.dumps(published(name), indent=1, ensure_ascii=False) + "\n"
        files.append(File.generated(config, f"data/{name}.json", content=content))
    return files


def published(name: str) -> dict[str, object]:
    """The content of `data/NAME.json`: the answer of calc under its name, with its schema and licence."""
    # Late, as the build guard drops the modules of the build before.
    from calc.cli import answer
    from calc.units import records

    found: Any = [dict(record) for record in records(name)] if name == "sources" else answer([name])
    if name == "models":
        found = [record | _counted(record["id"]) for record in found]
    return {"$schema": "schema.json", "license": "CC-BY-4.0", name: found}


def _counted(name: str) -> dict[str, int | None]:
    from calc.cli import answer
    from calc.units import InputError

    try:
        counts: Any = answer(["params", name])
    except InputError:  # a family that is listed and not counted yet
        return dict.fromkeys(("params_total", "params_active"))
    return {key: counts[key] for key in ("params_total", "params_active")}


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> None:
    sections = [item for item in nav.items if isinstance(item, Section)]
    _pages[:] = [(item.title, [page for page in item.children if isinstance(page, Page)]) for item in sections]
    rest = [file.page for file in files.documentation_pages() if file.page not in nav.pages]
    _pages.append(("About", [page for page in rest if page]))


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write `llms.txt`: every page with its address and what it answers."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [
        "All figures are computed by an open Python package, `calc`, while the site is built.",
        f"The data behind the tables is JSON at {config.site_url}data/NAME.json, NAME one of {', '.join(ANSWERS)}.",
    ]
    for title, pages in _pages:
        lines += ["", f"## {title}", ""]
        lines += [f"- [{page.title}]({page.canonical_url}): {page.meta.get('description', '')}" for page in pages]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
