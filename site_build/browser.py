"""An MkDocs hook that puts Python and `calc` beside the calculator, for the reader's own browser.

Python comes as Pyodide, which `make` fetches into `node_modules/` as `package-lock.json` pins it.
`manifest.json` says where the two are: their names change with their content, so that no cache mixes versions.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PYODIDE = ROOT / "node_modules" / "pyodide"
FOLDER = "assets/calculator"
#: The parts of Pyodide that it loads when no package but the standard library is asked for.
PARTS = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add Pyodide, `calc.zip` and their manifest to what is published."""
    try:
        version = json.loads((PYODIDE / "package.json").read_text(encoding="utf-8"))["version"]
    except FileNotFoundError:
        raise PluginError("node_modules/ lacks Pyodide, which the calculator runs in; run make setup") from None
    packed = pack()
    python, calc = f"pyodide-{version}", f"calc-{hashlib.sha256(packed).hexdigest()[:12]}.zip"
    for part in PARTS:
        files.append(File.generated(config, f"{FOLDER}/{python}/{part}", abs_src_path=str(PYODIDE / part)))
    files.append(File.generated(config, f"{FOLDER}/{calc}", content=packed))
    sizes = {f"{python}/{part}": (PYODIDE / part).stat().st_size for part in PARTS}
    manifest = {"python": f"{python}/", "calc": calc, "bytes": sizes | {calc: len(packed)}}
    files.append(File.generated(config, f"{FOLDER}/manifest.json", content=json.dumps(manifest, indent=2)))
    return files


def pack() -> bytes:
    """`calc` with its data as one zip file, the same bytes for the same sources."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((ROOT / "calc").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = zipfile.ZipInfo(str(path.relative_to(ROOT)))
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return out.getvalue()
