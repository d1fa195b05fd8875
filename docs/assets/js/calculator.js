// Finds the calculator on the page that is shown, also when pages are swapped without loading.
document$.subscribe(() => {
  const form = document.querySelector(".calc-form")
  if (form) import("./calculator-page.js").then(({ mount }) => mount(form))
})
