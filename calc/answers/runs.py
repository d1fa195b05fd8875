"""The JSON values of the commands about one run: what `--json` prints and the text is made from.

What one command alone needs is imported there, so that the others start faster.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from calc import gpus, models
from calc.estimate import Estimate, estimate
from calc.job import Job
from calc.memory.ledger import Phase
from calc.settings import DEFAULTS
from calc.stacks import STACKS, get_strategy
from calc.units import InputError, named, unknown

if TYPE_CHECKING:
    from calc.fit import Row

#: Characters of a message that `oom` reads at most.
MAX_TEXT = 10_000_000
NO_LINE = "no line of this run is within 2 % of the request: it cannot be told from the size alone"


def run(args: argparse.Namespace) -> Job:
    """The run that the arguments name; `--gpus` is free for `fit` where the climb decides."""
    given = {name: getattr(args, name) for name in DEFAULTS if hasattr(args, name)}
    count = args.gpus
    if count is None:
        given["strategy"] = args.strategy or "zero3"
        strategy = get_strategy(given["strategy"]).name
        fewest = next(stack.fewest for stack in STACKS if stack.strategy == strategy)
        ranks = args.shard_size or fewest
        count = args.tp * args.pp * args.cp * args.ep * ranks
    model = models.load(args.model)
    if getattr(args, "config_file", None):
        from calc import configs

        given = configs.read(args.config_file, count, model).over(given)
    return Job.of(**{**given, "model": model, "world_size": count})


def _counts(model: models.Model) -> dict[str, object]:
    counts = {"params_total": model.num_params, "params_active": model.num_active}
    return {"name": model.name, **counts, "params_trainable": model.num_trainable}


def params(args: argparse.Namespace) -> dict[str, object]:
    model = Job.of(
        model=models.load(args.model), lora_rank=args.lora_rank, lora_targets=args.lora_targets
    ).trained
    return {
        "name": model.name,
        "model_type": model.model_type,
        **_counts(model),
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "count": t.count} for t in model.tensors
        ],
        "assumptions": list(model.assumptions),
    }


def estimate_of(args: argparse.Namespace) -> Estimate:
    found = estimate(run(args))
    if not args.config_file:
        return found
    from calc import configs

    notes = configs.read(args.config_file, args.gpus, found.job.model).notes
    return replace(found, assumptions=(*found.assumptions, *notes))


def estimated(args: argparse.Namespace) -> dict[str, object]:
    found, gpu = estimate_of(args), args.gpu and gpus.get(args.gpu)
    answer = estimate_json(found) | (timeline_json(found) if args.timeline else {})
    if not gpu:
        if args.gate:
            raise InputError("--gate needs --gpu, the card to be judged")
        return answer
    from calc.fit import verdict

    said = verdict(found, gpu)
    if args.gate and said is None:
        raise InputError(
            f"no verdict on {found.model.name} and {gpu.name}: "
            "its peak or visible memory is not known"
        )
    return {**answer, "gpu": gpu.name, "visible_bytes": gpu.visible_bytes, "verdict": said}


def config(args: argparse.Namespace) -> dict[str, object]:
    from calc import configs

    form, job = named("format", args.format, configs.FORMATS), run(args)
    if not args.recipe:
        job = configs.natural(job, form)
    file = configs.write(job, args.format, auto=args.auto)
    beside = [*file.head, *file.foot] if file.language == "json" else []
    return {
        "format": args.format,
        "file": file.name,
        "run": file.job.settings,
        "text": file.text,
        "beside": beside,
    }


def estimate_json(found: Estimate) -> dict[str, object]:
    """The contract's JSON value of an estimate: all bytes integers, per GPU (largest rank)."""
    return {
        "model": _counts(found.model),
        "run": found.job.settings,
        "states": asdict(found.states),
        "states_bytes": found.states.total,
        "one_line": asdict(found.one_line),
        "one_line_bytes": found.one_line.total,
        "phases": found.phases and {name: _phase(phase) for name, phase in found.phases.items()},
        "instants": [_phase(phase) for phase in found.instants],
        "peak": found.peak and asdict(found.peak),
        "host_per_node_bytes": found.host_per_node_bytes,
        "assumptions": list(found.assumptions),
    }


def timeline_json(found: Estimate) -> dict[str, object]:
    """Every allocation of the largest rank's step, and the worst moment of each of its stretches.

    Both are None where the operations of a layer are not known.
    """
    from calc.curve import FIRST_INSTANT, curve, timeline

    memory = timeline(found.job)
    if memory is None:
        return {"timeline": None, "curve": None}
    events = [
        {
            "phase": _phase_of(event.instant),
            **event._asdict(),
            "instant": event.instant or FIRST_INSTANT,
        }
        for event in memory.events
    ]
    moments = [
        {
            "phase": _phase_of(moment.instant),
            "instant": moment.instant,
            "layer": moment.layer,
            "bytes": moment.bytes,
            "lines": [asdict(line) for line in moment.lines],
        }
        for moment in curve(memory)
    ]
    return {"timeline": events, "curve": moments}


