"""torch.optim of PyTorch 2.13.0: AdamW, SGD, Adafactor and Muon.

States are of the parameters' own shape and dtype, but for Adafactor's and Muon's. A step is taken
by one fused kernel, by `foreach` kernels over all tensors at once, or tensor by tensor (for-loop).
What each leaves in local variables until the next tensor, it allocates beside that one.
Source: `torch/optim/adam.py`, `sgd.py`, `_adafactor.py` and `_muon.py`, each step's storages
measured (`tests/oracle/step_temporaries.py`). One number a tensor (norms, step counts) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from calc.optimizers.base import (
    FLAT,
    FOR_LOOP,
    FOREACH,
    FUSED,
    Optimizer,
    Pieces,
    Shape,
    fails_on_dtensor,
    in_order,
    keeps_dtype,
)
from calc.precision import Recipe


class ElementWise(Optimizer):
    """AdamW, SGD: each state has its parameter's shape and dtype."""

    __slots__ = ()

    def steps(self) -> tuple[str, ...]:
        """All three; on CUDA the default is foreach."""
        return FUSED, FOR_LOOP, FOREACH

    def step_temporaries(self, step: str, itemsize: int, pieces: Pieces, ranks: int) -> int:
        """AdamW makes the root of its second moment, SGD nothing."""
        if "exp_avg_sq" not in self.states:
            return 0
        return adamw_temporaries(step, itemsize, pieces)

    def refusal(self, shards: str, recipe: Recipe) -> str:
        """AdamW with fp32 states beside 16-bit weights is bitsandbytes' AdamW in 32 bits."""
        if self.name == "adamw" or not self.states:
            return ""
        return keeps_dtype(self, recipe)


class Adafactor(Optimizer):
    """Adafactor: a row and a column of second moments of a matrix, n of a vector."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: itemsize·(rows + columns) of each matrix, itemsize·n of a vector."""
        return itemsize * factored(shape)

    def steps(self) -> tuple[str, ...]:
        """There is no fused kernel, and foreach only where it is asked for."""
        return FOREACH, FOR_LOOP

    def step_temporaries(self, step: str, itemsize: int, pieces: Pieces, ranks: int) -> int:
        """Estimates of the second moment: of all tensors at once, or of one and the one before."""
        if step == FOREACH:
            return itemsize * _adafactor_foreach(pieces)
        return itemsize * _adafactor_for_loop(pieces)

    def refusal(self, shards: str, recipe: Recipe) -> str:
        """Its power of a norm is no DTensor operation."""
        return keeps_dtype(self, recipe) or fails_on_dtensor(self, shards)


class Muon(Optimizer):
    """Muon on matrices, with AdamW as a second optimizer on everything else."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: itemsize·n of a matrix, 2·itemsize·n of the rest."""
        return (1 if is_muon(shape, kind) else 2) * prod(shape) * itemsize

    def steps(self) -> tuple[str, ...]:
        """Muon itself has one way; the words are those of AdamW on the rest."""
        return FUSED, FOR_LOOP, FOREACH

    def step_temporaries(self, step: str, itemsize: int, pieces: Pieces, ranks: int) -> int:
        """One matrix at a time, then AdamW's own step: the larger of the two."""
        matrices = [piece for piece in pieces if is_muon(piece[0], piece[1])]
        rest = [piece for piece in pieces if not is_muon(piece[0], piece[1])]
        each = [_newton_schulz(shape, itemsize, ranks) for shape, _, _ in matrices]
        return max(*each, 0, adamw_temporaries(step, itemsize, rest))

    def refusal(self, shards: str, recipe: Recipe) -> str:
        """It wants matrices."""
        flat = f"{self.library} fails on flat shards, which are no matrices"
        return keeps_dtype(self, recipe) or (flat if shards == FLAT else "")


#: The class of each `rule` that a record may name.
RULES: Mapping[str, type[Optimizer]] = {
    "plain": ElementWise,
    "adafactor": Adafactor,
    "muon": Muon,
}


def is_muon(shape: Shape, kind: str) -> bool:
    """Whether Muon takes the tensor: a matrix that is no embedding; AdamW takes the rest."""
    return len(shape) == 2 and kind != "embedding"


