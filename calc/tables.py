"""Anything → a Markdown table, an SVG figure or plain text, always returned as a string.

Pages print what these functions return; nothing here computes a byte that `estimate` or `fit`
did not. Right-aligned columns are written with a leading `>` in their heading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from html import escape
from typing import Any

from calc import gpus, models
from calc.estimate import Estimate, Run, estimate
from calc.fit import fit
from calc.models import Model
from calc.sharding import STRATEGIES, get_strategy
from calc.states import OPTIMIZERS, RECIPES
from calc.units import InputError, decimal, records, text

#: Ledger lines in the order in which every table and figure shows them.
LINES = ("weights", "master", "gradients", "optimizer")
TITLES = {
    "weights": "Weights",
    "master": "Master copy",
    "gradients": "Gradients",
    "optimizer": "Optimizer state",
    "bucket": "Gradient bucket (DDP)",
    "activations": "Activations",
    "overhead": "Overhead",
}


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]], *, total: bool = False) -> str:
    """A Markdown table; a heading with a leading `>` is right-aligned, `total` makes the last row bold.

    >>> print(markdown(["Line", ">GB"], [["weights", "1.0"]]))
    | Line | GB |
    | --- | --: |
    | weights | 1.0 |
    """
    body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    if total and body:
        body[-1] = [f"**{cell}**" if cell else "" for cell in body[-1]]
    rule = ["--:" if column.startswith(">") else "---" for column in columns]
    lines = [[column.removeprefix(">") for column in columns], rule, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(count: int | None, decimals: int = 0) -> str:
    """A count with thousands separators, or `–` for None."""
    return "–" if count is None else decimal(count, decimals)


def size(num_bytes: int | None, unit: str = "GB", decimals: int = 1) -> str:
    """Bytes as text, or `–` where the amount is None."""
    return "–" if num_bytes is None else text(num_bytes, unit, decimals)


def per_param(num_bytes: int, num_params: int, decimals: int = 2) -> str:
    """Bytes per parameter, a derived average, without trailing zeros.

    >>> per_param(128, 8), per_param(39, 16)
    ('16', '2.44')
    """
    found = decimal(Fraction(num_bytes, num_params), decimals)
    return found.rstrip("0").rstrip(".") if "." in found else found


def one_copy(found: Estimate) -> str:
    """The four lines of what one run keeps, exact bytes first, with the bytes per parameter."""
    params = found.model.num_params
    amounts = [(TITLES[line], getattr(found.states, line)) for line in LINES]
    rows = [
        [title, per_param(amount, params), number(amount), size(amount)]
        for title, amount in [*amounts, ("Total", found.states.total)]
    ]
    return markdown(["Line", ">Bytes per parameter", ">Bytes", ">Rounded"], rows, total=True)


def paper_total(found: Estimate) -> str:
    """The one-line formula of one run, each term its own row, with the total."""
    line = found.one_line
    terms = ("weights", "master", "gradients", "optimizer", "bucket", "activations", "overhead")
    amounts = [(TITLES[term], getattr(line, term)) for term in terms]
    rows = [[title, number(amount), size(amount)] for title, amount in amounts if amount]
    rows.append(["Total per GPU", number(line.total), size(line.total)])
    return markdown(["Term", ">Bytes", ">Rounded"], rows, total=True)


def by_strategy(runs: Iterable[Run], gpu: gpus.Gpu) -> str:
    """Per-GPU states of several runs against one card's process-visible memory."""
    rows = []
    for run in runs:
        kept = estimate(run).states
        rows.append(
            [
                _title(run),
                *(size(getattr(kept, line)) for line in LINES),
                f"**{size(kept.total)}**",
                over(kept.total, gpu.visible_bytes),
            ]
        )
    heads = [f">{TITLES[line]}" for line in LINES]
    return markdown(["Run", *heads, ">States per GPU", f">Against {size(gpu.visible_bytes, 'GB', 2)}"], rows)


def over(need: int, visible: int | None) -> str:
    """By how much a need passes or leaves room under what a process sees."""
    if visible is None:
        return "not known"
    if need > visible:
        return f"{size(need - visible)} too much"
    return f"{size(visible - need)} left"


def _title(run: Run) -> str:
    return get_strategy(run.strategy).title


