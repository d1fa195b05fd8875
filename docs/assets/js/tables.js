// A long table in a `sortable` box gets headings that sort, a search field, a choice for its Verdict
// column, and its rows as CSV. Without this script the table is whole and in its own order.
const UNITS = { B: 0, k: 1, M: 2, G: 3, T: 4, P: 5 }

const words = (cell) => cell.innerText.trim().replace(/\s+/g, " ")

const value = (cell) => {
  const text = words(cell).replace(/[,−]/g, (sign) => (sign === "," ? "" : "-"))
  const found = text.match(/^([+-]?[\d.]+)\s*([kMGTP]?)(i?)B?/)
  if (!found) return [text === "–" || text === "" ? 2 : 1, 0, text.toLowerCase()]
  return [0, Number(found[1]) * (found[3] ? 1024 : 1000) ** (UNITS[found[2]] ?? 0), ""]
}

const before = (a, b) => a[0] - b[0] || a[1] - b[1] || a[2].localeCompare(b[2])

const csv = (rows) =>
  rows.map((row) => [...row.cells].map((cell) => `"${words(cell).replaceAll('"', '""')}"`).join(",") + "\r\n").join("")

const mount = (box) => {
  const table = box.querySelector("table")
  if (!table || box.dataset.mounted) return
  box.dataset.mounted = "yes"
  const head = table.tHead.rows[0]
  const heads = [...head.cells]
  const body = table.tBodies[0]
  const rows = [...body.rows]

  heads.forEach((cell, index) => {
    const button = document.createElement("button")
    button.type = "button"
    button.append(...cell.childNodes)
    cell.append(button)
    button.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") === "ascending"
      heads.forEach((other) => other.removeAttribute("aria-sort"))
      cell.setAttribute("aria-sort", down ? "descending" : "ascending")
      const keys = new Map(rows.map((row) => [row, value(row.cells[index])]))
      const sorted = [...rows].sort((a, b) => {
        const [left, right] = [keys.get(a), keys.get(b)]
        return left[0] - right[0] || (down ? -1 : 1) * before(left, right) // what is unknown stays last
      })
      body.append(...sorted)
    })
  })

  const verdicts = heads.findIndex((cell) => words(cell) === "Verdict")
  const bar = document.createElement("form")
  bar.className = "table-bar"
  bar.innerHTML =
    '<label>Search <input type="search" autocomplete="off"></label>' +
    (verdicts < 0 ? "" : '<label>Verdict <select><option value="">all</option></select></label>') +
    '<span role="status"></span><button type="button">Copy as CSV</button>'
  const [field, choice, status] = ["input", "select", "span"].map((name) => bar.querySelector(name))
  if (choice) {
    for (const name of new Set(rows.map((row) => words(row.cells[verdicts])))) choice.append(new Option(name))
  }
  const texts = new Map(rows.map((row) => [row, row.innerText.toLowerCase()]))
  const filter = () => {
    const wanted = field.value.toLowerCase().split(/\s+/)
    let shown = 0
    for (const row of rows) {
      const chosen = !choice?.value || words(row.cells[verdicts]) === choice.value
      row.hidden = !(chosen && wanted.every((word) => texts.get(row).includes(word)))
      shown += row.hidden ? 0 : 1
    }
    status.textContent = `${shown} of ${rows.length}`
  }
  bar.addEventListener("input", filter)
  bar.addEventListener("submit", (event) => event.preventDefault())
  bar.querySelector("button").addEventListener("click", async () => {
    const shown = [...body.rows].filter((row) => !row.hidden)
    try {
      await navigator.clipboard.writeText(csv([head, ...shown]))
      status.textContent = `${shown.length} rows copied`
    } catch {
      status.textContent = "This browser does not let a page copy"
    }
  })
  filter()
  box.prepend(bar)
}

document$.subscribe(() => document.querySelectorAll(".sortable").forEach(mount))
