"""Tables and figures of the peak: phases, runs against a card, a grid of batch sizes, levers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from calc.estimate import (
    CONTEXT_BYTES,
    FRAGMENTATION_PERCENT,
    NCCL_BYTES,
    Estimate,
    estimate,
)
from calc.fit import Verdict, verdict
from calc.gpus import Gpu, get
from calc.job import Job
from calc.memory.layers import kept_bytes, recomputes
from calc.memory.ledger import Phase
from calc.models import Block, Model, with_adapters
from calc.models.families import operations
from calc.settings import CHOICES
from calc.tables.figures import bars
from calc.tables.text import markdown, number, per_param, short, size

#: What each instant of a training step is, in words.
INSTANTS = {
    "fwd_layers": "a layer is gathered in the forward",
    "head_fwd": "the loss is computed",
    "head_bwd": "the backward begins, at the logits",
    "layers_bwd": "a decoder layer is in its backward",
    "root_bwd": "embedding and head are reduced",
    "step": "the optimizer steps",
}
STATES = ("weights", "master", "gradients", "optimizer")
_STATES_DRAWN = ("weights", "gradients", "master", "optimizer")
WORK = ("saved activations", "recomputed layer", "activation gradients", "logits and loss")


def ledger(phase: Phase) -> str:
    """One phase line by line: what it is, its kind, exact bytes, rounded."""
    rows = [
        [line.line, line.kind, number(line.bytes), size(line.bytes, "GB", 2)]
        for line in phase.lines
    ]
    rows.append(["total", "", number(phase.bytes), size(phase.bytes, "GB", 2)])
    return markdown(["Line", "Kind", ">Bytes", ">Rounded"], rows, total=True)


def phases(found: Estimate) -> str:
    """Every phase of a run at its worst instant, the peak in bold."""
    rows = []
    for name, phase in (found.phases or {}).items():
        at = INSTANTS.get(phase.instant, phase.instant)
        cells = [name, at, number(phase.bytes), size(phase.bytes)]
        is_peak = found.peak is not None and name == found.peak.phase
        rows.append([f"**{cell}**" for cell in cells] if is_peak else cells)
    return markdown(["Phase", "Its worst instant", ">Bytes", ">Rounded"], rows)


def against(jobs: Mapping[str, Job], gpu: Gpu) -> str:
    """Named runs against one card: states, peak, what a process needs, the one verdict."""
    said = f">Verdict on {size(gpu.visible_bytes, 'GB', 2)}"
    rows = [[name, *_cells(job, gpu)] for name, job in jobs.items()]
    return markdown(["Run", ">States", ">Peak", ">A process needs", said], rows)


def on_cards(ways: Iterable[tuple[str, Job, Gpu]]) -> str:
    """Runs, each on its own cards: states, peak, band, verdict."""
    rows = []
    for name, job, gpu in ways:
        rows.append([name, f"{job.world_size} × {short(gpu.name)}", *_cells(job, gpu)])
    return markdown(["Run", "Cards", ">States", ">Peak", ">A process needs", ">Verdict"], rows)


def ways_out(model: Model) -> str:
    """Runs that train a 70B-class model on cards that people ask about, each with its verdict."""
    h100, h200, b200 = get("h100-sxm5-80gb"), get("h200-sxm5"), get("b200-sxm")
    fsdp2 = Job.of(model=model, world_size=8, strategy="fsdp2")
    pure = fsdp2.but(recipe="pure-bf16", reduce_dtype="bf16")
    bits = pure.but(strategy="fsdp1", optimizer="adamw8bit")
    host = Job.of(model=model, world_size=8, offload="optimizer")
    apart = fsdp2.but(world_size=16, wrap="block+ends")
    fsdp = "AdamW, fp32 shards, FSDP2"
    return on_cards(
        [
            (fsdp, fsdp2, h100),
            ("pure bf16 AdamW, FSDP2", pure, h100),
            ("the same, ends wrapped apart", pure.but(wrap="block+ends"), h100),
            ("8-bit Adam, no master, FSDP1", bits, h100),
            ("AdamW on the host, ZeRO-3", host, h100),
            ("QLoRA rank 16, FSDP2", pure.but(lora_rank=16, base_dtype="nf4"), h100),
            (fsdp, fsdp2.but(world_size=16), h100),
            ("the same, ends wrapped apart", apart, h100),
            (fsdp, fsdp2, h200),
            (fsdp, fsdp2, b200),
        ]
    )


def _cells(job: Job, gpu: Gpu) -> list[str]:
    found = estimate(job)
    if found.peak is None:
        return [size(found.states.total), "–", "–", "–"]
    band = f"{size(found.peak.low).removesuffix(' GB')} to {size(found.peak.high)}"
    return [size(found.states.total), size(found.peak.bytes), band, said(found, gpu)]


def said(found: Estimate, gpu: Gpu) -> str:
    """The one verdict as a coloured word, `not known` where the card or the peak is not."""
    word = verdict(found, gpu)
    classes = {Verdict.FITS: "fits", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "no"}
    return f'<span class="verdict-{classes[word]}">{escape(word)}</span>' if word else "not known"


def grid(job: Job, gpu: Gpu, seq_lens: Sequence[int], micro_batches: Sequence[int]) -> str:
    """The peak of one run by sequence length and micro-batch, each with its verdict on one card."""
    rows = []
    for seq_len in seq_lens:
        cells = [f"{seq_len:,}"]
        for micro_batch in micro_batches:
            found = estimate(job.but(seq_len=seq_len, micro_batch=micro_batch))
            cells.append(f"{size(found.peak.bytes)}<br>{said(found, gpu)}" if found.peak else "–")
        rows.append(cells)
    heads = [f">Micro-batch {count}" for count in micro_batches]
    return markdown([">Sequence length", *heads], rows)


def levers(base: Job, changes: Mapping[str, Job]) -> str:
    """What each changed run frees at the peak of the base run, most first."""
    start = estimate(base).peak
    assert start is not None
    peaks = {name: estimate(job).peak for name, job in changes.items()}
    rows = sorted(
        ((start.bytes - peak.bytes, name, peak) for name, peak in peaks.items() if peak),
        key=lambda row: -row[0],
    )
    cells = [[name, size(freed), size(p.bytes), INSTANTS[p.instant]] for freed, name, p in rows]
    return markdown(["Change", ">Frees", ">Peak after it", "Worst instant after it"], cells)


def lever_table(base: Job) -> str:
    """The levers of *Reduce training memory*, each pulled alone on one FSDP2 run."""
    changes: dict[str, dict[str, Any]] = {
        "full checkpointing": {"checkpointing": "full"},
        "checkpoint every second layer": {"checkpointing": "selective"},
        "chunked or fused loss": {"loss": "chunked"},
        "both: full checkpointing and a chunked loss": {"checkpointing": "full", "loss": "chunked"},
        "twice as many GPUs": {"world_size": 2 * base.world_size},
        "half the sequence": {"seq_len": base.seq_len // 2},
        "pure bf16, no fp32 shards": {"recipe": "pure-bf16", "reduce_dtype": "bf16"},
        "8-bit AdamW (torchao)": {"optimizer": "adamw8bit-torchao"},
        "LoRA, rank 16": {"lora_rank": 16},
        "embedding and head as units of their own": {"wrap": "block+ends"},
    }
    return levers(base, {name: base.but(**change) for name, change in changes.items()})


def formula_against_peak(job: Job) -> str:
    """What the one-line formula leaves out of a run's peak, line by line."""
    found = estimate(job)
    assert found.phases is not None
    assert found.peak is not None
    phase = found.phases[found.peak.phase]
    lines = {line.line: line.bytes for line in phase.lines if line.line not in STATES}
    states = phase.bytes - sum(lines.values())
    amounts = {"states at that instant": states, **lines, "peak": phase.bytes}
    rows = [[name, size(amount, "GB", 2)] for name, amount in amounts.items()]
    return markdown(["Line", ">At the peak"], rows, total=True)


