"""Tables and the figure of bytes on the wire: by strategy, by link, tokens that hide a link."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from html import escape
from math import log10

from calc.communication import collectives, waits
from calc.estimate import estimate
from calc.fit import Verdict, verdict
from calc.gpus import Gpu
from calc.job import Job
from calc.models import Model
from calc.stacks import get_strategy
from calc.tables.figures import bars
from calc.tables.memory import strategy_title
from calc.tables.text import markdown, number, size
from calc.units import decimal


def _ways(model: Model, world_size: int) -> dict[str, Job]:
    """The runs that are compared, by title."""
    named = [
        Job.of(model=model, world_size=world_size, strategy=name)
        for name in ("ddp", "zero1", "zero2", "zero3")
    ]
    bf16 = Job.of(model=model, world_size=world_size, strategy="fsdp2", reduce_dtype="bf16")
    return {strategy_title(job): job for job in named} | {
        "FSDP2, reduced in bf16": bf16,
        "FSDP2, reduced in fp32": bf16.but(reduce_dtype="fp32"),
        "FSDP2, bf16, `reshard_after_forward=False`": bf16.but(reshard_after_forward=False),
    }


def volume_table(model: Model, world_size: int, micro_steps: int = 8) -> str:
    """What each strategy sends per GPU in a step of one and of several micro-steps."""
    rows, first = [], 0
    for title, job in _ways(model, world_size).items():
        one, many = (
            sum(c.num_bytes for c in collectives(job.but(accumulation=count)))
            for count in (1, micro_steps)
        )
        first = first or one
        rows.append([title, size(one), _times(one, first), size(many), _times(many, first)])
    return markdown(
        [
            "Strategy",
            ">1 micro-step",
            ">Against DDP",
            f">{micro_steps} micro-steps",
            ">Against DDP",
        ],
        rows,
    )


def volume_bars(model: Model, world_size: int, title: str) -> str:
    """What each strategy sends per GPU in a step of one micro-step, as bars."""
    rows: dict[str, dict[str, int]] = {}
    for name, job in _ways(model, world_size).items():
        parts = dict.fromkeys(("gradients", "weights"), 0)
        for sent in collectives(job):
            parts["gradients" if "gradients" in sent.what else "weights"] += sent.num_bytes
        rows[name.replace("bf16, `reshard_after_forward=False`", "left gathered")] = parts
    first = sum(next(iter(rows.values())).values())
    notes = {name: f"{_times(sum(parts.values()), first)} DDP" for name, parts in rows.items()}
    told = "; ".join(f"{name} {size(sum(parts.values()))}" for name, parts in rows.items())
    return bars(rows, 0, "", title, f"Sent per GPU: {told}.", notes=notes)


def _times(part: int, whole: int) -> str:
    return f"{decimal(Fraction(part, whole), 2)} ×"


def parts_table(job: Job) -> str:
    """The collectives of one optimizer step of a run, each with its exact bytes per GPU."""
    found = collectives(job)
    rows = [
        [c.name, c.what, c.ranks, c.times, number(c.num_bytes), size(c.num_bytes)] for c in found
    ]
    total = sum(c.num_bytes for c in found)
    rows.append(["Total", "", "", "", number(total), size(total)])
    return markdown(
        ["Collective", "Of", ">Ranks", ">Times", ">Bytes", ">Rounded"], rows, total=True
    )


def waits_table(job: Job, gpu: Gpu, mfu_percent: int) -> str:
    """Every link of a run: what crosses it, how long, and the share left for computing."""
    rows = [
        [
            wait.title,
            size(wait.num_bytes),
            f"{decimal(wait.seconds, 2)} s",
            f"{decimal(wait.compute_seconds, 2)} s",
            *(f"{decimal(100 * share, 1)} %" for share in (wait.overlapped, wait.serial)),
            number(wait.break_even_tokens),
        ]
        for wait in waits(job, collectives(job), gpu, mfu_percent=mfu_percent)
    ]
    heads = (
        ">At least",
        ">Takes",
        ">Computing",
        ">Computes, overlapped",
        ">Not overlapped",
        ">Break-even tokens",
    )
    return markdown(["Link", *heads], rows)


def break_even_bars(job: Job, gpu: Gpu, mfu_percent: int, title: str) -> str:
    """Tokens that hide each link, as bars on a logarithmic scale with the run's own drawn in."""
    found = sorted(
        waits(job, collectives(job), gpu, mfu_percent=mfu_percent),
        key=lambda w: w.break_even_tokens,
    )
    tokens = job.tokens
    decades = len(str(max(tokens, *(wait.break_even_tokens for wait in found)))) - 1

    def at(count: int) -> str:
        """Where a count stands, from 10 at the left edge on."""
        return f"{100 * max(0.0, log10(count) - 1) / decades:.2f}%"

    ident = "fig-" + "".join(c if c.isalnum() else "-" for c in title.lower())
    told = "; ".join(f"{wait.title}: {number(wait.break_even_tokens)}" for wait in found)
    height = 46 * len(found) + 26
    upright = f'y1="18" y2="{height - 22}"'
    out = [
        f'<figure class="fig"><svg class="fig-bars" role="img" width="100%" height="{height}" '
        f'aria-labelledby="{ident}-t {ident}-d"><title id="{ident}-t">{escape(title)}</title>'
        f'<desc id="{ident}-d">Tokens that hide the link. {escape(told)}.</desc>',
        *(
            f'<line class="fig-grid" x1="{at(10**n)}" x2="{at(10**n)}" {upright}/>'
            for n in range(2, decades + 1)
        ),
    ]
    for index, wait in enumerate(found):
        top, series = 46 * index, "weights" if wait.break_even_tokens <= tokens else "optimizer"
        out.append(
            f'<text class="fig-label" x="0" y="{top + 15}">{escape(wait.title)} · '
            f'{number(wait.break_even_tokens)} tokens</text><rect class="fig-bar series-{series}" '
            f'x="0" y="{top + 21}" width="{at(wait.break_even_tokens)}" height="18"/>'
            f'<line class="fig-limit" x1="{at(tokens)}" x2="{at(tokens)}" '
            f'y1="{top + 18}" y2="{top + 42}"/>'
        )
    out.append(
        f'<text class="fig-limit-label" x="{at(tokens)}" y="{height - 6}" dx="4">'
        f"this run · {number(tokens)} tokens</text>"
    )
    return "".join(out) + "</svg></figure>"


