"""What turns docs/ into the published site, beside MkDocs and its theme.

`guard` makes a failed example fatal, `fences` says what a fenced block may look like,
`browser` publishes Python and `calc` for the calculator, `formulas` and `marks` are
Python-Markdown extensions, `theme/` overrides a few templates.
"""
