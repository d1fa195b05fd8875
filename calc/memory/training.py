"""What trains on one rank: the model's slice, its precision and its optimizer, as a stack is handed
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from calc.models import Model, Tensor
from calc.optimizers import Optimizer
from calc.precision import Recipe, compute_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A slice of a model with what trains it; `recipe` is the one that the stack holds through its
    step.

    `ep` ranks share the experts, `accumulation` micro-batches make a step, and with `lora` the
    model is frozen in `base_dtype` and its adapters train. `turn` says which of the step's
    micro-batches is looked at: first, middle or last.
    """

    model: Model
    recipe: Recipe
    optimizer: Optimizer
    base_dtype: str = "bf16"
    lora: bool = False
    accumulation: int = 1
    ep: int = 1
    turn: str = "last"

    @property
    def compute(self) -> str:
        """What the layers compute in: bf16, fp32 or autocast."""
        return compute_dtype(self.recipe.name, self.base_dtype if self.lora else "")[0]

    @property
    def adapters(self) -> str:
        """What adapters do with their input: read the `same`, or a copy of it, `cast` or `fp32`."""
        return compute_dtype(self.recipe.name, self.base_dtype if self.lora else "")[1]

    @property
    def compute_itemsize(self) -> int:
        """Bytes of one element of a matrix product's input."""
        return 4 if self.compute == "fp32" else 2

    @property
    def gather_itemsize(self) -> int:
        """Bytes of an element of a trainable weight as ranks send it to each other."""
        return 4 if self.recipe.name == "fp32" else 2

    @property
    def residual_itemsize(self) -> int:
        """Bytes of one element of the residual stream."""
        return 2 if self.compute == "bf16" else 4


def packed(tensor: Tensor, base_dtype: str) -> bool:
    """Whether bitsandbytes packs it into NF4: a frozen linear layer of the blocks, not embedding,
    head or norm.
    """
    frozen = base_dtype.startswith("nf4") and not tensor.trainable
    return frozen and tensor.kind == "linear" and "*" in tensor.name
