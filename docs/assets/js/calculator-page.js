// The calculator's page: form ⇄ address, and the answer that the worker computes with calc itself.

// Fields whose text is handed over as a file, with the name that calc opens.
const PASTED = {
  config: () => "config.json",
  "config-file": text => (text.trimStart().startsWith("{") ? "ds_config.json" : "accelerate.yaml"),
}
const LONGEST_ADDRESS = 8000 // bytes that servers commonly take

let page // what is shown: its form, its answer, the run of the form as built
let worker
let sent // the question that the worker has
let next // the one to ask after it

export function mount(form) {
  form.reset() // a browser fills in what was typed before a reload; the address says what counts
  page = { form, answer: document.querySelector(".calc-answer"), usual: read(form), asked: "{}" }
  page.built = page.answer.innerHTML
  combobox(form)
  let wait
  form.addEventListener("input", ({ target }) => {
    if (target.getAttribute("role") === "combobox") return // a name is asked for once it is complete
    clearTimeout(wait)
    if (target.value !== "" || target.tagName === "TEXTAREA") wait = setTimeout(changed, 250)
  })
  form.addEventListener("change", () => (clearTimeout(wait), changed()))
  form.addEventListener("submit", event => (event.preventDefault(), clearTimeout(wait), changed()))
  form.addEventListener("reset", () => setTimeout(changed))
  form.querySelector(".calc-share").addEventListener("click", share)
  page.answer.addEventListener("click", follow)
  fromAddress()
  if (page.asked !== "{}") say("The answer for this run comes here.") // and not the built one, under another run
}

addEventListener("popstate", () => page?.form.isConnected && fromAddress())

// ---- form and address ------------------------------------------------------------------------

function read(form) {
  return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value]))
}

/** What the form says beyond its state as built, with model, GPUs and card always named. */
function chosen() {
  const now = read(page.form)
  const names = Object.keys({ ...page.usual, ...now })
  const different = names.filter(name => now[name] !== page.usual[name])
  if (!different.length) return {}
  const kept = names.filter(name => different.includes(name) || ["model", "gpus", "gpu"].includes(name))
  return Object.fromEntries(kept.map(name => [name, now[name] ?? ""]))
}

function fill(given) {
  page.form.reset()
  for (const control of page.form.elements) {
    if (!control.name || !given.has(control.name)) continue
    const value = given.get(control.name)
    if (control.type === "checkbox") control.checked = value !== ""
    else if (control.tagName === "SELECT" && ![...control.options].some(option => option.value === value)) {
      control.add(new Option(value, value)) // not a word we know, so that calc says what is allowed
      control.value = value
    } else control.value = value
  }
  for (const area of page.form.querySelectorAll("textarea")) {
    if (area.value) area.closest("details").open = true
  }
}

function fromAddress() {
  fill(new URLSearchParams(location.search))
  ask()
}

function address(given) {
  const query = new URLSearchParams(given).toString()
  const url = new URL(location.href)
  url.search = query
  if (url.href.length <= LONGEST_ADDRESS) return url
  for (const name of Object.keys(PASTED)) url.searchParams.delete(name)
  return url
}

function changed() {
  const { form } = page
  const { config, model } = form.elements
  if (config && document.activeElement === config) {
    if (config.value.trim()) model.value = "config.json"
    else if (model.value === "config.json") model.value = page.usual.model
  }
  history.replaceState(history.state, "", address(chosen()))
  ask()
}

/** A link in the answer is another run (its address is absolute once pages were swapped): take it without leaving the page, and keep what was pasted. */
function follow(event) {
  const link = event.target.closest("a.calc-run")
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return
  event.preventDefault()
  event.stopPropagation()
  const given = new URLSearchParams(link.search)
  const pasted = page.form.elements.config?.value
  if (pasted && given.get("model") === "config.json") given.set("config", pasted)
  fill(given)
  history.pushState(null, "", address(chosen()))
  ask()
  page.answer.querySelector(".calc-verdict").scrollIntoView({ block: "nearest" })
}

async function share({ target }) {
  const url = address(chosen())
  const left = Object.keys(PASTED).some(name => page.form.elements[name]?.value && !url.searchParams.has(name))
  try {
    await navigator.clipboard.writeText(url.href)
    tell(left ? "Copied; the pasted file is too long for a link and is not in it." : "Copied.")
  } catch {
    tell("The browser does not let this page copy; the link is in the address bar.")
  }
  target.focus()
}

// ---- asking ----------------------------------------------------------------------------------

function ask() {
  const given = chosen()
  const question = JSON.stringify(given)
  if (question === page.asked) return // leaving a field says again what typing in it said
  page.asked = question
  tell("")
  if (!Object.keys(given).length) {
    next = undefined
    sent &&= { ...sent, stale: true }
    loaded()
    return show(page.built)
  }
  const { model, ...options } = { ...page.usual, ...given }
  const files = {}
  const argv = ["estimate", model]
  for (const [name, value] of Object.entries(options)) {
    if (!(name in PASTED)) {
      if (name in given || name === "gpus" || name === "gpu") argv.push(...option(name, value))
    } else if (value.trim()) {
      const file = PASTED[name](value)
      files[file] = value
      if (name === "config-file") argv.push(...option(name, file))
    }
  }
  next = { argv, files, answer: page.answer }
  send()
}

function option(name, value) {
  const checkbox = page.form.elements[name]?.type === "checkbox"
  return checkbox ? (value ? [`--${name}`] : []) : [`--${name}=${value}`]
}

