"""The memory curve of a step as inline SVG: what is held layer by layer, by kind of line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from calc.curve import Moment, curve, timeline
from calc.estimate import estimate
from calc.fit import verdict
from calc.gpus import Gpu
from calc.job import Job
from calc.tables.peak import INSTANTS, STATES, WORK
from calc.tables.text import TITLES, short, size

#: The kinds of lines from the bottom up: what is there all the time first.
SERIES = ("weights", "master", "optimizer", "gradients", "activations", "transient")
#: The parts of a step, each with its instants.
PARTS: Mapping[str, Sequence[str]] = {
    "forward": ("fwd_layers",),
    "loss": ("head_fwd", "head_bwd"),
    "backward": ("layers_bwd", "root_bwd"),
    "step": ("step",),
}
#: Coordinates of the drawing, which is stretched to its frame; the text keeps its size.
_WIDE, _HIGH = 1000, 1000
_HEIGHT, _TOP = 220, 44


def curve_figure(job: Job, gpu: Gpu, title: str) -> str:
    """The curve of one step against one card, with the peak and its instant named, and a text
    alternative.
    """
    return _figure(job, gpu, title, _most([job], gpu))


def before_and_after(before: Job, after: Job, gpu: Gpu, change: str) -> str:
    """Two curves on one scale: a job, and the same job with one `change`."""
    most = _most([before, after], gpu)
    pair = (
        _figure(before, gpu, f"Without {change}", most),
        _figure(after, gpu, f"With {change}", most),
    )
    return f'<div class="fig-pair">{"".join(pair)}</div>'


def _moments(job: Job) -> tuple[Moment, ...]:
    found = timeline(job)
    return curve(found) if found else ()


def _most(jobs: Iterable[Job], gpu: Gpu) -> int:
    peaks = [moment.bytes for job in jobs for moment in _moments(job)]
    return max([*peaks, gpu.visible_bytes or gpu.label_bytes])


def _figure(job: Job, gpu: Gpu, title: str, most: int) -> str:
    moments, limit = _moments(job), gpu.visible_bytes or gpu.label_bytes
    worst = max(moments, key=lambda moment: moment.bytes)
    ident = "fig-" + "".join(c if c.isalnum() else "-" for c in title.lower())
    said = f"peak {size(worst.bytes)}: {told(worst)}"
    description = _description(job, moments, worst, gpu)
    at, tall = _across(moments.index(worst), len(moments)), _HEIGHT + _TOP + 22
    top = _TOP + _HEIGHT - _HEIGHT * worst.bytes // most
    return "".join(
        (
            f'<figure class="fig"><svg class="fig-curve" role="img" width="100%" height="{tall}" ',
            f'aria-labelledby="{ident}-t {ident}-d"><title id="{ident}-t">{escape(title)}</title>',
            f'<desc id="{ident}-d">{escape(description)}</desc>',
            f'<text class="fig-label" x="0" y="14">{escape(title)}</text>',
            f'<text class="fig-label" x="0" y="32">{escape(said)}</text>',
            f'<svg x="0" y="{_TOP}" width="100%" height="{_HEIGHT}" viewBox="0 0 {_WIDE} {_HIGH}" ',
            f'preserveAspectRatio="none">{_areas(moments, most)}</svg>',
            _limit(limit, most),
            f'<circle class="fig-peak" cx="{at:.1f}%" cy="{top}" r="4"/>',
            *_parts(moments),
            f"</svg>{_legend(moments, limit, gpu)}</figure>",
        )
    )


def told(moment: Moment) -> str:
    """When a moment is, in words."""
    word = INSTANTS[moment.instant]
    return word if moment.layer is None else f"{word} (layer {moment.layer})"


def _description(job: Job, moments: Sequence[Moment], worst: Moment, gpu: Gpu) -> str:
    """The curve in words: the worst moment of each part, the peak, and what the card leaves."""
    parts = []
    for part, instants in PARTS.items():
        inside = [moment.bytes for moment in moments if moment.instant in instants]
        if inside:
            parts.append(f"{part} up to {size(max(inside))}")
    word = verdict(estimate(job), gpu)
    end = f"; on {short(gpu.name)}: {word}" if word else ""
    peak = f"The peak is {size(worst.bytes)}: {told(worst)}{end}."
    return f"Allocated on one GPU through a step: {', '.join(parts)}. {peak}"


def series(moment: Moment) -> dict[str, int]:
    """What a moment holds by kind of line, in bytes."""
    found = dict.fromkeys(SERIES, 0)
    for line, num_bytes in moment.held.items():
        other = "activations" if line in WORK else "transient"
        found[line if line in STATES else other] += num_bytes
    return found


def _across(index: int, count: int) -> float:
    """The place of a moment from left to right, in per cent."""
    return 100 * (2 * index + 1) / (2 * count)


def _areas(moments: Sequence[Moment], most: int) -> str:
    """One step-shaped area per kind of line, each on top of those before."""
    floors, out, count = [0] * len(moments), [], len(moments)
    held = [series(moment) for moment in moments]
    for name in SERIES:
        tops = [floor + each[name] for floor, each in zip(floors, held, strict=True)]
        if tops != floors:
            path = f"M{_steps(tops, most, count)}L{_steps(floors, most, count, back=True)}Z"
            title = f"<title>{escape(TITLES[name])}</title>"
            out.append(f'<path class="series-{name}" d="{path}">{title}</path>')
        floors = tops
    return "".join(out)


def _steps(values: Sequence[int], most: int, count: int, *, back: bool = False) -> str:
    """Corners of a staircase, left to right or back; equal neighbours are one stair."""
    corners: list[tuple[int, int]] = []
    for index, value in enumerate(values):
        height = _HIGH - _HIGH * value // most
        left, right = _WIDE * index // count, _WIDE * (index + 1) // count
        if corners and corners[-1][1] == height:
            corners[-1] = (right, height)
        else:
            corners += [(left, height), (right, height)]
    return " ".join(f"{x} {y}" for x, y in (reversed(corners) if back else corners))


def _limit(limit: int, most: int) -> str:
    height = _TOP + _HEIGHT - _HEIGHT * limit // most
    return f'<line class="fig-limit" x1="0" x2="100%" y1="{height}" y2="{height}"/>'


def _parts(moments: Sequence[Moment]) -> Iterable[str]:
    """The names of the parts under the curve, each where it begins, and a line between."""
    seen, bottom = set[str](), _TOP + _HEIGHT
    yield f'<line class="fig-axis" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>'
    for index, moment in enumerate(moments):
        part = next(name for name, instants in PARTS.items() if moment.instant in instants)
        if part in seen:
            continue
        seen.add(part)
        left, low = 100 * index / len(moments), bottom + 4
        yield f'<line class="fig-axis" x1="{left:.1f}%" x2="{left:.1f}%" y1="{_TOP}" y2="{low}"/>'
        if part in ("forward", "backward"):  # loss and step are too narrow for theirs
            yield f'<text class="fig-soft" x="{left:.1f}%" dx="4" y="{bottom + 16}">{part}</text>'


def _legend(moments: Sequence[Moment], limit: int, gpu: Gpu) -> str:
    used = [name for name in SERIES if any(series(moment)[name] for moment in moments)]
    keys = [(f"series-{name}", TITLES[name]) for name in used]
    keys.append(("fig-limit", f"{short(gpu.name)} shows a process · {size(limit, 'GB', 2)}"))
    items = (f'<li><span class="fig-key {key}"></span>{escape(said)}</li>' for key, said in keys)
    return f'<ul class="fig-legend">{"".join(items)}</ul>'
