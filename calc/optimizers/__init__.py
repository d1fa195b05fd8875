"""Optimizers, a file per library: bytes of state, what a step allocates, what it refuses.

A new one is a record in `calc/data/optimizers.json`, whose `rule` names how its states are laid
out: a class in its library's file. Where none fits, that file gets one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from calc.optimizers import bitsandbytes, torch, torchao, transformers
from calc.optimizers.base import DTENSOR, FLAT, WHOLE, Optimizer, Piece, Pieces
from calc.optimizers.torch import is_muon
from calc.units import DTYPE_BYTES, named, records

__all__ = [
    "DTENSOR",
    "FLAT",
    "OPTIMIZERS",
    "WHOLE",
    "Optimizer",
    "Piece",
    "Pieces",
    "get_optimizer",
    "is_muon",
    "state_bytes",
    "step_temporaries",
    "step_word",
    "steps",
]

_RULES = {**torch.RULES, **bitsandbytes.RULES, **torchao.RULES, **transformers.RULES}


def _optimizer(record: dict[str, Any]) -> Optimizer:
    return _RULES[record["rule"]](**{**record, "states": tuple(record["states"])})


#: Every optimizer by name, in the order of `calc/data/optimizers.json`.
OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {optimizer.name: optimizer for optimizer in map(_optimizer, records("optimizers"))}
)


def get_optimizer(name: str) -> Optimizer:
    """The optimizer of that name; raises `InputError` with the nearest known one."""
    return named("optimizer", name, OPTIMIZERS)


def state_bytes(
    optimizer: Optimizer,
    shape: tuple[int, ...],
    state_dtype: str,
    *,
    kind: str = "linear",
) -> int:
    """Bytes of optimizer state for one tensor (or the local shard) of `shape`.

    Formula, n = elements: plain states·n·itemsize; bitsandbytes 8-bit: states·(n +
    4·⌈n/256⌉), and 4·states·n below 4,096 elements; bitsandbytes 32-bit 4·states·n; torchao 8-bit:
    2·(n + 4n/256 + 1,024) where n ≥ 4,096 is a multiple of 256, torchao 4-bit:
    2·(n/2 + 4n/128 + 64) where n ≥ 4,096 is a multiple of 128, else two states in the parameter's
    dtype; Adafactor: rows + columns of a matrix, n of a vector (Transformers' in fp32); Muon: one
    state for a matrix, AdamW's two for the rest.
    Source: the libraries' own state tensors, measured (Verification page).

    >>> state_bytes(get_optimizer("adamw"), (4096, 4096), "fp32")
    134217728
    >>> state_bytes(get_optimizer("adamw8bit"), (4096, 4096), "bf16")
    34078720
    """
    if prod(shape) == 0:
        return 0
    return optimizer.state_bytes(shape, DTYPE_BYTES[state_dtype], kind)


def steps(optimizer: Optimizer) -> tuple[str, ...]:
    """The words of `--step` that it knows; none where its library has one way to take a step.

    >>> [sorted(steps(get_optimizer(name))) for name in ("adamw", "adafactor", "lion")]
    [['for-loop', 'foreach', 'fused'], ['for-loop', 'foreach'], []]
    """
    return optimizer.steps()


def step_word(optimizer: Optimizer, step: str) -> str:
    """How the step is taken where `step` is asked for: its library's default if it has no such way.

    >>> [step_word(get_optimizer(name), "fused") for name in ("adamw", "adafactor", "lion")]
    ['fused', 'for-loop', '']
    """
    known = steps(optimizer)
    if not known or step in known:
        return step if known else ""
    return known[-1]


def step_temporaries(
    optimizer: Optimizer,
    step: str,
    itemsize: int,
    pieces: Pieces,
    ranks: int = 1,
) -> int:
    """Bytes that a step allocates at its worst beside weights, gradients and states.

    `pieces` are what one rank hands the optimizer, in the order of the model, `itemsize` bytes of
    one element of them. `ranks` is over how many ranks their dimension 0 is divided as DTensors (1
    where they are not): Muon gathers matrices.
    Formula and source: in the file of the optimizer's library. A second step, when states exist.

    >>> pieces = [((128256, 4096), "embedding", 1), ((14336, 4096), "linear", 64)]
    >>> for name in ("adamw", "adafactor-trainer", "adamw8bit", "muon"):
    ...     step_temporaries(get_optimizer(name), "for-loop", 2, pieces)
    2101346304
    8405914624
    0
    2101346304
    """
    held = [piece for piece in pieces if prod(piece[0])]
    return optimizer.step_temporaries(step_word(optimizer, step), itemsize, held, ranks)
