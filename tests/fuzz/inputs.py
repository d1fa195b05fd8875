"""Hostile input for the command line, the same for the same seed: files, messages and arguments.

Each starts from something real and goes wrong in a few places: a value of the wrong kind or size,
a key that is missing or unknown, bytes cut, doubled or put in.
"""

from __future__ import annotations

import json
import re
from argparse import Action
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from calc import models
from calc.cli import parser
from calc.configs import FORMATS
from calc.units import records

#: What JSON can say and a number cannot be; `@…@` is put into a file as it is, without quotes.
RAW = ("1e400", "-1e400", "9" * 5000, "1.5e-400", "0x10", "01", "+1", "NaN", "[" * 3000 + "]" * 3000, "[" * 50_000)
NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, 2**63, 10**18, -(10**18), 0.5, -0.0, 1e308, float("inf"), None, True, False)
TEXTS = ("", "8", "auto", "none", "true", "llama", "\0", "\ud800", "é" * 9, "a" * 3000, "../../etc/passwd")
BOXES = ([], [[]], [0], [10**18] * 3, ["a", None], {}, {"a": {}}, {"model_type": "llama"}, {"": [[[{}]]]})
HOSTILE: tuple[Any, ...] = (*NUMBERS, *TEXTS, *BOXES, *(f"@{raw}@" for raw in RAW))
#: What stands where an argument, a word of a mark or a name belongs.
WORDS = (
    *(
        "",
        "\0",
        "\udcff",
        "a\nb",
        "é",
        "\u202e",
        "%s%n",
        "{0}",
        "$(id)",
        "~nobody/x",
        "a" * 5000,
        "9" * 5000,
        "\x1b[2J",
    ),
    *("0", "1", "-1", "8", "1" + "0" * 21, "1e400", "nan", "inf", "1_000", "٣", "½", "0x10", "1.5", "70B", "9e999B"),
    *("-", "--", "-h", "~", ".", "/", "/dev/null", "llama-3.1-8b", "LLAMA-3.3-70B", "deepseek-v3", "zero3", "nf4"),
)
PIECES = (b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\t", b"{", b"]", b'"', b"&a", b"1e400", b"-->", b"\x1b[2J")


def near(random: Random, record: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a JSON object with up to three of its values, at any depth, hostile or gone."""
    found = json.loads(json.dumps(dict(record)))
    for _ in range(random.choice((0, 0, 1, 1, 3))):
        place = found
        key = random.choice([*place, "extra"])
        while isinstance(place.get(key), dict) and place[key] and random.random() < 0.7:
            place = place[key]
            key = random.choice(list(place))
        if random.random() < 0.2:
            place.pop(key, None)
        else:
            place[key] = deepcopy(random.choice(HOSTILE if random.random() < 0.6 else (1, 2, 3, 8, 64, True, None)))
    return found


def as_json(value: object) -> bytes:
    return re.sub(r'"@([^"@]*)@"', r"\1", json.dumps(value)).encode()


def torn(random: Random, data: bytes) -> bytes:
    """Mostly the same bytes, else some of them cut, doubled or put in."""
    for _ in range(random.choice((*(0,) * 9, 1, 2, 9))):
        at, to = sorted(random.randrange(len(data) + 1) for _ in "ab")
        put = random.choice(PIECES)
        data = random.choice((data[:at], data[:at] + put + data[at:], data[:at] + put + data[to:], data + data[at:to]))
    return data[:100_000]


@cache
def commands() -> Mapping[str, tuple[Action, ...]]:
    (subs,) = (action.choices for action in parser()._actions if isinstance(action.choices, dict))
    return {
        name: tuple(action for action in sub._actions if action.option_strings and action.dest != "help")
        for name, sub in subs.items()
    }


def options(random: Random, command: str) -> list[str]:
    """Up to three options of the command, most with a value that its help lists, some with a hostile one."""
    given: list[str] = []
    for action in random.choices(commands()[command], k=random.choice((0, 0, 1, 2, 3))):
        listed = re.fullmatch(r"[\w+-]+(?:, [\w+-]+)+", action.help or "")
        value = random.choice(listed[0].split(", ") if listed else ("1", "2", "3", "8", "true", "false", "q_proj"))
        value = value if random.random() < 0.9 else random.choice(WORDS)
        given += [action.option_strings[-1], *([value] if action.nargs != 0 else [])]
    return given


def run(random: Random, model: str, command: str = "") -> list[str]:
    """A command about a model, on some GPUs."""
    command = command or random.choice(("params", "estimate", "estimate", "fit", "config", "communication", "oom"))
    given = [command, *["Tried to allocate 3.92 GiB"] * (command == "oom"), model, *options(random, command)]
    if command not in ("params", "fit"):
        given += ["--gpus", random.choice(("1", "2", "8", "8", "7", "1024", "1000000"))]
    return [*given, "--format", random.choice(list(FORMATS))] if command == "config" else given


def model_config(random: Random, folder: Path) -> list[str]:
    config = dict(random.choice(models.known())["config"])
    if "num_hidden_layers" in config and random.random() < 0.5:
        config["num_hidden_layers"] = random.choice((1, 2, 3, 10**4, 10**18))
    (folder / "config.json").write_bytes(torn(random, as_json(near(random, config))))
    return run(random, str(folder / "config.json"))


def deepspeed(random: Random, folder: Path) -> list[str]:
    sections = {r["section"]: r["keys"] for r in records("config-keys") if r["library"] == "deepspeed"}
    config: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"stage": random.choice((1, 2, 3))}}
    for section in random.choices(list(sections), k=random.randint(0, 3)):
        place = config
        for name in filter(None, section.split(".")):
            place = place.setdefault(name, {}) if isinstance(place.get(name, {}), dict) else {}
        place[random.choice(sections[section])] = deepcopy(
            random.choice((*HOSTILE, 5e8, 10**9, "cpu", {"device": "cpu"}))
        )
    (folder / "ds.json").write_bytes(torn(random, as_json(near(random, config))))
    return [*run(random, "llama-3.1-8b", "estimate"), "--config-file", str(folder / "ds.json")]


LAUGHS = "a: &a [x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in pairwise("abcdefghi"))
SCALARS = (
    *("'no'", '"x"', "'x", "&a x", "*a", "!!python/object:os.system x", "{a: 1}", "[1]", "- a", "9" * 5000, "\t", "\0"),
    *("8", "0", "-1", "no", "|", ">", "?", "{}", "[]", "1e400", ".inf", "0o17", "1:30", "ds.json", "/"),
    *("1", "2", "true", "false", "cpu", "none", "FULL_SHARD", "SHARDED_STATE_DICT", "TRANSFORMER_BASED_WRAP") * 3,
)


def accelerate(random: Random, folder: Path) -> list[str]:
    sections = {r["section"]: r["keys"] for r in records("config-keys") if r["library"] == "accelerate"}
    kind = random.choice(("FSDP", "FSDP", "DEEPSPEED", "MULTI_GPU", "NO", "TPU"))
    lines = [f"distributed_type: {kind}", "mixed_precision: bf16"]
    if kind == "FSDP" and random.random() < 0.5:
        lines += ["fsdp_config:", "  fsdp_version: 2", "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"]
    for section in random.sample(list(sections), random.randint(0, len(sections))):
        lines += [f"{section}:"] * bool(section)
        lines += [
            f"{'  ' * bool(section)}{key}: {random.choice(SCALARS)}"
            for key in random.sample(list(sections[section]), random.randint(0, min(3, len(sections[section]))))
        ]
    if random.random() < 0.1:
        lines.append(random.choice((LAUGHS, "\n".join(" " * n + "a:" for n in range(3000)), "a: " * 999, "---\n" * 9)))
    (folder / "a.yaml").write_bytes(torn(random, "\n".join(lines).encode()))
    return [*run(random, "llama-3.1-8b", "estimate"), "--config-file", str(folder / "a.yaml")]


def oom_message(random: Random, folder: Path) -> list[str]:
    wordings = [wording for record in records("oom-wordings") for wording in record["wordings"]]
    numbers = ("0", "3.92", "79.19", "9" * 4400, "1" + "0" * 40, "0." + "0" * 400 + "1", "1e400", "-3", "nan", "٣")
    parts = ["CUDA out of memory."] * random.randint(0, 2)
    for wording in random.choices(wordings, k=4):
        unit = random.choice(("GiB", "MiB", "GB", "bytes", "KiB", "TiB", "PiB", "XiB", ""))
        parts.append(wording.replace("{q}", f"{random.choice(numbers)} {unit}"))
    text = torn(random, " ".join(parts).encode()).replace(b"\0", b"")
    (folder / "log").write_bytes(text * random.choice((1, 1, 1, 50)))
    message = str(folder / "log") if random.random() < 0.5 else text.decode("utf-8", "surrogateescape")
    model = random.choice(("llama-3.1-8b", "70B"))
    return ["oom", message, *(run(random, model, "oom")[2:] if random.random() < 0.4 else [])]


MARKS = (
    "141.1 GB<!--= estimate llama-3.3-70b gpus=8 strategy=zero3 : states_bytes -->",
    *("7<!--= params 70B : params_total -->", "53 GB<!--~ text-c -->", "80 GB", "16 B/param", "<!--=", "<!--~", "-->"),
    *("`", "```\n", "~~~\n", "$", "$$", "| a |\n", "---\n", "<code>", "</code>", "<math>", "](", "https://", "\\"),
    *("&nbsp;", "1,2,3,4", "\r\n", "\u2028", "é", "\n", " ", "\x1b[2J"),
)
ASKED = (
    *("params", "estimate", "fit", "gpus=8", "strategy=zero3", ":", ":", "/", "*", "states_bytes", "[slug=x]", "rows"),
    *("check", "oom", "__class__", "import os", "lambda: 0", "()", "9**9**9"),
)


def document(random: Random, folder: Path) -> list[str]:
    pieces = random.choices(MARKS, k=random.randint(1, 30))
    if random.random() < 0.5:
        pieces.append(f"9.9 GB<!--= {' '.join(random.choices((*WORDS, *ASKED), k=5))} -->")
    data = "".join(pieces).encode("utf-8", "surrogateescape") * random.choice((1, 1, 1, 40))
    page = folder / random.choice(("page.md", "page.md", "page.ipynb"))
    if page.suffix == ".ipynb":
        cell = {"cell_type": "markdown", "source": ["".join(pieces), random.choice(HOSTILE)]}
        data = as_json({"cells": [cell, {"cell_type": "code", "source": "80 GB"}, random.choice(HOSTILE)]})
    page.write_bytes(torn(random, data))
    return ["check", str(page), *random.sample(("--fix", "--json", "--only-marked"), random.randint(0, 3))]


def arguments(random: Random, folder: Path) -> list[str]:
    command = random.choice(list(commands()))
    given = [command, *random.choices(WORDS, k=random.randint(0, 2)), *options(random, command)]
    given = given if random.random() < 0.3 else run(random, random.choice(WORDS))
    given.insert(random.randrange(len(given) + 1), random.choice((*WORDS, "--json", "--json")))
    return [word for word in given if word != "-"]  # standard input is none of this


KINDS: Mapping[str, Callable[[Random, Path], list[str]]] = {
    kind.__name__: kind for kind in (model_config, deepspeed, accelerate, oom_message, document, arguments)
}
