"""The calculator page's answer as HTML: verdict, bars, ledger, what would change it.

The same strings are made while the site is built and in the reader's browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from calc import gpus, models
from calc.configs import FORMATS, write
from calc.estimate import Estimate, estimate
from calc.fit import Verdict, verdict
from calc.gpus import Gpu
from calc.job import Job
from calc.memory.ledger import Line
from calc.tables.figures import bars
from calc.tables.text import LINES, TITLES, number, short, size
from calc.units import InputError

_CLASSES = {Verdict.FITS: "fits", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "no"}
_SERIES = (*LINES, "activations", "transient", "allowance")
_ACTIVATIONS = re.compile("activation|logits|recomputed|inputs")


def calculator(found: Estimate, gpu: Gpu) -> str:
    """The whole answer for a run on `gpu`, as HTML."""
    parts = (_verdict(found, gpu), _figure(found, gpu), _ledger(found), _alternatives(found, gpu))
    return "\n".join((*parts, _files(found.job), _foot(found, gpu)))


def options(job: Job) -> dict[str, str]:
    """The options that make `job` of its model: GPUs, strategy, and what is not the default."""
    usual = Job.of(model=job.model, world_size=job.world_size, strategy=job.strategy)
    differs = {name: value for name, value in job.settings.items() if value != usual.settings[name]}
    given = {"gpus": job.world_size, "strategy": job.strategy, **differs}
    return {name.replace("_", "-"): _written(value) for name, value in given.items()}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def query(job: Job, gpu: Gpu) -> str:
    """What the address of `job` on `gpu` adds to the page's own: the command line's words.

    >>> query(Job.of(model=models.load("llama-3.1-8b")), gpus.get("b200-sxm"))
    '?model=llama-3.1-8b&gpus=1&strategy=single&gpu=b200-sxm'
    """
    given = {"model": _name(job), **options(job), "gpu": gpu.slug}
    return "?" + "&".join(f"{key}={_quoted(value)}" for key, value in given.items())


def _quoted(value: str) -> str:
    def percents(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode())

    return re.sub(r"[^A-Za-z0-9._,/-]", percents, value)


def _name(job: Job) -> str:
    """The short name of a known model, else what the reader wrote."""
    names = {record["id"]: record["name"] for record in models.known()}
    return str(names.get(job.model.name, job.model.name))


def _limit(gpu: Gpu) -> int:
    return gpu.visible_bytes or gpu.label_bytes


def _word(said: Verdict | None, tag: str = "span") -> str:
    if not said:
        return "No verdict"
    return f'<{tag} class="verdict-{_CLASSES[said]}">{said.capitalize()}</{tag}>'


def _need(found: Estimate) -> int:
    return found.peak.bytes if found.peak else found.states.total


def _verdict(found: Estimate, gpu: Gpu) -> str:
    limit, count = _limit(gpu), f"{found.job.world_size:,} × {short(gpu.name)}"
    sees = f"is labelled {size(limit)}"
    if gpu.visible_bytes:
        sees = f"shows a process {size(limit, 'GB', 2)}"
    out = [f'<p class="calc-word">{_word(verdict(found, gpu), "strong")} on {escape(count)}.</p>']
    if found.peak:
        peak = found.peak
        out.append(
            f"<p>PyTorch allocates {size(peak.bytes)} per GPU at the peak, "
            f"in {escape(peak.phase)}. With CUDA's context, NCCL and fragmentation "
            f"the process needs {size(peak.low)} to {size(peak.high)}. "
            f"The card {sees}: {_room(limit - peak.high, limit - peak.low)}.</p>"
        )
    else:
        out.append(
            f"<p>Weights, gradients and optimizer keep {size(found.states.total)} per GPU; "
            f"the card {sees}. "
            "What comes on top at the peak is not known for this run.</p>"
        )
    return f'<div class="calc-verdict" role="status">{"".join(out)}</div>'


def _room(least: int, most: int) -> str:
    if least >= 0:
        return f"{size(least)} to {size(most)} to spare"
    if most > 0:
        return f"from {size(-least)} too much to {size(most)} to spare"
    return f"{size(-most)} to {size(-least)} too much"


def _series(line: Line) -> str:
    if line.kind == "allowance" or line.line in LINES:
        return line.line if line.line in LINES else "allowance"
    return "activations" if _ACTIVATIONS.search(line.line) else "transient"


def _figure(found: Estimate, gpu: Gpu) -> str:
    """Each phase as a bar against the card; the worst with the allowance on top."""
    rows: dict[str, dict[str, int]] = {}
    for name, phase in (found.phases or {}).items():
        parts = dict.fromkeys(_SERIES, 0)
        for line in phase.lines:
            parts[_series(line)] += line.bytes
        title = name.capitalize()
        if found.peak and name == found.peak.phase:
            parts["allowance"] += found.peak.high - found.peak.bytes
            title += ", allowance included"
        rows[title] = parts
    rows = rows or {"Kept between steps": {line: getattr(found.states, line) for line in LINES}}
    told = "; ".join(f"{name}: {size(sum(parts.values()))}" for name, parts in rows.items())
    return bars(rows, _limit(gpu), short(gpu.name), "Memory of one GPU by phase", f"{told}.")


def _ledger(found: Estimate) -> str:
    """Every line in every phase, exact bytes at the worst; under it the one-line formula."""
    phases = found.phases or {}
    lines = {line.line: line.kind for phase in phases.values() for line in phase.lines}
    amounts = {
        name: {line.line: line.bytes for line in phase.lines} for name, phase in phases.items()
    }
    worst = found.peak.phase if found.peak else "kept"
    if not phases:
        amounts = {worst: {line: getattr(found.states, line) for line in LINES}}
        lines = dict.fromkeys(LINES, "exact")
    rows = [
        [
            escape(TITLES.get(line, line.capitalize())),
            *(size(parts[line], "GB", 2) if parts.get(line) else "–" for parts in amounts.values()),
            number(amounts[worst].get(line, 0)),
            kind,
        ]
        for line, kind in lines.items()
    ]
    totals = [sum(parts.values()) for parts in amounts.values()]
    rows.append(
        [
            "Total",
            *(size(total, "GB", 2) for total in totals),
            number(sum(amounts[worst].values())),
            "",
        ]
    )
    heads = ["Line", *(f">{name.capitalize()}" for name in amounts), f">Bytes in {worst}", "Kind"]
    paper = found.one_line.total
    told = (
        f"<p>The one-line formula says {size(paper)} for this run.</p>" if paper is not None else ""
    )
    if found.host_per_node_bytes:
        told += f"<p>A node's host memory needs {size(found.host_per_node_bytes)} at its worst.</p>"
    return f"<h3>Where every byte is</h3>{_table(heads, rows, total=True)}{told}"


def _changes(job: Job) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What could be done instead: its name, its price, and the settings that it changes."""
    fsdp2 = {"strategy": "fsdp2", "recipe": "", "reduce_dtype": "", "offload": "none"}
    bf16 = {**fsdp2, "recipe": "pure-bf16"}
    lora = {"lora_rank": 16, "lora_targets": "all-linear", "optimizer": "adamw"}
    if job.micro_batch > 1:
        fewer = {"micro_batch": 1, "accumulation": job.micro_batch * job.accumulation}
        yield "Micro-batch 1, accumulated", "the same batch in smaller steps", fewer
    yield "Full checkpointing", "a third more computing", {"checkpointing": "full"}
    yield "Loss in pieces", "needs a chunked or fused loss", {"loss": "chunked"}
    if job.world_size > 1 and job.stack.stage < 3:
        yield "ZeRO-3", "half as much again on the wire", {**fsdp2, "strategy": "zero3"}
    yield "8-bit Adam", "states rounded in blocks of 256", {"optimizer": "adamw8bit"}
    if job.world_size > 1:
        yield "FSDP2, fp32 shards", "bf16 computing, the shard is the master", fsdp2
        yield "AdamW in pure bf16", "no fp32 master copy", bf16
        yield (
            "8-bit Adam in pure bf16",
            "no fp32 master copy",
            {**bf16, "strategy": "fsdp1", "optimizer": "adamw8bit"},
        )
    yield "Optimizer on the host", "slower steps, host memory", {"offload": "optimizer"}
    yield "Everything on the host", "much slower steps, host memory", {"offload": "all"}
    if not job.lora_rank:
        yield "LoRA, rank 16", "trains the adapters alone", lora
    if not job.base_dtype.startswith("nf4"):
        yield "QLoRA, rank 16", "adapters on a 4-bit base", {**lora, "base_dtype": "nf4"}
    yield f"{2 * job.world_size:,} GPUs", "twice the cards", {"world_size": 2 * job.world_size}