def ways_out(model: Model) -> str:
    """Runs of a full fine-tune that do hold on cards people ask about, states against each card."""
    full = ("zero3", "zero", "adamw")
    ways = (
        ("AdamW with fp32 master", 8, "h100-sxm5-80gb", full),
        ("AdamW in pure bf16, FSDP2", 8, "h100-sxm5-80gb", ("fsdp2", "pure-bf16", "adamw")),
        ("8-bit Adam, no master, FSDP1", 8, "h100-sxm5-80gb", ("fsdp1", "pure-bf16", "adamw8bit")),
        ("AdamW with fp32 master", 16, "h100-sxm5-80gb", full),
        ("AdamW with fp32 master", 8, "h200-sxm5", full),
        ("AdamW with fp32 master", 8, "b200-sxm", full),
    )
    rows = []
    for name, count, card, (strategy, recipe, optimizer) in ways:
        gpu = gpus.get(card)
        run = Run(model=model, world_size=count, strategy=strategy, recipe=recipe, optimizer=optimizer)
        need = estimate(run).states.total
        label = f"{count} × {_bare(gpu.name)}"
        rows.append([name, label, size(need), size(gpu.visible_bytes, "GB", 2), over(need, gpu.visible_bytes)])
    return markdown(["Run", "Cards", ">States per GPU", ">Visible to a process", ">Difference"], rows)


def adam_table(chosen: Iterable[Model]) -> str:
    """AdamW, 8-bit Adam with and without a master copy: state, states and one-line total on one GPU."""
    ways = (("AdamW", "zero", "adamw"), ("8-bit Adam", "zero", "adamw8bit"), ("8-bit Adam", "pure-bf16", "adamw8bit"))
    rows = []
    for model in chosen:
        for title, recipe, optimizer in ways:
            line = estimate(Run(model=model, recipe=recipe, optimizer=optimizer)).one_line
            master = size(line.master) if line.master else "none"
            amounts = (size(line.optimizer), size(line.weights), size(line.gradients), master)
            rows.append([model.name.rpartition("/")[2], title, *amounts, f"**{size(line.total)}**"])
    heads = (">Optimizer state", ">Weights", ">Gradients", ">Master copy", ">One-line total")
    return markdown(["Model", "Optimizer", *heads], rows)


def optimizer_bytes(model: Model) -> str:
    """What each optimizer's library allocates for one model on one GPU with bf16 weights."""
    rows = []
    for name, optimizer in OPTIMIZERS.items():
        need = estimate(Run(model=model, recipe="pure-bf16", optimizer=name)).states.optimizer
        per = per_param(need, model.num_trainable, 4)
        rows.append([f"`{name}`", optimizer.library, per, number(need), size(need, "GB", 2), optimizer.note])
    return markdown(["Name", "Library", ">Bytes per parameter", ">Bytes", ">Rounded", "Note"], rows)


def sources_table() -> str:
    """Every source by id, with its address and confidence."""
    rows = []
    for source in records("sources"):
        title = f"[{source['title']}]({source['url']})" if source["url"] else source["title"]
        rows.append([f"`{source['id']}`", title, source["note"], source["confidence"]])
    return markdown(["Id", "Source", "Note", "Confidence"], rows)


def climb_table(run: Run) -> str:
    """Text B's climb for every card: the first count whose one-line total is within 95 % of the label."""
    rows = []
    for row in fit(run):
        count = row.num_gpus_one_line
        answer = f"**{count}**" if count else f"none up to {row.tried}" if row.tried else "–"
        rows.append(
            [
                _bare(row.gpu.name),
                answer,
                size(row.one_line_bytes),
                size(row.label_limit_bytes),
                size(row.gpu.visible_bytes),
            ]
        )
    return markdown(["GPU", ">GPUs", ">One-line total there", ">95 % of the label", ">Visible to a process"], rows)


def _bare(name: str) -> str:
    return name.split(" (")[0]


def models_table() -> str:
    """Every known model: type, parameters, active, tied, largest block, bf16 bytes, the Hub's own total."""
    rows = []
    for record in models.known():
        name, hub = f"{record['id']}<br>`{record['name']}`", record.get("hub") or {}
        try:
            model = models.load(record["id"])
        except InputError:
            said = f"{number(hub.get('total'))}; this architecture is not counted yet"
            rows.append([name, record["config"]["model_type"], *("–" for _ in range(5)), said])
            continue
        total, active = model.num_params, model.num_active
        why = "; ".join(f"{what} ({number(count)})" for what, count in (hub.get("difference") or {}).items())
        rows.append(
            [
                name,
                model.model_type,
                number(total),
                "all" if active == total else number(active),
                "yes" if model.tied else "no",
                number(model.largest_block.numel),
                size(2 * total),
                f"{number(hub['total'])}: {why}" if why else "",
            ]
        )
    heads = (">Parameters", ">Active per token", "Tied", ">Largest block", ">bf16", "Where the Hub's total differs")
    return markdown(["Model", "Type", *heads], rows)


