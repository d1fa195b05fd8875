from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def copy_to(folder: Path) -> Path:
    """A copy of what a commit would hold now."""
    kept = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(kept, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "node_modules").symlink_to(ROOT / "node_modules")  # fetched, never committed
    return folder


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A copy to plant a fault in."""
    return copy_to(tmp_path)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for the tests of one file, which leave it as it is."""
    return copy_to(tmp_path_factory.mktemp("copy"))