def _alternatives(found: Estimate, gpu: Gpu) -> str:
    """What needs less than `found`, and larger cards: price, peak, and a link that takes it."""
    job, rows = found.job, []
    for title, price, changes in _changes(job):
        try:
            other = estimate(job.but(**changes))
        except InputError:  # this pair does not run
            continue
        if bool(other.peak) == bool(found.peak) and _need(other) < _need(found):
            rows.append(_alternative(title, price, other, gpu))
    fits = verdict(found, gpu) is Verdict.FITS
    for slug in () if fits else ("h200-sxm5", "b200-sxm", "b300-sxm"):
        card = gpus.get(slug)
        if _limit(card) > _limit(gpu):
            rows.append(
                _alternative(
                    f"{job.world_size:,} × {short(card.name)}", "a larger card", found, card
                )
            )
    if not rows:
        return ""
    peak = ">Peak per GPU" if found.peak else ">States per GPU"
    return f"<h3>What would change it</h3>{_table(['Instead', 'Its price', peak, 'Verdict'], rows)}"


def _alternative(title: str, price: str, other: Estimate, gpu: Gpu) -> list[str]:
    link = f'<a class="calc-run" href="{escape(query(other.job, gpu))}">{escape(title)}</a>'
    return [link, price, size(_need(other)), _word(verdict(other, gpu))]


