"""What an optimizer is here: a record, and what its library does with the tensors it is handed.

A class per layout of the states, in the file of its library; the record's `rule` names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from calc.precision import Recipe
from calc.units import DTYPE_BYTES

Shape = tuple[int, ...]
#: What a rank hands its optimizer: a shape, its kind, and how many alike.
Piece = tuple[Shape, str, int]
Pieces = Sequence[Piece]

#: What a stack hands its optimizer: ordinary tensors, DTensors, or flat slices of several tensors.
WHOLE, DTENSOR, FLAT = "whole", "dtensor", "flat"
#: How `torch.optim` may take a step. Elsewhere there is one way, which takes no word.
FUSED, FOREACH, FOR_LOOP = "fused", "foreach", "for-loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer by the state that it keeps for each tensor.

    `states` names the state tensors of one parameter, `rule` the layout in which they are kept.
    `nominal` is the bytes per parameter that people use on paper for quantised states (None: the
    number of states × their dtype), `once_bytes` what exists once (code books). `paged` states
    may live in host memory.
    """

    name: str
    states: tuple[str, ...]
    rule: str
    nominal: int | None
    once_bytes: int
    paged: bool
    library: str
    note: str
    source: str

    def nominal_bytes(self, state_dtype: str) -> int:
        """Bytes of state per trainable parameter on paper, the figure of the one-line formula.

        >>> from calc.optimizers import get_optimizer
        >>> [get_optimizer(name).nominal_bytes("fp32") for name in ("adamw", "adamw8bit")]
        [8, 2]
        """
        if self.nominal is not None:
            return self.nominal
        return len(self.states) * DTYPE_BYTES[state_dtype]

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Bytes of state of one tensor with at least one element; `itemsize` is that of the states.

        Formula: states·n·itemsize, n = elements.
        """
        return len(self.states) * prod(shape) * itemsize

    def step_temporaries(self, step: str, itemsize: int, pieces: Pieces, ranks: int) -> int:
        """Bytes that a later step allocates at its worst beside weights, gradients and states.

        `itemsize` is that of the weights as they are handed over. `ranks` divide each tensor's
        dimension 0 as DTensors; 1 where the pieces are ordinary tensors.
        """
        return 0

    def steps(self) -> tuple[str, ...]:
        """The words of `--step` that the optimizer knows, the default of its library last."""
        return ()

    def refusal(self, shards: str, recipe: Recipe) -> str:
        """Why it fails on such shards of what the recipe keeps; empty where it runs."""
        return ""


def in_order(pieces: Pieces) -> Iterator[tuple[Shape, str]]:
    """Each tensor's shape and kind in the order of the step, at most two layers of a kind.

    Pieces with one count are one kind of layer; what a third layer does, the second has done.

    >>> [shape for shape, _ in in_order([((9, 4), "embedding", 1), ((4, 4), "linear", 5)])]
    [(9, 4), (4, 4), (4, 4)]
    """
    for count, layer in groupby(pieces, key=lambda piece: piece[2]):
        yield from [(shape, kind) for shape, kind, _ in layer] * min(count, 2)


def keeps_dtype(optimizer: Optimizer, recipe: Recipe) -> str:
    """Why it cannot keep the recipe's states, where these are wider than what it is handed."""
    if DTYPE_BYTES[recipe.state_dtype] == recipe.stepped_itemsize:
        return ""
    return f"{optimizer.library} keeps its states in the parameters' dtype"


def fails_on_dtensor(optimizer: Optimizer, shards: str) -> str:
    """The reason of an optimizer that takes ordinary tensors alone."""
    return f"{optimizer.library} fails on DTensor shards" if shards == DTENSOR else ""