def factored(shape: Shape) -> int:
    """Elements of Adafactor's state: rows and columns of each matrix, all of a vector.

    >>> factored((4096, 14336)), factored((8, 4096, 14336)), factored((4096,))
    (18432, 147456, 4096)
    """
    numel = prod(shape)
    if len(shape) < 2:
        return numel
    return numel // shape[-1] + numel // shape[-2]


def adamw_temporaries(step: str, itemsize: int, pieces: Pieces) -> int:
    """Bytes that AdamW allocates: the root of the second moment, and with for-loop its quotient.

    Formula: fused 0; foreach itemsize·Σn; for-loop itemsize·max(2n + m), where the quotient of the
    tensor before, of m elements, is still held.
    Source: `_multi_tensor_adam` and `_single_tensor_adam`, with and without amsgrad.

    >>> pieces = [((4096, 1024), "linear", 1), ((4096,), "norm", 1)]
    >>> [adamw_temporaries(step, 4, pieces) for step in ("fused", "foreach", "for-loop")]
    [0, 16793600, 33554432]
    """
    if step == FUSED:
        return 0
    if step == FOREACH:
        return itemsize * sum(prod(shape) * count for shape, _, count in pieces)
    before = peak = 0
    for shape, _ in in_order(pieces):
        numel = prod(shape)
        peak = max(peak, before + 2 * numel)
        before = numel
    return itemsize * peak


def _adafactor_foreach(pieces: Pieces) -> int:
    """Elements of all estimates: those of the first group, matrices or vectors, wait for the other.

    A mean of each matrix stands beside the estimates of the matrices.
    """
    matrices = means = vectors = 0
    for shape, _, count in pieces:
        if len(shape) < 2:
            vectors += prod(shape) * count
            continue
        matrices += prod(shape) * count
        means += prod(shape[:-2]) * count
    if pieces and len(pieces[0][0]) < 2:
        return vectors + matrices + means
    return matrices + max(means, vectors)


def _adafactor_for_loop(pieces: Pieces) -> int:
    """Elements at the worst tensor: its means and estimate, and what the one before left behind.

    Left are the last update, the means of the last matrix, and the square of the last vector.
    """
    rows = columns = square = update = peak = 0
    for shape, _ in in_order(pieces):
        numel = prod(shape)
        held = square + update
        if len(shape) < 2:
            peak = max(peak, rows + columns + held + numel, rows + columns + update + 2 * numel)
            square = update = numel
            continue
        new_rows, new_columns = numel // shape[-1], numel // shape[-2]
        means = new_rows + new_columns
        estimate = numel + prod(shape[:-2])
        peak = max(peak, held + rows + columns + new_rows, held + columns + means)
        peak = max(peak, held + means + estimate)
        rows, columns, update = new_rows, new_columns, numel
    return peak


def _newton_schulz(shape: Shape, itemsize: int, ranks: int) -> int:
    """Bytes at the worst instant of one matrix of n elements whose smaller side is k.

    Formula: itemsize·n for the update, 4n for the old and the new orthogonal matrix, 4k² for two
    Gram matrices, all bf16 but the update. On DTensors, with N ranks on dimension 0: a tall matrix
    keeps them divided but for the Gram matrices, which are summed: (itemsize + 2)·n/N +
    max(8k², 6k² + 2n/N); one at least as wide as tall is gathered and put together again:
    (itemsize + 4)·n/N + 4n + 4k²/N. Where N does not divide the rows, that is a bound.
    Source: `_zeropower_via_newtonschulz`; DTensors of 2, 4 and 8 fake ranks.

    >>> _newton_schulz((4096, 14336), 4, ranks=1), _newton_schulz((512, 14336), 4, ranks=8)
    (536870912, 301989888)
    """
    rows, columns = shape[0] * ranks, shape[1]
    small, numel, local = min(rows, columns) ** 2, rows * columns, prod(shape)
    if ranks == 1:
        return (itemsize + 4) * numel + 4 * small
    if rows > columns:
        return (itemsize + 2) * local + max(8 * small, 6 * small + 2 * local)
    return (itemsize + 4) * local + 4 * numel + 4 * small // ranks