def gpus_table() -> str:
    """Every known GPU: label, what the driver reports, what a process sees, topology."""
    rows = [
        [
            f"{gpu.name}<br>`{slug}`",
            f"{gpu.label_gb} GB",
            size(gpu.driver_bytes, "GB", 2),
            size(gpu.visible_bytes, "GB", 2) + ("" if gpu.visible_exact or not gpu.visible_bytes else " ≈"),
            number(gpu.node_gpus),
            gpu.topology,
            gpu.confidence["framework"],
        ]
        for slug, gpu in gpus.known().items()
    ]
    return markdown(
        ["GPU", ">Label", ">Driver", ">Visible to a process", ">GPUs per node", "Topology", "Visible: source"],
        rows,
    )


def optimizers_table() -> str:
    """Every optimizer: states, nominal bytes per parameter in fp32 and bf16, library."""
    rows = [
        [
            f"`{name}`",
            ", ".join(f"`{state}`" for state in item.states) or "none",
            item.nominal_bytes("fp32"),
            item.nominal_bytes("bf16"),
            item.library,
            item.note,
        ]
        for name, item in OPTIMIZERS.items()
    ]
    return markdown(["Name", "States", ">fp32 states", ">bf16 states", "Library", "Note"], rows)


def recipes_table() -> str:
    """Every recipe: bytes per parameter of each line, AdamW's total, who holds it."""
    rows = []
    for name, recipe in RECIPES.items():
        lines = [recipe.itemsize(line) for line in ("weights", "gradients", "master")]
        state = OPTIMIZERS["adamw"].nominal_bytes(recipe.state_dtype)
        rows.append(
            [
                f"`{name}`",
                *(line or "–" for line in lines),
                sum(lines) + state,
                recipe.held_by,
                ", ".join(f"`{strategy}`" for strategy in recipe.strategies),
            ]
        )
    return markdown(
        ["Name", ">Weights", ">Gradients", ">Master", ">With AdamW", "Stack that holds it", "Strategies"], rows
    )


def strategies_table() -> str:
    """Every strategy: what it divides and its other names."""
    divided = ("nothing", "master, optimizer", "master, optimizer, gradients", "everything")
    rows = [[f"`{name}`", item.title, divided[item.stage], item.also_called] for name, item in STRATEGIES.items()]
    return markdown(["Name", "Title", "Divides by N", "Also called"], rows)


def pairs_table() -> str:
    """Which recipe runs under which strategy."""
    rows = [
        [f"`{name}`", *("yes" if strategy in recipe.strategies else "–" for strategy in STRATEGIES)]
        for name, recipe in RECIPES.items()
    ]
    return markdown(["Recipe", *(f"`{name}`" for name in STRATEGIES)], rows)


