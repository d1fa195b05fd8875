// node parity.mjs PYODIDE CALC_ZIP GRID.py: what the browser's Python answers to the grid, one line a run.
import { readFileSync } from "node:fs"

const [pyodide, zip, grid] = process.argv.slice(2)
try {
  const { loadPyodide } = await import(`${pyodide}/pyodide.mjs`)
  const python = await loadPyodide({ indexURL: pyodide })
  python.unpackArchive(new Uint8Array(readFileSync(zip)), "zip", { extractDir: "/site" })
  python.runPython(`import sys; sys.path.insert(0, "/site")`)
  python.runPython(readFileSync(grid, "utf8"))
  console.log(python.runPython(`"\\n".join(results())`))
} catch (error) {
  console.error(error.message) // without it Node prints the whole of Pyodide's one long line
  process.exit(1)
}
