"""Builds the site once, strictly, under the URL path that a published copy would have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

ROOT = Path(__file__).parents[1]
SITE_URL = "https://site.invalid/sixteen-bytes/"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; its parent is what a server would call its root."""
    folder = tmp_path_factory.mktemp("www") / "sixteen-bytes"
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"SITE_URL": SITE_URL, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, f"the strict build failed:\n{build.stdout}{build.stderr}"
    assert not build.stderr, f"the strict build has something to say:\n{build.stderr}"
    return folder