def bars(rows: Mapping[str, Mapping[str, int]], limit: int, limit_name: str, title: str, description: str) -> str:
    """A stacked-bar figure as inline SVG with its legend: one bar per row, the card's limit drawn in.

    Widths are per cent of the frame and text keeps its size, so that it is readable on a phone;
    colours are CSS variables of the scheme. Bytes in, GB in the labels.
    """
    widest = max(limit, *(sum(parts.values()) for parts in rows.values()))

    def share(num_bytes: int) -> str:
        return f"{decimal(Fraction(100 * num_bytes, widest), 2).replace(',', '')}%"

    ident = "fig-" + "".join(c if c.isalnum() else "-" for c in title.lower())
    height = 46 * len(rows) + 26
    at, flip = share(limit), limit * 2 > widest
    out = [
        f'<figure class="fig"><svg class="fig-bars" role="img" width="100%" height="{height}" '
        f'aria-labelledby="{ident}-t {ident}-d">',
        f'<title id="{ident}-t">{escape(title)}</title>',
        f'<desc id="{ident}-d">{escape(description)}</desc>',
    ]
    for index, (name, parts) in enumerate(rows.items()):
        top, start = 46 * index, 0
        out.append(f'<text class="fig-label" x="0" y="{top + 15}">{escape(name)} · {size(sum(parts.values()))}</text>')
        for line, amount in parts.items():
            if amount:
                out.append(
                    f'<rect class="fig-bar series-{line}" x="{share(start)}" y="{top + 21}" '
                    f'width="{share(amount)}" height="18"><title>{escape(TITLES.get(line, line))}: '
                    f"{size(amount)}</title></rect>"
                )
            start += amount
        out.append(f'<line class="fig-limit" x1="{at}" x2="{at}" y1="{top + 18}" y2="{top + 42}"/>')
    out.append(
        f'<text class="fig-limit-label" x="{at}" y="{height - 6}" dx="{-4 if flip else 4}" '
        f'text-anchor="{"end" if flip else "start"}">{escape(limit_name)} · {size(limit, "GB", 2)}</text>'
    )
    used = dict.fromkeys(line for parts in rows.values() for line, amount in parts.items() if amount)
    legend = "".join(
        f'<li><span class="fig-key series-{line}"></span>{escape(TITLES.get(line, line))}</li>' for line in used
    )
    return "".join(out) + f'</svg><ul class="fig-legend">{legend}</ul></figure>'


def state_bars(runs: Iterable[Run], gpu: gpus.Gpu, title: str) -> str:
    """The states of several runs as stacked bars against one card."""
    rows = {_title(run): {line: getattr(estimate(run).states, line) for line in LINES} for run in runs}
    told = "; ".join(f"{name} {size(sum(parts.values()))}" for name, parts in rows.items())
    limit = gpu.visible_bytes or gpu.label_bytes
    return bars(rows, limit, f"{_bare(gpu.name)} shows a process", title, f"States per GPU: {told}.")


# ---- plain text, for the command line ----


def plain(command: str, answer: Any) -> str:
    """The text answer of a command, from the JSON value that `--json` would print."""
    return _PLAIN.get(command, _plain_registry)(answer)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _plain_params(answer: Mapping[str, Any]) -> str:
    head = [
        f"{answer['name']} ({answer['model_type']})",
        f"parameters  {answer['params_total']:,}",
        f"active      {answer['params_active']:,}",
        "",
    ]
    rows = [[str(t["name"]), " × ".join(map(str, t["shape"])), f"× {t['count']:,}"] for t in answer["tensors"]]
    notes = [f"note: {line}" for line in answer["assumptions"]]
    return "\n".join([*head, _columns(rows), *notes])


def _plain_estimate(answer: Mapping[str, Any]) -> str:
    run, model, states, paper = (answer[key] for key in ("run", "model", "states", "one_line"))
    rows = [[TITLES[line], number(amount), size(amount)] for line, amount in states.items()]
    rows.append(["States per GPU", number(answer["states_bytes"]), size(answer["states_bytes"])])
    total = answer["one_line_bytes"]
    formula = [[TITLES[line], number(amount), size(amount)] for line, amount in paper.items()]
    formula.append(["One-line total", number(total), size(total)])
    return "\n".join(
        [
            f"{model['name']}: {model['params_total']:,} parameters on {run['world_size']:,} GPU(s); "
            f"strategy {run['strategy']}, recipe {run['recipe']}, optimizer {run['optimizer']}",
            "",
            "kept per GPU (largest rank)",
            _columns(rows),
            "",
            "one-line formula per GPU",
            _columns(formula),
            "",
            *(f"assumed: {line}" for line in answer["assumptions"]),
        ]
    )


def _plain_fit(answer: Mapping[str, Any]) -> str:
    rows = [["GPU", "GPUs", "one-line total", "95 % of label", "visible"]]
    for row in answer["rows"]:
        count = row["num_gpus_one_line"]
        rows.append(
            [
                str(row["gpu"]),
                "none" if count is None else str(count),
                size(row["one_line_bytes"]),
                size(row["label_limit_bytes"]),
                size(row["visible_bytes"]),
            ]
        )
    return _columns(rows)


def _plain_registry(answer: Sequence[Mapping[str, Any]]) -> str:
    keys = [key for key in ("slug", "name", "id") if key in answer[0]]
    return "\n".join("  ".join(str(row[key]) for key in keys[:2]) for row in answer)


_PLAIN = {"params": _plain_params, "estimate": _plain_estimate, "fit": _plain_fit}
