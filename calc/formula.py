"""The one-line formula, which people can do on paper: nominal bytes per parameter, for good."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from calc.job import Job
from calc.models import Model
from calc.optimizers import get_optimizer
from calc.precision import get_recipe
from calc.units import DTYPE_BYTES, ceil_div

#: The per-GPU overhead of the one-line formula: 1.5 GB (source: text-b).
OVERHEAD_BYTES = 1_500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLine:
    """The one-line formula, each term its own line, in bytes per GPU.

    `activations` is None for a bare count, which has no architecture.
    """

    weights: int
    master: int
    gradients: int
    optimizer: int
    bucket: int
    activations: int | None
    overhead: int

    @property
    def total(self) -> int | None:
        """Sum of the lines in bytes, None where one of them is unknown."""
        if self.activations is None:
            return None
        total: int = sum(getattr(self, field.name) for field in fields(self))
        return total


def one_line(job: Job) -> OneLine:
    """The formula of text B in bytes per GPU, nominal bytes per parameter.

    Formula: weights·(1/N from ZeRO-3) + master·(1/N from ZeRO-1) + gradients·(1/N from ZeRO-2) +
    optimizer·(1/N from ZeRO-1) + 2·layers·tokens·hidden + 4·tokens·vocab + 1.5 GB; DDP adds one
    live copy of the gradients. Frozen parameters have weights only.
    Source: text-b, the activation term is ours. Each line is rounded up to a whole byte.

    >>> from calc.models import load
    >>> one_line(Job.of(model=load("llama-3.3-70b"), world_size=8)).total
    146342440704
    """
    model = max((part for _, part in job.parts()), key=lambda part: part.num_params)
    return replace(paper_states(job, model), activations=paper_activations(job, model))


def paper_states(job: Job, model: Model) -> OneLine:
    """All lines but the activations, which alone depend on the batch."""
    recipe, stack = get_recipe(job.recipe), job.stack
    trainable, frozen = model.num_trainable, model.num_params - model.num_trainable
    # In halves of a byte: NF4 on paper is half a byte; what its scales add is in the ledger.
    parts = [(copy.line, 2 * copy.itemsize * trainable, copy.stage) for copy in recipe.copies]
    base_halves = 2 * DTYPE_BYTES[job.base_dtype] if job.base_dtype in DTYPE_BYTES else 1
    parts.append(("weights", frozen * base_halves, 3))
    nominal = get_optimizer(job.optimizer).nominal_bytes(recipe.state_dtype)
    parts.append(("optimizer", 2 * nominal * trainable, 1))
    lines = dict.fromkeys(("weights", "master", "gradients", "optimizer"), 0)
    for line, halves, stage in parts:
        ranks = stack.ranks if stack.stage >= stage else 1
        if line not in stack.offloaded:
            lines[line] += ceil_div(halves, 2 * ranks)
    bucket = trainable * recipe.itemsize("gradients") if stack.live_bucket else 0
    return OneLine(**lines, bucket=bucket, activations=None, overhead=OVERHEAD_BYTES)


def paper_activations(job: Job, model: Model) -> int | None:
    """2·layers·tokens·hidden + 4·tokens·vocab bytes; None for a bare count."""
    if not model.has_architecture:
        return None
    hidden, vocab = int(str(model.config["hidden_size"])), int(str(model.config["vocab_size"]))
    return 2 * model.num_layers * job.tokens * hidden + 4 * job.tokens * vocab
