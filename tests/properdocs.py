"""`make properdocs`: the same `mkdocs.yml` built by ProperDocs gives the same site, number for number.

mkdocs-material names May 2027 as its end of life, and MkDocs 1 has no successor of that name.
ProperDocs goes on from MkDocs 1.6 and takes its plugins and hooks as they are.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BUILDERS = ("mkdocs", "properdocs")
#: The one line in which the two may differ.
GENERATOR = re.compile(r'<meta name="generator" content="[^"]*">')
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def pages(site: Path) -> dict[str, str]:
    """Each page and the search index, by its path."""
    found = sorted((*site.rglob("*.html"), *site.rglob("search_index.json")))
    return {str(path.relative_to(site)): GENERATOR.sub("", path.read_text("utf-8")) for path in found}


def numbers(html: str) -> list[str]:
    """The numbers that a page shows, in order."""
    shown = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)
    return NUMBER.findall(shown)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for builder in BUILDERS:
            command = [
                sys.executable,
                "-m",
                builder,
                "build",
                "--quiet",
                "--strict",
                "--site-dir",
                f"{folder}/{builder}",
            ]
            subprocess.run(command, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
        ours, theirs = (pages(Path(folder) / builder) for builder in BUILDERS)
    faults = [f"{name}: only one of the two builds it" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        if numbers(ours[name]) != numbers(theirs[name]):
            faults.append(f"{name}: other numbers")
        elif ours[name] != theirs[name]:
            faults.append(f"{name}: the same numbers, but not the same page")
    count = sum(map(len, map(numbers, ours.values())))
    print(
        "\n".join(faults) or f"{len(ours)} pages with {count:,} numbers are the same, built by MkDocs and by ProperDocs"
    )
    return bool(faults) or not count


if __name__ == "__main__":
    sys.exit(main())