def count_bars(jobs: Iterable[Job], gpu: Gpu, title: str) -> str:
    """The worst instant of a run on more and more GPUs: what does not shrink stands first."""
    order = ("transient", "activations", *_STATES_DRAWN)
    rows, notes = {}, {}
    for job in jobs:
        found = estimate(job)
        assert found.phases is not None
        assert found.peak is not None
        name = f"{job.world_size:,} GPUs"
        rows[name] = _stack(found.phases[found.peak.phase], order)
        notes[name] = str(verdict(found, gpu) or "")
    return _figure(rows, gpu, title, "Peak per GPU", notes)


def step_figure(job: Job, gpu: Gpu, title: str) -> str:
    """The instants of one training step as stacked bars against one card."""
    found = estimate(job)
    assert found.phases is not None
    worst = {phase.instant: phase for phase in (*found.instants, found.phases["step"])}
    order = (*_STATES_DRAWN, "activations", "transient")
    rows = {INSTANTS[name]: _stack(phase, order) for name, phase in worst.items()}
    return _figure(rows, gpu, title, "Allocated per GPU")


def _figure(
    rows: Mapping[str, Mapping[str, int]],
    gpu: Gpu,
    title: str,
    what: str,
    notes: Mapping[str, str] | None = None,
) -> str:
    told = "; ".join(f"{name} {size(sum(parts.values()))}" for name, parts in rows.items())
    limit, shown = gpu.visible_bytes or gpu.label_bytes, f"{short(gpu.name)} shows a process"
    return bars(rows, limit, shown, title, f"{what}: {told}.", notes=notes)


