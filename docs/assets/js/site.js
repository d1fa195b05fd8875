// What scrolls sideways can be reached with the keyboard. Material wraps tables once a page is
// shown, also when it swaps pages without loading, so this looks again whenever either happens.
// Material gives its search dialog and its bars of copy buttons no names of their own.
document$.subscribe(() => {
  document.querySelector(".md-search").setAttribute("aria-label", "Search this site")
  const look = () => {
    document.querySelectorAll(".md-code__nav").forEach((bar, index) => bar.setAttribute("aria-label", `Code ${index + 1}`))
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .formula")) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0
      else box.removeAttribute("tabindex")
    }
  }
  requestAnimationFrame(look)
  new ResizeObserver(look).observe(document.querySelector("article"))
})
