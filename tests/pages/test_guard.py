"""A failed example ends the build, whatever the flags; these build a small site of one page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFIG = """
site_name: Small
theme: {name: null, custom_dir: theme}
hooks: [site_build/guard.py]
plugins: [{markdown-exec: {languages: [python], ansi: "off"}}]
markdown_extensions: [pymdownx.superfences, site_build.formulas, site_build.marks]
"""


def build(folder: Path, pages: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    for package in ("site_build", "calc"):
        shutil.copytree(ROOT / package, folder / package)
    (folder / "theme").mkdir()
    (folder / "theme" / "main.html").write_text("{{ page.content }}")
    (folder / "docs").mkdir()
    for name, text in pages.items():
        (folder / "docs" / name).write_text(text)
    (folder / "mkdocs.yml").write_text(CONFIG)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *flags],
        cwd=folder,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


def block(code: str, header: str = 'python exec="1"') -> str:
    return f"# Page\n\n```{header}\n{code}\n```\n"


@pytest.mark.parametrize("flags", [(), ("--quiet", "--strict")])
def test_a_block_that_raises_is_fatal(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ended = build(tmp_path, {"index.md": block("1 / 0")}, *flags)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "index.md" in ended.stderr
    assert not (tmp_path / "site" / "index.html").exists()


def test_a_block_that_exits_as_a_success_is_fatal(tmp_path: Path) -> None:
    ended = build(tmp_path, {"index.md": block("raise SystemExit(0)")}, "--quiet")
    assert ended.returncode == 1
    assert "SystemExit(0)" in ended.stderr


@pytest.mark.parametrize("flags", [(), ("--quiet", "--strict")])
def test_a_stale_number_is_fatal(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ended = build(tmp_path, {"index.md": "# Page\n\n7 GB<!--= params 8B : params_total -->\n"}, *flags)
    assert ended.returncode == 1
    assert "docs/index.md:3:1: said 7 GB, computed 8 GB (params 8B : params_total); run make numbers" in ended.stderr


def test_a_misspelt_option_is_fatal(tmp_path: Path) -> None:
    ended = build(tmp_path, {"index.md": "---\na: b\n---\n" + block("print(1)", 'python exec="1" sesion="a"')})
    assert ended.returncode == 1
    assert "index.md: line 6: unknown fence option 'sesion'" in ended.stderr


def test_a_session_lives_for_one_page(tmp_path: Path) -> None:
    two = '```python exec="1" session="s"\nx = 1\n```\n\n```python exec="1" session="s"\nprint(x + 1)\n```\n'
    one = '```python exec="1" session="s"\nprint("x" in globals())\n```\n'
    ended = build(tmp_path, {"index.md": two, "later.md": one}, "--strict")
    assert ended.returncode == 0, ended.stderr
    assert "2" in (tmp_path / "site" / "index.html").read_text()
    assert "False" in (tmp_path / "site" / "later" / "index.html").read_text()