def _files(job: Job) -> str:
    """The config files that say this run, each folded under its name."""
    files = []
    for name in FORMATS:
        try:
            files.append(write(job, name))
        except InputError:  # this library has no words for the run
            continue
    folded = "".join(
        f'<details data-name="{file.format.format}">'
        f"<summary>{escape(file.format.title)}: {escape(file.name)}</summary>"
        f"{_code(file.text, file.format.format)}</details>"
        for file in files
    )
    none = (
        "<p>No library's file says this run as it is; another recipe or strategy may have one.</p>"
    )
    return f"<h3>Files to copy</h3>{folded or none}"


def _foot(found: Estimate, gpu: Gpu) -> str:
    name, given = _name(found.job), {**options(found.job), "gpu": gpu.slug}
    words = [
        f"'{name}'" if " " in name else name,
        *(f"--{name} {value}" for name, value in given.items()),
    ]
    told = "".join(f"<li>{escape(line)}</li>" for line in found.assumptions)
    command = _code("python -m calc estimate " + " ".join(words), "command")
    return f"<h3>The same on the command line</h3>{command}<h3>Assumed</h3><ul>{told}</ul>"


def _code(text: str, name: str) -> str:
    code = f'<code tabindex="0">{escape(text)}</code>'
    return f'<pre class="calc-code" id="calc-code-{name}">{code}</pre>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, total: bool = False) -> str:
    """A table of cells that are HTML; a leading `>` and `total` as in `markdown`."""
    style = [' style="text-align: right"' if column.startswith(">") else "" for column in columns]
    heads = "".join(
        f"<th{s}>{escape(c.removeprefix('>'))}</th>" for c, s in zip(columns, style, strict=True)
    )
    body = [list(row) for row in rows]
    if total:
        body[-1] = [f"<strong>{cell}</strong>" if cell else "" for cell in body[-1]]
    lines = (
        "".join(f"<td{s}>{cell}</td>" for cell, s in zip(row, style, strict=True)) for row in body
    )
    inner = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{inner}</tbody></table>"
