"""argv → text or JSON. The only room that prints, reads argv or ends a process.

`answer` is the JSON value of a command; `main` prints it, as text unless `--json` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from calc import communication, configs, gpus, models, oom
from calc.curve import FIRST_INSTANT, curve, timeline
from calc.estimate import Estimate, Phase, estimate
from calc.fit import Row, fit, largest, verdict
from calc.job import CHOICES, DEFAULTS, SETTINGS, Job
from calc.optimizers import OPTIMIZERS
from calc.precision import RECIPES
from calc.stacks import STRATEGIES
from calc.tables.plain import plain
from calc.units import UNITS, InputError, named, unknown
from calc.units import text as written

if TYPE_CHECKING:
    from calc.audit.claims import Judgement

Json = Mapping[str, object] | list[object]
#: Characters of a message that `oom` reads at most.
MAX_TEXT = 10_000_000


class _Parser(argparse.ArgumentParser):
    """argparse prints a usage block before its error; the contract is one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _int(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a whole number: {text[:40]!r}") from None


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"not true or false: {text[:40]!r}")
    return text == "true"


@cache
def parser() -> argparse.ArgumentParser:
    """The command line's parser; the reference page is built from its actions."""
    told = "Training memory per GPU, in exact bytes."
    top = _Parser(prog="sixteen-bytes", description=told, allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.add_argument("--json", action="store_true", help="print the answer as JSON")
        return sub

    def of_a_run(name: str, text: str, required: bool = True) -> argparse.ArgumentParser:
        sub = command(name, text)
        sub.add_argument("model", metavar="MODEL", help=_MODEL)
        sub.add_argument(
            "--gpus", type=_int, metavar="N", required=required, help="number of GPUs (world_size)"
        )
        _run_options(sub)
        return sub

    params = command("params", "Parameter tensors of a model.")
    params.add_argument("model", metavar="MODEL", help=_MODEL)
    _lora_options(params)
    single = of_a_run("estimate", "What a run costs per GPU, line by line.")
    single.add_argument("--gpu", metavar="G", help="a card: adds the verdict")
    single.add_argument(
        "--gate", choices=("fits", "tight"), help="exit status 1 where the verdict is worse"
    )
    told = "add the memory curve of the step: every allocation, and where it is highest"
    single.add_argument("--timeline", action="store_true", help=told)
    config_file: dict[str, Any] = {
        "metavar": "F",
        "help": "read the run from a DeepSpeed JSON or Accelerate YAML (all but fit)",
    }
    single.add_argument("--config-file", **config_file)
    cards = of_a_run("fit", "Which cards, and how many of them, hold a run.", required=False)
    cards.add_argument("--gpu", action="append", metavar="G", help="only this card; repeat")
    cards.add_argument("--vendor", metavar="V", help="only cards of NVIDIA, AMD or Intel")
    cards.add_argument("--max-gpus", type=_int, metavar="N", default=1024, help="climb no further")
    cards.add_argument(
        "--largest", action="store_true", help="add the sequence and micro-batch that still fit"
    )
    config = of_a_run("config", "The config file of a framework for a run, ready to copy.")
    config.add_argument("--format", required=True, metavar="F", help=", ".join(configs.FORMATS))
    config.add_argument("--config-file", **config_file)
    config.add_argument(
        "--auto", action="store_true", help="deepspeed: leave to Transformers what it fills in"
    )
    wire = of_a_run(
        "communication", "Bytes on the wire per optimizer step, and how long links need for them."
    )
    wire.add_argument("--config-file", **config_file)
    wire.add_argument(
        "--gpu", default="h100-sxm5-80gb", metavar="G", help="the card, for its links and its speed"
    )
    wire.add_argument(
        "--mfu",
        type=_int,
        default=40,
        help="per cent of the card's bf16 peak that computing reaches",
    )
    memory = command(
        "oom",
        "An out-of-memory message: its figures, and the lines of a run as large as the request.",
    )
    memory.add_argument(
        "message",
        metavar="MESSAGE",
        help="the message itself, a file that holds it, or - for stdin",
    )
    memory.add_argument("model", metavar="MODEL", nargs="?", help=f"the run's model: {_MODEL}")
    memory.add_argument(
        "--gpus", type=_int, metavar="N", default=1, help="number of GPUs of the run (world_size)"
    )
    memory.add_argument("--config-file", **config_file)
    _run_options(memory)
    command("claims", "Published numbers, each with the verdict on it.")
    for name in ("models", "gpus", "optimizers", "recipes", "strategies"):
        command(name, f"The known {name.replace('gpus', 'GPUs')}.")
    checked = command(
        "check", "Marked numbers in Markdown files and notebooks: are they still true?"
    )
    checked.add_argument("files", nargs="+", metavar="FILE", help="a Markdown file or a notebook")
    checked.add_argument(
        "--fix", action="store_true", help="rewrite the stale numbers, and only them"
    )
    checked.add_argument(
        "--only-marked", action="store_true", help="let quantities of bytes without a mark pass"
    )
    return top


_MODEL = "a Hugging Face id, its short name, a config.json or its folder, or a count such as 70B"


def _run_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--strategy", default="", help=", ".join(STRATEGIES))
    sub.add_argument("--recipe", default="", help=", ".join(RECIPES))
    sub.add_argument("--optimizer", default="adamw", help=", ".join(OPTIMIZERS))
    sub.add_argument("--seq-len", type=_int, default=2048, help="tokens of one sequence")
    sub.add_argument("--micro-batch", type=_int, default=1, help="sequences per GPU at a time")
    sub.add_argument(
        "--accumulation", type=_int, default=1, help="micro-batches between optimizer steps"
    )
    for name, told in (
        ("tp", "degree of tensor parallelism"),
        ("pp", "degree of pipeline parallelism, the stages"),
        ("cp", "degree of context parallelism, parts of a sequence"),
        ("ep", "degree of expert parallelism"),
    ):
        sub.add_argument(f"--{name}", type=_int, metavar="N", default=1, help=told)
    sub.add_argument(
        "--shard-size", type=_int, metavar="N", default=0, help="hsdp: GPUs that shard; 0: 8"
    )
    _lora_options(sub)
    defaults = DEFAULTS
    for name, allowed in CHOICES.items():
        sub.add_argument(
            f"--{name.replace('_', '-')}", default=defaults[name], help=", ".join(allowed)
        )
    for name, owner in SETTINGS.items():
        if name not in CHOICES:
            kind = _bool if isinstance(defaults[name], bool) else _int
            default = str(defaults[name]).lower()
            sub.add_argument(
                f"--{name.replace('_', '-')}",
                type=kind,
                default=default,
                help=f"{owner}; {default}",
            )


def _lora_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--lora-rank", type=_int, default=0, help="rank of the adapters; 0: none")
    sub.add_argument(
        "--lora-targets", default="all-linear", help="all-linear or names, comma between"
    )


def _run(args: argparse.Namespace) -> Job:
    """The run that the arguments name; `--gpus` is free for `fit` where the climb decides."""
    given = {name: getattr(args, name) for name in DEFAULTS if hasattr(args, name)}
    count = args.gpus
    if count is None:
        count = args.tp * args.pp * args.cp * args.ep * (2 if args.strategy == "ddp" else 1)
        count *= (args.shard_size or 8) if args.strategy == "hsdp" else 1
        given["strategy"] = args.strategy or "zero3"
    model = models.load(args.model)
    if getattr(args, "config_file", None):
        given = configs.read(args.config_file, count, model).over(given)
    return Job.of(**{**given, "model": model, "world_size": count})


def _counts(model: models.Model) -> dict[str, object]:
    counts = {"params_total": model.num_params, "params_active": model.num_active}
    return {"name": model.name, **counts, "params_trainable": model.num_trainable}


def _params(args: argparse.Namespace) -> Json:
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


def _found(args: argparse.Namespace) -> Estimate:
    job = _run(args)
    notes = configs.read(args.config_file, args.gpus, job.model).notes if args.config_file else ()
    found = estimate(job)
    return replace(found, assumptions=(*found.assumptions, *notes))


def _estimate(args: argparse.Namespace) -> Json:
    found, gpu = _found(args), args.gpu and gpus.get(args.gpu)
    answer = estimate_json(found) | (timeline_json(found) if args.timeline else {})
    if not gpu:
        if args.gate:
            raise InputError("--gate needs --gpu, the card to be judged")
        return answer
    said = verdict(found, gpu)
    if args.gate and said is None:
        raise InputError(
            f"no verdict on {found.model.name} and {gpu.name}: its peak or visible memory is not known"
        )
    return {**answer, "gpu": gpu.name, "visible_bytes": gpu.visible_bytes, "verdict": said}


def _gate(least: str, answer: Any) -> int:
    """0 where the verdict is `least` or better, else 1 and one line on standard error that says what is too much."""
    if answer["verdict"] in ("fits", least):
        return 0
    phase, low = answer["peak"]["phase"], answer["peak"]["low"]
    line = max(answer["phases"][phase]["lines"], key=lambda line: line["bytes"])
    print(
        f"gate: {answer['verdict']}: needs {written(low)} to {written(answer['peak']['high'])}, {answer['gpu']} shows "
        f"{written(answer['visible_bytes'])}; most of it is {line['line']}, {written(line['bytes'])} in {phase}",
        file=sys.stderr,
    )
    return 1


def _config(args: argparse.Namespace) -> Json:
    form, job = named("format", args.format, configs.FORMATS), _run(args)
    if not args.recipe:
        job = configs.natural(job, form)
    file = configs.write(job, args.format, auto=args.auto)
    beside = [*file.head, *file.foot] if file.language == "json" else []
    return {
        "format": args.format,
        "file": file.name,
        "run": _settings(file.job),
        "text": file.text,
        "beside": beside,
    }


def _settings(job: Job) -> dict[str, object]:
    return job.settings


def estimate_json(found: Estimate) -> dict[str, object]:
    """The contract's JSON value of an estimate: all bytes integers, per GPU (largest rank)."""
    return {
        "model": _counts(found.model),
        "run": _settings(found.job),
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
    """Every allocation of the largest rank's step, and the worst moment of each layer and of what is between them.

    Both are None where the operations of a layer are not known.
    """
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


def _fit(args: argparse.Namespace) -> Json:
    job, offered = _run(args), [gpu for gpu in gpus.known().values() if gpu.counts()]
    if args.gpus is not None and job.strategy not in ("single", "ddp"):
        raise InputError(
            f"fit finds the number of GPUs for strategy {job.strategy!r}; --gpus goes with --strategy ddp"
        )
    vendors = {gpu.vendor.lower(): gpu.vendor for gpu in offered}
    if args.vendor and args.vendor.lower() not in vendors:
        raise unknown("vendor", args.vendor, vendors.values())
    chosen = [gpus.get(name) for name in args.gpu or ()] or offered
    chosen = [gpu for gpu in chosen if not args.vendor or gpu.vendor.lower() == args.vendor.lower()]
    rows = [_row(job, row, args.largest) for row in fit(job, chosen, args.max_gpus)]
    return {"rows": rows, "assumptions": list(estimate(job).assumptions)}


def _row(job: Job, row: Row, asked: bool) -> dict[str, object]:
    """One card's answer, and where it is asked for the largest sequence and micro-batch that still fit."""
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


def _communication(args: argparse.Namespace) -> Json:
    job, gpu = _run(args), gpus.get(args.gpu)
    found = communication.collectives(job)
    waits = communication.waits(job, found, gpu, mfu_percent=args.mfu)
    return {
        "model": job.model.name,
        "run": _settings(job),
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


def _oom(args: argparse.Namespace) -> Json:
    message = oom.read(_text(args.message))
    found = oom.candidates(message, estimate(_run(args))) if args.model else ()
    told = (
        []
        if args.model
        else ["give the model and the run's options to see which of its lines are as large"]
    )
    if args.model and message.requested and not found and message.requested > oom.SMALL_BYTES:
        told = [
            "no line of this run is within 2 % of the request: it cannot be told from the size alone"
        ]
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


def _claims(_: argparse.Namespace) -> Json:
    # What one command alone needs is imported by it, so that the others start sooner.
    from calc.audit.claims import judgements

    return [_claim(found) for found in judgements()]


def _claim(found: Judgement) -> dict[str, object]:
    """A published number in its real unit, the verdict on it, and what the ledgers named give instead."""
    claim, size = found.claim, UNITS.get(found.claim.unit)
    computed, repaired = (way.value if way else None for way in (found.way, found.repaired))
    return {
        "id": claim.id,
        "says": claim.says,
        "printed": claim.printed,
        "value": int(claim.value) if claim.value.denominator == 1 else float(claim.value),
        "unit": claim.unit,
        "kind": claim.kind,
        "verdict": found.verdict,
        "recipes": list(dict.fromkeys(way.name for way in found.ways)),
        "compared_with": found.way.name if found.way else None,
        "computed": None if computed is None else float(computed),
        "computed_bytes": round(computed * size) if computed is not None and size else None,
        "right_for": dict(claim.repair) if claim.repair else None,
        "repaired_bytes": round(repaired * size) if repaired is not None and size else None,
        "missing": claim.missing or None,
        "source": asdict(claim.source) | {"where": claim.where},
    }


def _models(_: argparse.Namespace) -> Json:
    return [dict(record) for record in models.known()]


def _plain(item: Any) -> dict[str, Any]:
    """A registry entry as a JSON object: mappings and the copies of a recipe as objects, tuples as lists."""

    def inner(value: Any) -> dict[str, object]:
        return dict(value) if isinstance(value, Mapping) else asdict(value)

    entry = {field.name: getattr(item, field.name) for field in fields(item)}
    return dict(json.loads(json.dumps(entry, default=inner)))


def _gpus(_: argparse.Namespace) -> Json:
    return [
        {
            "slug": slug,
            **_plain(gpu),
            "label_bytes": gpu.label_bytes,
            "driver_bytes": gpu.driver_bytes,
        }
        for slug, gpu in gpus.known().items()
    ]


def _registry(registry: Mapping[str, object]) -> Callable[[argparse.Namespace], Json]:
    return lambda _: [_plain(item) for item in registry.values()]


def _check(args: argparse.Namespace) -> int:
    """Print what is not true, and each rewritten number as old → new; 0 true, 1 stale, 2 unreadable.

    A file that cannot be read is told on stderr and left alone; the others are checked all the same.
    """
    from calc import check

    ask, status, findings = cache(answer), 0, list[check.Finding]()
    for path in args.files:
        try:
            left, rewritten = check.check_file(path, answer=ask, fix=args.fix)
        except InputError as error:
            print(f"error: {_line(error)}", file=sys.stderr)
            status = 2
            continue
        findings += (
            finding for finding in left if not args.only_marked or finding.kind != "unmarked"
        )
        for stale in rewritten if not args.json else ():
            print(
                _line(
                    f"{stale.file}:{stale.line}: {stale.said} → {stale.computed} in: {stale.sentence}"
                )
            )
    if args.json:
        print(json.dumps([finding.as_json() for finding in findings], indent=2))
    for finding in findings if not args.json else ():
        if not finding.ok:
            print(_line(finding))
    return max(status, *(0 if f.ok else 2 if f.kind == "unreadable" else 1 for f in findings), 0)


def _line(told: object) -> str:
    """One line that no terminal reads as a command, whatever was put into a message."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(told))


_ANSWERS: Mapping[str, Callable[[argparse.Namespace], Json]] = {
    "params": _params,
    "estimate": _estimate,
    "config": _config,
    "fit": _fit,
    "communication": _communication,
    "oom": _oom,
    "claims": _claims,
    "models": _models,
    "gpus": _gpus,
    "optimizers": _registry(OPTIMIZERS),
    "recipes": _registry(RECIPES),
    "strategies": _registry(STRATEGIES),
}


def answer(argv: Sequence[str]) -> Json:
    """The JSON value of a command, as `--json` prints it; `InputError` for bad input.

    >>> answer(["estimate", "70B", "--gpus", "8"])["states_bytes"]
    140000000000
    """
    args = parser().parse_args(list(argv))
    return named("question", args.command, _ANSWERS)(args)


def calculated(argv: Sequence[str]) -> tuple[str, str]:
    """What the calculator page shows for `estimate … --gpu G`: `html` and its text, or `error` and the line."""
    from calc.tables.calculator import calculator

    try:
        args = parser().parse_args(list(argv))
        return "html", calculator(_found(args), gpus.get(args.gpu))
    except InputError as error:
        return "error", f"error: {_line(error)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and print its answer; 0, or 2 with one `error:` line for bad input."""
    for stream in (sys.stdin, sys.stdout):
        with contextlib.suppress(
            io.UnsupportedOperation
        ):  # input that was read before keeps its errors
            if isinstance(
                stream, io.TextIOWrapper
            ):  # what it cannot read or write becomes \xff or \u2192
                stream.reconfigure(errors="backslashreplace")
    try:
        status = _main(argv)
        if sys.stdout:
            sys.stdout.flush()  # here, and not at Python's end, where a full disk is a traceback
    except InputError as error:
        print(f"error: {_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: cannot print the answer: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _main(argv: Sequence[str] | None) -> int:
    args = parser().parse_args(argv)
    if args.command == "check":
        return _check(args)
    found = _ANSWERS[args.command](args)
    print(json.dumps(found, indent=2) if args.json else plain(args.command, found))
    if getattr(args, "gate", None):
        return _gate(args.gate, found)
    if args.command == "config" and isinstance(found, dict) and not args.json:
        print(
            "".join(f"# {line}\n" for line in found["beside"]), end="", file=sys.stderr
        )  # JSON has no comments
    return 0
