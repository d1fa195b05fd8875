"""Plain text, for the command line: each command's JSON value as lines and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from calc.tables.text import TITLES, number, size
from calc.units import UNITS

#: What the verdict *tight* rests on.
UNMEASURED = "tight, by an allowance that has not been measured on a GPU"

CURVE = "where the memory curve of the step is highest"


def plain(command: str, answer: Any) -> str:
    """The text answer of a command, from the JSON value that `--json` would print."""
    show: Callable[[Any], str] = _PLAIN.get(command, _plain_registry)
    return show(answer)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = (
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _plain_params(answer: Mapping[str, Any]) -> str:
    head = [
        f"{answer['name']} ({answer['model_type']})",
        f"parameters  {answer['params_total']:,}",
        f"active      {answer['params_active']:,}",
        "",
    ]
    rows = [
        [str(t["name"]), " × ".join(map(str, t["shape"])), f"× {t['count']:,}"]
        for t in answer["tensors"]
    ]
    notes = [f"note: {line}" for line in answer["assumptions"]]
    return "\n".join([*head, _columns(rows), *notes])


def _plain_estimate(answer: Mapping[str, Any]) -> str:
    job, model = answer["run"], answer["model"]
    kept = _amounts(answer["states"], "States per GPU", answer["states_bytes"])
    formula = _amounts(answer["one_line"], "One-line total", answer["one_line_bytes"])
    lines = [
        f"{model['name']}: {model['params_total']:,} parameters on {job['world_size']:,} GPU(s); "
        f"strategy {job['strategy']}, recipe {job['recipe']}, optimizer {job['optimizer']}",
        *_judged(answer),
        "",
        *("kept per GPU (largest rank)", kept, ""),
        *("one-line formula per GPU", formula, ""),
    ]
    phases = (answer["phases"] or {}).items()
    worst = [(f"{name}: {phase['instant']}", phase["bytes"]) for name, phase in phases]
    if host := answer["host_per_node_bytes"]:
        worst.append(("host memory per node", host))
    if worst:
        rows = [[name, number(amount), size(amount)] for name, amount in worst]
        told = "worst instant of each phase per GPU, and the host at its worst"
        lines += [told, _columns(rows), ""]
    if answer.get("curve"):
        lines += [CURVE, _curve(answer["curve"]), ""]
    return "\n".join([*lines, *(f"assumed: {line}" for line in answer["assumptions"])])


def _amounts(amounts: Mapping[str, int | None], name: str, total: int | None) -> str:
    named = [*((TITLES[line], amount) for line, amount in amounts.items()), (name, total)]
    return _columns([[title, number(amount), size(amount)] for title, amount in named])


def _judged(answer: Mapping[str, Any]) -> Iterator[str]:
    if peak := answer["peak"]:
        at = f"peak {size(peak['bytes'])} in {peak['phase']} ({peak['instant']})"
        yield f"{at}; a process needs {size(peak['low'])} to {size(peak['high'])}"
    if "verdict" in answer:
        said = answer["verdict"] or "not known"
        yield f"verdict: {UNMEASURED if said == 'tight' else said}"


def _curve(moments: Sequence[Mapping[str, Any]]) -> str:
    """The moments that no neighbour passes: when, how much, and the largest line of each."""
    sizes = [0, *(moment["bytes"] for moment in moments), 0]
    rows = []
    for at, moment in enumerate(moments, 1):
        if sizes[at - 1] < sizes[at] >= sizes[at + 1]:
            layer = "" if moment["layer"] is None else f", layer {moment['layer']}"
            most = max(moment["lines"], key=lambda line: line["bytes"])["line"]
            amount = moment["bytes"]
            rows.append([f"{moment['instant']}{layer}", number(amount), size(amount), most])
    return _columns(rows)


def _plain_fit(answer: Mapping[str, Any]) -> str:
    found = answer["rows"]
    heads = ["GPU", "GPUs", "verdict", "peak", "visible", "near miss", "one-line formula"]
    rows = [heads, *map(_fit_row, found)]
    if any("largest_seq_len" in row for row in found):
        rows[0] = [*heads, "sequence", "micro-batch"]
        for index, row in enumerate(found, 1):
            rows[index] += [number(row[f"largest_{name}"]) for name in ("seq_len", "micro_batch")]
    notes = {row["note"]: None for row in found if row["note"]}
    if any("tight" in (row["verdict"], (row["near_miss"] or row)["verdict"]) for row in found):
        notes[UNMEASURED] = None
    told = (f"note: {note}" for note in notes)
    return "\n".join([answer["assumptions"][0], "", _columns(rows), *told])


def _fit_row(row: Mapping[str, Any]) -> list[str]:
    miss, near = row["near_miss"], "–"
    if miss:
        near = f"{miss['num_gpus']}: {miss['verdict']}, {_least(miss['over_bytes'])}"
    count, by_formula = (
        "none" if row[name] is None else str(row[name])
        for name in ("num_gpus", "num_gpus_one_line")
    )
    said = [count, row["verdict"]] if row["verdict"] else ["–", "–"]
    sizes = (size(row["peak_bytes"]), size(row["visible_bytes"]))
    return [row["gpu"], *said, *sizes, near, by_formula]


def _least(over: int) -> str:
    return f"{size(over)} too much" if over > 0 else f"{size(-over)} left at best"


def _plain_communication(answer: Mapping[str, Any]) -> str:
    job, found = answer["run"], answer["collectives"]
    parts = [
        [f"{c['collective']} of {c['what']}", f"× {c['times']:,}", number(c["bytes"])]
        for c in found
    ]
    parts.append(["Sent per GPU and optimizer step", "", number(answer["bytes_per_step"])])
    rows = [["Link", "at least", "takes", "computing", "computes, overlapped", "break-even tokens"]]
    for row in answer["links"]:
        share = 100 * row["utilisation"] / answer["mfu_percent"]
        seconds = (f"{row[key]:.2f} s" for key in ("seconds", "compute_seconds"))
        tokens = number(row["break_even_tokens"])
        rows.append([row["title"], size(row["bytes"]), *seconds, f"{100 * share:.1f} %", tokens])
    return "\n".join(
        [
            f"{answer['model']} on {job['world_size']:,} × {answer['gpu']}; "
            f"strategy {job['strategy']}, {job['accumulation']:,} micro-step(s) of "
            f"{job['seq_len'] * job['micro_batch']:,} tokens",
            "",
            _columns(parts),
            "",
            _columns(rows),
            "",
            f"computing takes {answer['mfu_percent']} % of the card's dense bf16 peak; "
            "links without latency",
        ]
    )


def _plain_oom(answer: Mapping[str, Any]) -> str:
    names = ("requested", "capacity", "free", "allocated", "reserved")
    known = {name: answer[f"{name}_bytes"] for name in names}
    figures = [[name, *_both(amount)] for name, amount in known.items() if amount is not None]
    lines = [_columns(figures)] if figures else []
    for row in answer["candidates"]:
        said = "exactly" if row["exact"] else f"off by {row['off_by']:+,}"
        lever = f"; moved by {row['lever']}" if row["lever"] else ""
        lines += ["", f"{row['line']}: {number(row['bytes'])} bytes, {said}"]
        lines.append(f"  in {row['phase']}{lever}")
    if figures and answer["notes"]:
        lines.append("")
    return "\n".join([*lines, *(f"note: {line}" for line in answer["notes"])])


def _both(amount: int) -> tuple[str, str]:
    """As PyTorch prints it, and in decimal units."""
    units = ("GiB", "MiB"), ("GB", "MB")
    one, other = (size(amount, g if amount >= UNITS["GiB"] else m, 2) for g, m in units)
    return one, other


def _plain_claims(answer: Sequence[Mapping[str, Any]]) -> str:
    rows, ways = [["claim", "printed", "computed", "verdict"]], ["ledger"]
    for claim in answer:
        computed = "–"
        if claim["computed"] is not None:
            computed = f"{claim['computed']:,.6g} {claim['unit']}"
        rows.append([claim["id"], claim["printed"], computed, claim["verdict"]])
        ways.append(", ".join(claim["recipes"]) or claim["compared_with"] or "–")
    lines = zip(_columns(rows).splitlines(), ways, strict=True)
    return "\n".join(f"{line}  {way}" for line, way in lines)


def _plain_registry(answer: Sequence[Mapping[str, Any]]) -> str:
    keys = [key for key in ("slug", "name", "id") if key in answer[0]]
    return "\n".join("  ".join(str(row[key]) for key in keys[:2]) for row in answer)


_PLAIN: Mapping[str, Callable[[Any], str]] = {
    "params": _plain_params,
    "estimate": _plain_estimate,
    "config": lambda answer: str(answer["text"]).rstrip(),
    "fit": _plain_fit,
    "communication": _plain_communication,
    "oom": _plain_oom,
    "claims": _plain_claims,
}
