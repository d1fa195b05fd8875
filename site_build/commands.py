"""The command line as Markdown, from the parser's own actions: nothing is typed twice."""

from __future__ import annotations

import argparse
from collections import Counter

from calc.tables.text import markdown


def commands_table(parser: argparse.ArgumentParser) -> str:
    """Every command of a parser with its arguments and what it answers."""
    rows = []
    for name, sub in _commands(parser).items():
        words = " ".join(_word(action) for action in sub._actions if not action.option_strings)
        rows.append([f"`{' '.join(filter(None, (name, words)))}`", sub.description or ""])
    return markdown(["Command", "Answers"], rows)


def options_table(parser: argparse.ArgumentParser) -> str:
    """The options that describe a run, which several commands share."""
    shared = _shared(parser)
    rows = [_row(action) for action in _commands(parser)["estimate"]._actions if _key(action) in shared]
    return markdown(["Option", "Default", "Meaning"], [row for row in rows if row])


def own_options_table(parser: argparse.ArgumentParser) -> str:
    """The options that a command has for itself."""
    shared = _shared(parser)
    rows = [
        [f"`{name}`", *row]
        for name, sub in _commands(parser).items()
        for action in sub._actions
        if _key(action) not in shared and (row := _row(action))
    ]
    return markdown(["Command", "Option", "Default", "Meaning"], rows)


def _shared(parser: argparse.ArgumentParser) -> set[tuple[str, str | None]]:
    seen = Counter(_key(action) for sub in _commands(parser).values() for action in sub._actions)
    return {key for key, count in seen.items() if count > 2}


def _row(action: argparse.Action) -> list[str]:
    """An option with its default and its help; nothing for what is no option, or one of every command."""
    if not action.option_strings or action.dest in ("help", "json"):
        return []
    default = "" if action.default in (None, "", False) else f"`{action.default}`"
    name = " ".join(
        filter(None, (action.option_strings[-1], action.metavar if isinstance(action.metavar, str) else ""))
    )
    return [f"`{name}`", default or ("required" if action.required else ""), action.help or ""]


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(dict(action.choices) for action in parser._actions if isinstance(action.choices, dict))


def _key(action: argparse.Action) -> tuple[str, str | None]:
    return action.dest, action.help


def _word(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return f"[{name}]" if action.nargs == "?" else f"{name}…" if action.nargs == "+" else name
