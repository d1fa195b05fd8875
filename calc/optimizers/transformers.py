"""Transformers 5.24.0: its own Adafactor, and bitsandbytes' AdamW8bit as the Trainer sets it up.

The Trainer leaves the states of every `nn.Embedding` in 32 bits (`adamw_bnb_8bit`). Its Adafactor
works in fp32 whatever the weights are: of 16-bit ones it copies the weight and the gradient first,
a tensor at a time.
Source: `Adafactor.step` in `optimization.py`, each step's storages measured
(`tests/oracle/step_temporaries.py`); `Trainer.create_optimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from calc.optimizers.base import Optimizer, Pieces, Shape, fails_on_dtensor, in_order
from calc.optimizers.bitsandbytes import Blockwise, InFloat32
from calc.optimizers.torch import factored
from calc.precision import Recipe


class BlockwiseButEmbeddings(Blockwise):
    """`adamw_bnb_8bit`: blocks, but for embeddings."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: 4·states·n of an embedding, bitsandbytes' own elsewhere."""
        of = InFloat32 if kind == "embedding" else Blockwise
        return of.state_bytes(self, shape, itemsize, kind)


class Adafactor(Optimizer):
    """`adafactor`: rows and columns of second moments in fp32."""

    __slots__ = ()

    def state_bytes(self, shape: Shape, itemsize: int, kind: str) -> int:
        """Formula: 4·(rows + columns) of each matrix, 4n of a vector."""
        return 4 * factored(shape)

    def step_temporaries(self, step: str, itemsize: int, pieces: Pieces, ranks: int) -> int:
        """Two fp32 copies of one tensor, four where the weights are 16-bit.

        Formula: 8n, or 16n, and the larger of what is beside it: 4m of the update before, of m
        elements, while the gradient is squared; 4·(rows + columns) while an update is made of them.

        >>> from calc.optimizers import get_optimizer
        >>> pieces = [((4096, 14336), "linear", 32)]
        >>> adafactor = get_optimizer("adafactor-trainer")
        >>> [adafactor.step_temporaries("", itemsize, pieces, ranks=1) for itemsize in (4, 2)]
        [704643072, 1174405120]
        """
        copies = 8 if itemsize == 4 else 16
        before = peak = 0
        for shape, _ in in_order(pieces):
            numel = prod(shape)
            means = 4 * factored(shape) if len(shape) > 1 else 0
            peak = max(peak, copies * numel + max(before, means))
            before = 4 * numel
        return peak

    def refusal(self, shards: str, recipe: Recipe) -> str:
        """It multiplies a DTensor with plain tensors."""
        return fails_on_dtensor(self, shards)


#: The class of each `rule` that a record may name.
RULES: Mapping[str, type[Optimizer]] = {
    "bnb8-trainer": BlockwiseButEmbeddings,
    "adafactor-fp32": Adafactor,
}