def stages_table(models: Iterable[Model], gpu: Gpu, world_size: int) -> str:
    """The peak of a full fine-tune of each model by strategy, with its verdict on a card."""
    models, rows = tuple(models), []
    for name in ("single", "ddp", "zero1", "zero2", "zero3", "fsdp2"):
        count = 1 if name == "single" else world_size
        jobs = (Job.of(model=model, world_size=count, strategy=name) for model in models)
        rows.append([get_strategy(name).title, *(_judged(job, gpu) for job in jobs)])
    heads = (f">{model.name.rpartition('/')[2].removesuffix('-Instruct')}" for model in models)
    return markdown(["Strategy", *heads], rows)


def lora_table(model: Model, gpu: Gpu, world_size: int) -> str:
    """The peak of LoRA of rank 16 by strategy and dtype of the frozen base, on a card."""
    rows = []
    for title, base in (("LoRA, bf16 base", "bf16"), ("QLoRA, NF4 base", "nf4")):
        jobs = [
            Job.of(model=model, world_size=count, strategy=name, lora_rank=16, base_dtype=base)
            for name, count in (("single", 1), ("zero2", world_size), ("fsdp2", world_size))
        ]
        rows.append([title, *(_judged(job, gpu) for job in jobs)])
    return markdown(
        ["Run", ">One GPU", f">ZeRO-2 on {world_size}", f">FSDP2 on {world_size}"], rows
    )


def _judged(job: Job, gpu: Gpu) -> str:
    """The peak and its verdict, coloured like it."""
    found = estimate(job)
    said = verdict(found, gpu)
    if not found.peak or not said:
        return "–"
    style = {Verdict.FITS: "fits", Verdict.TIGHT: "tight"}.get(said, "no")
    return f'{size(found.peak.bytes)}<br><span class="verdict-{style}">{said}</span>'
