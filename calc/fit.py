"""Does it fit, on what and on how many: the climb over GPU counts.

The rule here is text B's: the first count whose one-line total is at most 95 % of the label.
That the 95 % are of the label, not of what a process sees, is our reading of its sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from calc.estimate import Run, one_line
from calc.gpus import Gpu, known
from calc.units import InputError

#: Text B: "fits within 95 %".
SHARE_PERCENT = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One card's answer, bytes per GPU: what the climb found and against which limits.

    `num_gpus_one_line` is None where no count that the card offers fits; `one_line_bytes` is then
    that of the largest count tried.
    """

    gpu: Gpu
    num_gpus_one_line: int | None
    tried: int
    one_line_bytes: int
    label_limit_bytes: int
    note: str


def label_limit(gpu: Gpu) -> int:
    """95 % of the card's label in bytes, text B's limit.

    >>> from calc.gpus import get
    >>> label_limit(get("h100-sxm5-80gb"))
    76000000000
    """
    return gpu.label_bytes * SHARE_PERCENT // 100


def climb(run: Run, gpu: Gpu) -> Row:
    """The first GPU count of this card on which the one-line total of `run` fits.

    `single` is tried on one GPU and `ddp` on the run's own count, since neither divides anything;
    the ZeRO stages and FSDP climb `Gpu.counts`. A card without counts (announced, TPU) has none.

    >>> from calc.gpus import get
    >>> from calc.models import load
    >>> climb(Run(model=load("llama-3.3-70b"), world_size=8), get("b200-sxm")).num_gpus_one_line
    8
    """
    counts: tuple[int, ...] = gpu.counts()
    note = ""
    if run.strategy in ("single", "ddp"):
        too_many = gpu.topology == "single-node" and run.world_size > (gpu.node_gpus or 0)
        counts = () if too_many or not counts else (run.world_size,)
        note = f"one node holds {gpu.node_gpus}" if too_many else ""
    limit, need, tried = label_limit(gpu), 0, 0
    for tried in counts:
        need = one_line(replace(run, world_size=tried)).total or 0
        if need <= limit:
            return Row(
                gpu=gpu,
                num_gpus_one_line=tried,
                tried=tried,
                one_line_bytes=need,
                label_limit_bytes=limit,
                note=note,
            )
    return Row(
        gpu=gpu,
        num_gpus_one_line=None,
        tried=tried,
        one_line_bytes=need,
        label_limit_bytes=limit,
        note=note or ("not offered as a GPU here" if not counts else ""),
    )


def fit(run: Run, gpus: Iterable[Gpu] = ()) -> tuple[Row, ...]:
    """The climb for each of `gpus`, by default every known GPU that can be bought.

    A bare count has no activations and cannot be fitted by the one-line total: `InputError`.
    """
    if not run.model.has_architecture:
        raise InputError(
            f"fit needs a model with an architecture, not the bare count {run.model.name!r}: "
            "give a known name or a config.json"
        )
    chosen = tuple(gpus) or tuple(gpu for gpu in known().values() if gpu.counts())
    return tuple(climb(run, gpu) for gpu in chosen)