function send() {
  if (sent || !next) return
  sent = next
  next = undefined
  page.answer.setAttribute("aria-busy", "true")
  if (!worker) {
    worker = new Worker(new URL("calculator-worker.js", import.meta.url), { type: "module" })
    worker.addEventListener("message", ({ data }) => heard(data))
    worker.addEventListener("error", event => lost(event.message))
  }
  const { argv, files } = sent
  worker.postMessage({ argv, files })
}

function heard(data) {
  if (data.doing) return progress(data)
  if (data.lost) return lost(data.lost)
  const { answer, stale } = sent
  sent = undefined
  if (next) return send() // the reader has moved on
  answer.removeAttribute("aria-busy")
  if (stale || answer !== page.answer) return
  loaded()
  if (data.error) refuse(data.error)
  else show(data.html)
}

function lost(why) {
  worker?.terminate()
  worker = sent = next = page.asked = undefined
  refuse(`This browser could not run Python (${why}). The command line gives the same answer: python -m calc estimate`)
}

// ---- showing ---------------------------------------------------------------------------------

/** Put an answer in place; its verdict goes into the element that is there, so that it is read out. */
function show(html) {
  const { answer } = page
  answer.removeAttribute("aria-busy")
  const fresh = document.createElement("template")
  fresh.innerHTML = html
  page.open = [...answer.querySelectorAll("details[open]")].map(({ dataset }) => dataset.name)
  const verdict = answer.querySelector(".calc-verdict")
  const said = fresh.content.querySelector(".calc-verdict")
  if (verdict.innerHTML !== said.innerHTML) verdict.replaceChildren(...said.childNodes)
  said.remove()
  while (verdict.nextSibling) verdict.nextSibling.remove()
  for (const name of page.open ?? []) fresh.content.querySelector(`details[data-name="${name}"]`)?.setAttribute("open", "")
  answer.append(fresh.content)
  dress(answer)
}

/** What the theme does to tables and code once, when a page is shown, for those that came later. */
function dress(answer) {
  for (const table of answer.querySelectorAll("table")) {
    if (table.closest(".md-typeset__scrollwrap")) continue
    const inner = made("div", { className: "md-typeset__table" })
    table.replaceWith(made("div", { className: "md-typeset__scrollwrap" }, inner))
    inner.append(table)
  }
  for (const block of answer.querySelectorAll("pre")) {
    if (block.querySelector("button")) continue
    const copy = made("button", { className: "md-code__button", title: "Copy to clipboard" })
    Object.assign(copy.dataset, { clipboardTarget: `#${block.id} > code`, mdType: "copy" })
    block.prepend(made("nav", { className: "md-code__nav" }, copy))
  }
}

function made(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties)
  element.append(...children)
  return element
}

function refuse(line) {
  const { answer } = page
  answer.removeAttribute("aria-busy")
  loaded()
  say(line, "calc-error")
}

/** One line in place of the whole answer. */
function say(line, className = "") {
  const verdict = page.answer.querySelector(".calc-verdict")
  verdict.replaceChildren(made("p", { className, textContent: line }))
  while (verdict.nextSibling) verdict.nextSibling.remove()
}

function tell(text) {
  page.form.querySelector(".calc-told").textContent = text
}

function loaded() {
  page.form.querySelector(".calc-progress").replaceChildren()
}

function progress({ doing, share }) {
  const box = page.form.querySelector(".calc-progress")
  let [bar, text] = box.children
  if (!bar) {
    bar = made("progress", { max: 1, ariaLabel: "Loading" })
    text = made("span")
    box.replaceChildren(bar, text)
  }
  bar.value = share
  if (text.textContent !== doing) text.textContent = doing
}

// ---- the model's field -----------------------------------------------------------------------

/** A text field with a list that is searched while one types, by pointer or by keyboard. */
function combobox(form) {
  const field = form.querySelector("[role=combobox]")
  const list = form.querySelector("[role=listbox]")
  const options = [...list.children]
  let active

  const visible = () => options.filter(option => !option.hidden)
  const close = () => {
    list.hidden = true
    field.setAttribute("aria-expanded", "false")
    mark()
  }
  const open = words => {
    const parts = words.toLowerCase().split(/\s+/)
    for (const option of options) {
      const name = `${option.dataset.value} ${option.dataset.also}`
      option.hidden = !parts.every(part => name.includes(part))
    }
    list.hidden = !visible().length
    field.setAttribute("aria-expanded", String(!list.hidden))
    mark()
  }
  const mark = option => {
    active?.setAttribute("aria-selected", "false")
    active = option
    active?.setAttribute("aria-selected", "true")
    active?.scrollIntoView({ block: "nearest" })
    if (active) field.setAttribute("aria-activedescendant", active.id)
    else field.removeAttribute("aria-activedescendant")
  }
  const take = option => {
    field.value = option.dataset.value
    close()
    changed()
  }

  field.addEventListener("focus", () => field.select())
  field.addEventListener("click", () => list.hidden && open(""))
  field.addEventListener("input", () => open(field.value))
  field.addEventListener("blur", close)
  field.addEventListener("keydown", event => {
    const shown = visible()
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step) {
      event.preventDefault()
      if (list.hidden) open("")
      const there = visible()
      const from = active ? there.indexOf(active) + step : step > 0 ? 0 : -1
      mark(there.at(from % there.length))
    } else if (event.key === "Enter") {
      event.preventDefault()
      if (!list.hidden && active) take(active)
      else (close(), changed())
    } else if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation()
      close()
    } else if (event.key === "Tab" && !list.hidden && !active && shown.length === 1) mark()
  })
  list.addEventListener("pointerdown", event => event.preventDefault()) // the field keeps the focus
  list.addEventListener("click", event => {
    const option = event.target.closest("[role=option]")
    if (option) take(option)
  })
}
