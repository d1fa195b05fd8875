"""The Python reference: each public name of a module with its signature and its own docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType


def api(name: str) -> str:
    """The public functions and classes of one module as Markdown, in the module's own order.

    Headings are HTML: what a block prints as a Markdown heading comes out inside a paragraph.
    """
    module = importlib.import_module(name)
    parts = [_prose(inspect.getdoc(module) or "")]
    for title, member in _public(module):
        heading = f'<h4 id="{name}.{title}"><code>{title}</code></h4>'
        parts += [heading, _signature(title, member), _prose(inspect.getdoc(member) or "")]
    return "\n\n".join(parts)


def _public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """What a module defines itself and does not hide, and in a package what it exports."""
    exported = getattr(module, "__all__", ())
    for title, member in vars(module).items():
        own = getattr(member, "__module__", "") == module.__name__ or title in exported
        if (
            own
            and not title.startswith("_")
            and (inspect.isfunction(inspect.unwrap(member)) or inspect.isclass(member))
        ):
            yield title, member


def _signature(title: str, member: object) -> str:
    """As it is called, one argument a line where they do not fit into one."""
    target = inspect.unwrap(member)  # type: ignore[arg-type]
    if inspect.isclass(target) and issubclass(target, (Exception, Enum)):  # called as their bases are
        members = "".join(f"\n    {each.name} = {each.value!r}" for each in target) if issubclass(target, Enum) else ""
        bases = ", ".join(base.__name__ for base in target.__bases__)
        return f"```python\nclass {title}({bases}){':' if members else ''}{members}\n```"
    found = inspect.signature(target)
    # Annotations are text here, which is shown without its quotes.
    arguments = [re.sub(r": '([^']*)'", r": \1", str(argument)) for argument in found.parameters.values()]
    arguments = [re.sub(r"= <.*>$", "= …", argument) for argument in arguments]  # a function has no text of its own
    keywords = [argument.kind is inspect.Parameter.KEYWORD_ONLY for argument in found.parameters.values()]
    if any(keywords):
        arguments.insert(keywords.index(True), "*")
    returned = "" if inspect.isclass(target) else f" -> {found.return_annotation}"
    text = f"{title}({', '.join(arguments)}){returned}"
    if len(text) > 88:
        text = f"{title}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returned}"
    return f"```python\n{text}\n```"


def _prose(doc: str) -> str:
    """A docstring as Markdown, its doctests as blocks."""
    return re.sub(r"^>>> .*(?:\n.+)*", lambda found: f"```pycon\n{found[0]}\n```", doc, flags=re.MULTILINE)
