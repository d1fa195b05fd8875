"""Tables and figures of what a run keeps: one copy, by strategy, by optimizer, by card."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from calc import gpus
from calc.estimate import Estimate, estimate
from calc.fit import Row, fit
from calc.job import Job
from calc.models import Model
from calc.optimizers import OPTIMIZERS
from calc.stacks import get_strategy
from calc.tables.figures import bars
from calc.tables.text import LINES, TITLES, markdown, number, over, per_param, short, size
from calc.units import ceil_div

#: What a stage leaves whole comes first in a bar.
_WHOLE_FIRST = ("weights", "gradients", "master", "optimizer")


def one_copy(found: Estimate) -> str:
    """The four lines of what one run keeps, exact bytes first, with the bytes per parameter."""
    params = found.model.num_params
    amounts = {TITLES[line]: getattr(found.states, line) for line in LINES}
    amounts["Total"] = found.states.total
    rows = []
    for title, amount in amounts.items():
        rows.append([title, per_param(amount, params), number(amount), size(amount)])
    return markdown(["Line", ">Bytes per parameter", ">Bytes", ">Rounded"], rows, total=True)


def paper_total(found: Estimate) -> str:
    """The one-line formula of one run, each term its own row, with the total."""
    line = found.one_line
    terms = {TITLES[term]: amount for term, amount in asdict(line).items() if amount}
    rows = [[title, number(amount), size(amount)] for title, amount in terms.items()]
    rows.append(["Total per GPU", number(line.total), size(line.total)])
    return markdown(["Term", ">Bytes", ">Rounded"], rows, total=True)


def by_strategy(jobs: Iterable[Job]) -> str:
    """Per-GPU states of several runs by line, and what of them more GPUs leave as it is."""
    rows = []
    for job in jobs:
        kept = estimate(job).states
        amounts = (
            *(size(getattr(kept, line)) for line in LINES),
            f"**{size(kept.total)}**",
            size(undivided(job)),
        )
        rows.append([strategy_title(job), *amounts])
    heads = (*(f">{TITLES[line]}" for line in LINES), ">States per GPU", ">Does not shrink with N")
    return markdown(["Run", *heads], rows)


def undivided(job: Job) -> int:
    """Bytes of the lines that are as large on twice as many GPUs."""
    few, many = (estimate(job.but(world_size=count * job.world_size)).states for count in (1, 2))
    return sum(getattr(few, line) for line in LINES if getattr(few, line) == getattr(many, line))


def strategy_title(job: Job) -> str:
    return get_strategy(job.strategy).title


def adam_table(chosen: Iterable[Model]) -> str:
    """AdamW, 8-bit Adam with and without a master copy: state, states, one-line total."""
    ways = {"AdamW": ("zero", "adamw"), "8-bit Adam": ("zero", "adamw8bit")}
    ways["8-bit Adam, no master copy"] = ("pure-bf16", "adamw8bit")
    rows = []
    for model in chosen:
        name = model.name.rpartition("/")[2].removesuffix("-Instruct")
        for title, (recipe, optimizer) in ways.items():
            line = estimate(Job.of(model=model, recipe=recipe, optimizer=optimizer)).one_line
            master = size(line.master) if line.master else "none"
            amounts = (size(line.optimizer), size(line.weights), size(line.gradients), master)
            rows.append([name, title, *amounts, f"**{size(line.total)}**"])
    heads = (">Optimizer state", ">Weights", ">Gradients", ">Master copy", ">One-line total")
    return markdown(["Model", "Optimizer", *heads], rows)


def optimizer_bytes(model: Model) -> str:
    """What each optimizer's library allocates for one model on one GPU with bf16 weights."""
    rows = []
    for name, optimizer in OPTIMIZERS.items():
        need = estimate(Job.of(model=model, recipe="pure-bf16", optimizer=name)).states.optimizer
        per = per_param(need, model.num_trainable, 4)
        rows.append([f"`{name}`", optimizer.library, per, number(need), size(need, "GB", 2)])
    return markdown(["Name", "Library", ">Bytes per parameter", ">Bytes", ">Rounded"], rows)


def climb_table(job: Job) -> str:
    """For every card the first count that passes text B's rule, and the first whose peak fits."""
    rows = []
    for row in fit(job):
        peak = row.found.peak if row.found else None
        ruled = f"**{row.num_gpus_one_line}**" if row.num_gpus_one_line else "none"
        fitting = "none" if peak else "not known"
        if row.num_gpus:
            fitting, near = f"**{row.num_gpus}**", row.near_miss
            fitting += f" (tight: {near.num_gpus})" if near and near.verdict == "tight" else ""
        sizes = (size(row.one_line_bytes), size(row.label_limit_bytes))
        rest = (fitting, size(peak.bytes if peak else None), size(row.gpu.visible_bytes))
        rows.append([short(row.gpu.name), ruled, *sizes, *rest])
    heads = (
        ">By the rule",
        ">One-line total there",
        ">95 % of the label",
        ">By the peak",
        ">Peak there",
        ">Visible",
    )
    return markdown(["GPU", *heads], rows)


def counts_matrix(jobs: Iterable[Job], cards: Iterable[gpus.Gpu]) -> str:
    """For each run and card the first count of GPUs whose verdict is fits, and its nodes."""
    cards, rows = tuple(cards), []
    for job in jobs:
        cells = map(_count, fit(job, cards))
        rows.append([job.model.name.rpartition("/")[2].removesuffix("-Instruct"), *cells])
    return markdown(["Model", *(f">{short(gpu.name)}" for gpu in cards)], rows)


def _count(row: Row) -> str:
    """The first count whose verdict is fits, coloured by how much of a node it is."""
    if not row.num_gpus:
        return '<span class="count-none">none</span>'
    nodes, said = ceil_div(row.num_gpus, row.gpu.node_gpus or 1), f"{row.num_gpus:,}"
    if nodes > 1:
        return f'<span class="count-nodes">{said}<br>{nodes} nodes</span>'
    return f'<span class="count-{"one" if row.num_gpus == 1 else "node"}">{said}</span>'


def state_bars(jobs: Iterable[Job], gpu: gpus.Gpu, title: str) -> str:
    """The states of several runs against one card, what each keeps whole underlined."""
    rows, whole, limit = {}, {}, gpu.visible_bytes or gpu.label_bytes
    for job in jobs:
        kept = estimate(job).states
        rows[strategy_title(job)] = {line: getattr(kept, line) for line in _WHOLE_FIRST}
        whole[strategy_title(job)] = undivided(job)
    totals = {name: sum(parts.values()) for name, parts in rows.items()}
    shared = "of it whole on every GPU"
    told = "; ".join(
        f"{name} {size(total)}, {shared} {size(whole[name])}" for name, total in totals.items()
    )
    notes = {name: over(total, limit) for name, total in totals.items()}
    name = f"{short(gpu.name)} shows a process"
    return bars(rows, limit, name, title, f"States per GPU: {told}.", notes=notes, whole=whole)
