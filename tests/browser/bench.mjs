// node bench.mjs PYODIDE CALC_ZIP: milliseconds until the calculator's first answer, and for a later one.
import { readFileSync } from "node:fs"

const [pyodide, zip] = process.argv.slice(2)
const begun = performance.now()
const { loadPyodide } = await import(`${pyodide}/pyodide.mjs`)
const python = await loadPyodide({ indexURL: pyodide })
python.unpackArchive(new Uint8Array(readFileSync(zip)), "zip", { extractDir: "/site" })
const calculated = python.runPython(`
import sys
sys.path.insert(0, "/site")
from calc.cli import calculated
calculated`)
const ask = gpus => calculated(python.toPy(["estimate", "llama-3.3-70b", `--gpus=${gpus}`, "--gpu=h100-sxm5-80gb"])).destroy()
ask(8)
const first = performance.now()
for (let gpus = 9; gpus < 29; gpus++) ask(gpus)
console.log(first - begun, (performance.now() - first) / 20)
