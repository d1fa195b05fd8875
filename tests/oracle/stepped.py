"""The steps whose temporaries are measured, and what `calc` says of each; needs no framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from calc.optimizers import Pieces, get_optimizer, step_temporaries
from calc.stacks.shards import rows

DTYPES = {"fp32": 4, "bf16": 2}
#: What is handed to the optimizer, in the order of the model: shapes, kinds, and how many layers.
LISTS: dict[str, Pieces] = {
    "matrix": [((96, 64), "linear", 1)],
    "wide": [((64, 160), "linear", 1)],
    "model": [
        ((512, 64), "embedding", 1),
        *((shape, "linear", 3) for shape in ((64, 64), (16, 64), (16, 64), (64, 64))),
        *((shape, "linear", 3) for shape in ((192, 64), (192, 64), (64, 192))),
        ((64,), "norm", 3),
        ((64,), "norm", 3),
        ((64,), "norm", 1),
        ((512, 64), "linear", 1),
    ],
    "narrow": [
        ((200, 64), "embedding", 1),
        *((shape, "linear", 3) for shape in ((64, 64), (256, 64), (256, 64), (64, 256))),
        ((64,), "norm", 1),
    ],
    "experts": [
        ((4, 64, 48), "expert", 2),
        ((4, 48, 64), "expert", 2),
        ((4, 64), "router", 2),
        ((64,), "norm", 2),
    ],
    "vectors": [
        ((4096,), "flat", 1),
        ((8,), "bias", 1),
        ((300,), "norm", 1),
        ((128, 96), "linear", 1),
        ((4, 4), "linear", 1),
    ],
    # The worst instant is that of the second, beside what the first left.
    "rows": [((1000, 4), "linear", 1), ((4, 4), "linear", 1)],
    "columns": [((4, 1000), "linear", 1), ((4, 16), "linear", 1)],
    "norms": [((300,), "norm", 1), ((4,), "norm", 1)],
}
ALL_THREE = ("adamw", "adamw-amsgrad", "sgd", "sgd-momentum", "muon")
#: The words that each optimizer takes; one way has none.
STEPS = {
    **dict.fromkeys(ALL_THREE, ("fused", "foreach", "for-loop")),
    "adafactor": ("foreach", "for-loop"),
    "adafactor-trainer": ("",),
}
#: Matrices that DTensors divide: tall, square and wide.
DIVIDED = ((4096, 64), (256, 128), (80, 64), (128, 128), (64, 72), (128, 1024))
RANKS = (2, 8)
#: Tensors that torchao compiles a step for; the last is too small to be quantised.
COMPILED = ((512, 512), (64, 192), (1000,))


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One step: of which optimizer, taken how, of parameters of which dtype, and of which tensors.

    `group` is `measured`, `divided` (DTensors of `ranks` ranks) or `compiled`.
    """

    group: str
    optimizer: str
    step: str
    dtype: str
    tensors: str
    ranks: int = 1

    def __str__(self) -> str:
        words = (self.optimizer, self.step, self.dtype, self.tensors)
        divided = f" over {self.ranks}" if self.ranks > 1 else ""
        return " ".join(word for word in words if word) + divided

    @property
    def pieces(self) -> Pieces:
        """The whole tensors."""
        if self.tensors in LISTS:
            return LISTS[self.tensors]
        shape = tuple(int(size) for size in self.tensors.split("x"))
        return [(shape, "linear" if len(shape) > 1 else "norm", 1)]


def cases() -> Iterator[Step]:
    """Every step that is recorded, a group after the other."""
    for name, words in STEPS.items():
        for word in words:
            for dtype in DTYPES:
                yield from (Step("measured", name, word, dtype, tensors) for tensors in LISTS)
    for ranks in RANKS:
        for shape in DIVIDED:
            tensors = "x".join(map(str, shape))
            yield from (Step("divided", "muon", "", dtype, tensors, ranks) for dtype in DTYPES)
    for name in ("adamw8bit-torchao", "adamw4bit-torchao"):
        for shape in COMPILED:
            tensors = "x".join(map(str, shape))
            yield from (Step("compiled", name, "", dtype, tensors) for dtype in DTYPES)


def predicted(case: Step) -> int:
    """Bytes of temporaries on the first rank."""
    handed = [(rows(shape, case.ranks, 0), kind, count) for shape, kind, count in case.pieces]
    optimizer, itemsize = get_optimizer(case.optimizer), DTYPES[case.dtype]
    return step_temporaries(optimizer, case.step, itemsize, handed, case.ranks)


def elements(case: Step) -> int:
    """Elements of all tensors."""
    return sum(prod(shape) * count for shape, _, count in case.pieces)
