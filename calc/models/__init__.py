"""A model is its parameter tensors, listed from its `config.json` as transformers makes them.

`tensors` says what a model is, `families` has a file per family of layers, `architectures` lists a
model's tensors by its family, `registry` finds a model, `adapters` adds LoRA, `parts` says what one
rank holds.
"""

from calc.models.adapters import with_adapters
from calc.models.architectures import architectures, from_config
from calc.models.registry import known, load
from calc.models.tensors import Block, Model, Tensor

__all__ = [
    "Block",
    "Model",
    "Tensor",
    "architectures",
    "from_config",
    "known",
    "load",
    "with_adapters",
]