def _phase_of(instant: str) -> str:
    return "step" if instant == "step" else "forward+backward"


def _phase(phase: Phase) -> dict[str, object]:
    return {
        "bytes": phase.bytes,
        "instant": phase.instant,
        "lines": [asdict(line) for line in phase.lines],
    }


def fitted(args: argparse.Namespace) -> dict[str, object]:
    from calc.fit import fit

    job, offered = run(args), [gpu for gpu in gpus.known().values() if gpu.counts()]
    if args.gpus is not None and job.stack.stage:
        raise InputError(
            f"fit finds the number of GPUs for strategy {job.strategy!r}; "
            "--gpus goes with --strategy ddp"
        )
    vendors = {gpu.vendor.lower(): gpu.vendor for gpu in offered}
    if args.vendor and args.vendor.lower() not in vendors:
        raise unknown("vendor", args.vendor, vendors.values())
    chosen = [gpus.get(name) for name in args.gpu or ()] or offered
    chosen = [gpu for gpu in chosen if not args.vendor or gpu.vendor.lower() == args.vendor.lower()]
    rows = [_row(job, row, args.largest) for row in fit(job, chosen, args.max_gpus)]
    return {"rows": rows, "assumptions": list(estimate(job).assumptions)}


def _row(job: Job, row: Row, asked: bool) -> dict[str, object]:
    """One card's answer, and if `asked` the largest sequence and micro-batch that still fit."""
    from calc.fit import largest

    peak, there = row.found and row.found.peak, row.num_gpus and job.but(world_size=row.num_gpus)
    names = ("seq_len", "micro_batch") if asked else ()
    return {
        "gpu": row.gpu.name,
        "num_gpus": row.num_gpus,
        "verdict": row.verdict,
        "peak_bytes": peak and peak.bytes,
        "peak_low_bytes": peak and peak.low,
        "peak_high_bytes": peak and peak.high,
        "limiting_line": row.limiting_line,
        "near_miss": row.near_miss and asdict(row.near_miss),
        "num_gpus_one_line": row.num_gpus_one_line,
        "one_line_bytes": row.one_line_bytes,
        "label_limit_bytes": row.label_limit_bytes,
        "visible_bytes": row.gpu.visible_bytes,
        "note": row.note,
        **{f"largest_{name}": largest(there, row.gpu, name) if there else None for name in names},
    }


def communicated(args: argparse.Namespace) -> dict[str, object]:
    from calc import communication

    job, gpu = run(args), gpus.get(args.gpu)
    found = communication.collectives(job)
    waits = communication.waits(job, found, gpu, mfu_percent=args.mfu)
    return {
        "model": job.model.name,
        "run": job.settings,
        "gpu": gpu.name,
        "collectives": [
            {
                "collective": c.name,
                "what": c.what,
                "ranks": c.ranks,
                "times": c.times,
                "bytes": c.num_bytes,
            }
            for c in found
        ],
        "bytes_per_step": sum(c.num_bytes for c in found),
        "between_nodes_bytes": sum(c.between_nodes(communication.node_gpus(gpu)) for c in found),
        "mfu_percent": args.mfu,
        "links": [
            {
                "link": wait.link,
                "title": wait.title,
                "bytes": wait.num_bytes,
                "seconds": float(wait.seconds),
                "compute_seconds": float(wait.compute_seconds),
                "break_even_tokens": wait.break_even_tokens,
                "utilisation": float(wait.overlapped * args.mfu / 100),
                "utilisation_serial": float(wait.serial * args.mfu / 100),
            }
            for wait in waits
        ],
    }


def out_of_memory(args: argparse.Namespace) -> dict[str, object]:
    from calc import oom

    message = oom.read(_text(args.message))
    found = oom.candidates(message, estimate(run(args))) if args.model else ()
    told = []
    if not args.model:
        told = ["give the model and the run's options to see which of its lines are as large"]
    elif not found and (message.requested or 0) > oom.SMALL_BYTES:
        told = [NO_LINE]
    return {
        "requested_bytes": message.requested,
        "capacity_bytes": message.capacity,
        "free_bytes": message.free,
        "allocated_bytes": message.allocated,
        "reserved_bytes": message.reserved,
        "candidates": [asdict(candidate) for candidate in found],
        "notes": [*oom.notes(message), *told],
    }


def _text(message: str) -> str:
    """The message itself, what a file of that name holds, or standard input for `-`."""
    try:
        if message == "-":
            text = sys.stdin.read(MAX_TEXT + 1) if sys.stdin else ""
        else:
            with Path(message).open(encoding="utf-8", errors="replace") as file:
                text = file.read(MAX_TEXT + 1)
    except (OSError, ValueError):  # no file of that name, so the name is the message
        return message
    if len(text) > MAX_TEXT:
        raise InputError(f"longer than {MAX_TEXT:,} characters; give the part with the message")
    return text
