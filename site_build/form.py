"""The calculator's form as HTML: a field for each option of `calc estimate`, read from its own parser.

An option that the command line gains appears here by itself, under the rest.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from calc import models
from calc.gpus import known
from calc.optimizers import OPTIMIZERS
from calc.precision import RECIPES
from calc.settings import CHOICES, SETTINGS
from calc.stacks import STRATEGIES
from calc.tables.text import short, size

#: The run that the page shows first.
MODEL, GPUS, GPU = "llama-3.3-70b", 8, "h100-sxm5-80gb"

_GROUPS = {
    "Run": ("model", "gpu", "gpus"),
    "Training": ("strategy", "recipe", "optimizer"),
    "Batch": ("seq-len", "micro-batch", "accumulation", "checkpointing"),
    "Adapters": ("lora-rank", "base-dtype", "lora-targets"),
}
_LABELS = {
    "gpu": "Card",
    "gpus": "GPUs",
    "seq-len": "Sequence, tokens",
    "micro-batch": "Micro-batch, sequences",
    "accumulation": "Accumulated micro-batches",
    "checkpointing": "Activation checkpointing",
    "lora-rank": "LoRA rank, 0 for none",
    "lora-targets": "LoRA targets",
    "base-dtype": "Frozen base",
    "tp": "Tensor parallel",
    "pp": "Pipeline parallel",
    "cp": "Context parallel",
    "ep": "Expert parallel",
    "shard-size": "HSDP group, 0 for 8",
    "attention": "Attention",
    "loss": "Logits and loss",
    "step": "Optimizer step",
    "reduce-dtype": "Gradients reduced in",
    "wrap": "FSDP units",
    "load": "Model loaded on",
    "save": "Checkpoints",
    "offload": "Offload to the host",
    **{name.replace("_", "-"): name for name in SETTINGS if name != "wrap"},  # as the library spells them
}
_EMPTY = {"strategy": "by the number of GPUs", "recipe": "the strategy's own", "reduce-dtype": "the recipe's own"}
_LEFT_OUT = ("help", "json", "model", "gpu", "gate", "config-file", "timeline")


def form(parser: argparse.ArgumentParser) -> str:
    """The whole form, its fields at the command line's defaults and at the page's own run."""
    options = dict(_options(parser))
    first = {name for names in _GROUPS.values() for name in names}
    rest = [name for name in options if name not in first]
    groups = "".join(_group(title, [_field(n, options) for n in names]) for title, names in _GROUPS.items())
    config_file = _paste(
        "config-file", "Paste a DeepSpeed JSON or an Accelerate YAML", "What it says counts as chosen."
    )
    has_file = "config-file" in {_name(action) for action in _estimate(parser)}
    return (
        '<form class="calc-form" autocomplete="off" data-search-exclude aria-label="The run">'
        f"{groups}"
        f'<details class="calc-more"><summary>Every other setting</summary>'
        f"{_group('Settings', [_field(name, options) for name in rest])}</details>"
        f"{_paste('config', 'Paste a config.json', 'Any architecture that calc counts, from its own file.')}"
        f"{config_file if has_file else ''}"
        '<p class="calc-buttons"><button type="button" class="md-button calc-share">Copy a link to this run</button>'
        '<button type="reset" class="md-button">Start again</button><span class="calc-told" role="status"></span></p>'
        '<div class="calc-progress" role="status"></div>'
        "</form>"
        '<p class="calc-still">The form needs JavaScript. Without it, ask the command line, as shown below.</p>'
    )


def _estimate(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return next(a.choices["estimate"]._actions for a in parser._actions if isinstance(a.choices, Mapping))


def _name(action: argparse.Action) -> str:
    return action.option_strings[-1].removeprefix("--") if action.option_strings else action.dest


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    return ((_name(action), action) for action in _estimate(parser) if _name(action) not in _LEFT_OUT)


def _group(title: str, parts: Iterable[str]) -> str:
    return f"<fieldset><legend>{title}</legend>{''.join(parts)}</fieldset>"


def _field(name: str, options: Mapping[str, argparse.Action]) -> str:
    """A label and its control."""
    if name == "model":
        return _models()
    ident = f"calc-{name}"
    label = f'<label for="{ident}">{_LABELS.get(name, name.replace("-", " ").capitalize())}</label>'
    if name == "gpu":
        return f'<div class="calc-field calc-wide">{label}{_cards(ident)}</div>'
    action = options[name]
    default = GPUS if name == "gpus" else "" if action.default is None else action.default
    if action.nargs == 0:
        control = f'<input type="checkbox" id="{ident}" name="{name}" value="1">'
        return f'<div class="calc-field calc-check">{control}{label}</div>'
    choices = _choices(action)
    if choices:
        control = _select(ident, name, choices, str(default))
    else:
        mode = ' inputmode="numeric"' if str(default).isdigit() else ""
        control = f'<input type="text" id="{ident}" name="{name}" value="{escape(str(default))}"{mode}>'
    return f'<div class="calc-field">{label}{control}</div>'


def _choices(action: argparse.Action) -> dict[str, str]:
    """The words that an option takes, each with the words that the reader sees; empty for free text."""
    name = _name(action)
    found = {word: word for word in action.choices or tuple(CHOICES.get(action.dest, ()))}
    if name == "strategy":
        found = {word: f"{item.title}: {item.also_called}" for word, item in STRATEGIES.items()}
    elif action.default in ("true", "false"):
        found = {"true": "yes", "false": "no"}
    elif name in ("recipe", "optimizer"):
        found = {word: word for word in (RECIPES if name == "recipe" else OPTIMIZERS)}
    return {"": _EMPTY[name], **found} if found and name in _EMPTY else found


def _select(ident: str, name: str, choices: Mapping[str, str], default: str) -> str:
    options = "".join(
        f'<option value="{escape(value)}"{" selected" if value == default else ""}>{escape(text)}</option>'
        for value, text in choices.items()
    )
    return f'<select id="{ident}" name="{name}">{options}</select>'


def _cards(ident: str) -> str:
    """Every card that can be bought, by its maker, with what a process sees of it."""
    groups: dict[str, list[str]] = {}
    for slug, gpu in known().items():
        if not gpu.counts():
            continue
        chosen = " selected" if slug == GPU else ""
        amount = size(gpu.visible_bytes, "GB", 1) if gpu.visible_bytes else f"{gpu.label_gb} GB on its label"
        option = f'<option value="{slug}"{chosen}>{escape(short(gpu.name))} · {amount}</option>'
        groups.setdefault(gpu.vendor, []).append(option)
    inner = "".join(f'<optgroup label="{escape(maker)}">{"".join(cards)}</optgroup>' for maker, cards in groups.items())
    return f'<select id="{ident}" name="gpu">{inner}</select>'


def _models() -> str:
    """The field for the model: a text field whose list is searched while one types."""
    rows = []
    for index, record in enumerate(models.known()):
        count = models.load(record["id"]).num_params
        rows.append(
            f'<li role="option" aria-selected="false" id="calc-model-{index}" data-value="{escape(record["name"])}" '
            f'data-also="{escape(record["id"].lower())}"><span>{escape(record["name"])}</span>'
            f"<small>{count / 1e9:,.1f}B</small></li>"
        )
    return (
        '<div class="calc-field calc-wide calc-model"><label for="calc-model">Model</label>'
        f'<input type="text" id="calc-model" name="model" value="{MODEL}" role="combobox" aria-autocomplete="list" '
        'aria-expanded="false" aria-controls="calc-models" aria-describedby="calc-model-hint" spellcheck="false" '
        'autocapitalize="off">'
        f'<ul id="calc-models" role="listbox" aria-label="Known models" hidden>{"".join(rows)}</ul>'
        f'<small id="calc-model-hint">One of {len(rows)} known models, or a count such as 13B</small></div>'
    )


def _paste(name: str, title: str, hint: str) -> str:
    ident = f"calc-{name}"
    return (
        f'<details class="calc-paste"><summary>{title}</summary><p><label for="{ident}">{hint}</label></p>'
        f'<textarea id="{ident}" name="{name}" rows="8" spellcheck="false" autocapitalize="off"></textarea></details>'
    )