def _stack(phase: Phase, order: Iterable[str]) -> dict[str, int]:
    """A phase by series: states, what belongs to activations, what is gathered or on its way."""
    parts = dict.fromkeys(order, 0)
    for line in phase.lines:
        series = "activations" if line.line in WORK else "transient"
        parts[line.line if line.line in STATES else series] += line.bytes
    return parts


def layer_table(model: Model) -> str:
    """The operations of one layer and what each keeps, in bytes per token (bf16, SDPA)."""
    ops = operations(model, model.largest_block)
    hidden = int(str(model.config["hidden_size"]))
    rows = [[op.name, number(op.saved), per_param(op.saved, hidden)] for op in ops if op.saved]
    total = sum(op.saved for op in ops)
    rows.append(["total", number(total), per_param(total, hidden)])
    return markdown(["Operation", ">Bytes per token", ">× hidden_size"], rows, total=True)


def checkpointing_table(model: Model, seq_len: int) -> str:
    """What all layers keep for one sequence, by checkpointing."""
    rows = []
    for name in CHOICES["checkpointing"]:
        each = sum(_kept(model, block, name, n) for block in model.blocks for n in block.layers)
        kept = seq_len * each
        rows.append([f"`{name}`", number(each), number(kept), size(kept, "GB", 2)])
    return markdown(["Checkpointing", ">Bytes per token", ">Bytes", ">Rounded"], rows)


def _kept(model: Model, block: Block, checkpointing: str, layer: int) -> int:
    """Bytes per token that a layer keeps in bf16."""
    stream, recomputed = 2 * int(str(model.config["hidden_size"])), recomputes(checkpointing, layer)
    matmuls = checkpointing == "matmuls"
    return kept_bytes(stream, operations(model, block), recomputed=recomputed, matmuls=matmuls)


def attention_table(job: Job, seq_lens: Sequence[int]) -> str:
    """The peak by attention implementation and sequence length."""
    rows, names = [], CHOICES["attention"]
    for seq_len in seq_lens:
        found = [estimate(job.but(attention=name, seq_len=seq_len)).peak for name in names]
        rows.append([f"{seq_len:,}", *(size(peak.bytes) if peak else "–" for peak in found)])
    return markdown([">Sequence length", *(f">`{name}`" for name in names)], rows)


def allowance_table() -> str:
    """What a process needs beside its tensors, least and most."""
    rows = [
        ["CUDA context with cuBLAS", *(size(amount, "GB", 2) for amount in CONTEXT_BYTES)],
        ["NCCL, from two GPUs on", *(size(amount, "GB", 2) for amount in NCCL_BYTES)],
        ["fragmentation", "none", f"{FRAGMENTATION_PERCENT} % of the peak"],
    ]
    return markdown(["Line", ">Least", ">Most"], rows)


def instants_by_length(job: Job, seq_lens: Sequence[int]) -> str:
    """The peak and its instant by sequence length."""
    rows = []
    for seq_len in seq_lens:
        peak = estimate(job.but(seq_len=seq_len)).peak
        assert peak is not None
        rows.append([f"{seq_len:,}", size(peak.bytes, "GB", 2), INSTANTS[peak.instant]])
    return markdown([">Sequence length", ">Peak", "Worst instant"], rows)


def lora_counts(chosen: Iterable[Model]) -> str:
    """Trainable parameters by rank and target modules."""
    rows = []
    for model in chosen:
        for targets in ("all-linear", "q_proj,v_proj"):
            names = targets if targets == "all-linear" else tuple(targets.split(","))
            adapted = (with_adapters(model, rank=rank, targets=names) for rank in (8, 16, 64))
            counts = (number(each.num_trainable) for each in adapted)
            rows.append([model.name.rpartition("/")[2], f"`{targets}`", *counts])
    return markdown(["Model", "Targets", ">Rank 8", ">Rank 16", ">Rank 64"], rows)


def host_table(ways: Mapping[str, Job], gpu: Gpu) -> str:
    """Runs with their peak on the card and what one node of the host must hold."""
    rows = []
    for name, job in ways.items():
        found = estimate(job)
        peak = size(found.peak.bytes if found.peak else None)
        rows.append([name, peak, said(found, gpu), size(found.host_per_node_bytes)])
    heads = (">Peak per GPU", f">Verdict on {short(gpu.name)}", ">Host RAM per node")
    return markdown(["Run", *heads], rows)
