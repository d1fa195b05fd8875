// Runs calc itself: CPython as WebAssembly, from this site and nowhere else, started by the first question.

const here = new URL("../calculator/", import.meta.url)
const fetched = globalThis.fetch
let answer

self.addEventListener("message", ({ data }) => {
  answer ??= start()
  answer.then(ask => self.postMessage(ask(data))).catch(error => self.postMessage({ lost: String(error.message ?? error) }))
})

async function start() {
  const manifest = await (await fetched(new URL("manifest.json", here), { cache: "no-cache" })).json()
  const python = new URL(manifest.python, here)
  const counted = counter(manifest.bytes)
  globalThis.fetch = counted // Pyodide fetches its parts with this
  const calc = counted(new URL(manifest.calc, here)).then(response => response.arrayBuffer())
  const { loadPyodide } = await import(new URL("pyodide.mjs", python))
  const pyodide = await loadPyodide({ indexURL: python.href })
  globalThis.fetch = fetched
  doing("Starting calc", 1)
  pyodide.unpackArchive(await calc, "zip", { extractDir: "/site" })
  const calculated = pyodide.runPython(`
import sys
sys.path.insert(0, "/site")
from calc.cli import calculated
calculated`)
  return ({ argv, files }) => {
    for (const [name, text] of Object.entries(files)) pyodide.FS.writeFile(name, text)
    const found = calculated(pyodide.toPy(argv))
    const [kind, text] = found.toJs()
    found.destroy()
    for (const name of Object.keys(files)) pyodide.FS.unlink(name)
    return { [kind]: text }
  }
}

function doing(text, share) {
  self.postMessage({ doing: text, share })
}

/** A fetch that tells how much of the parts has come, in bytes as they are unpacked. */
function counter(sizes) {
  const whole = Object.values(sizes).reduce((sum, size) => sum + size, 0)
  const text = `Fetching Python for this page, ${(whole / 1e6).toFixed(1)} MB, once`
  let come = 0
  let told = -1
  doing(text, 0)
  return async (...request) => {
    const response = await fetched(...request)
    if (!response.ok) throw new Error(`${response.url} answered ${response.status}`)
    const counting = new TransformStream({
      transform(chunk, controller) {
        come += chunk.byteLength
        const share = Math.min(1, come / whole)
        if (share - told >= 0.01) doing(share > 0.9 ? "Starting Python" : text, (told = share))
        controller.enqueue(chunk)
      },
    })
    return new Response(response.body.pipeThrough(counting), { status: response.status, headers: response.headers })
  }
}
