"""A model is its parameter tensors, listed from the fields of its `config.json` as transformers makes them.

`tensors` says what a model is, `families` which tensors each architecture has,
`fields` reads a config, `registry` finds it, `adapters` adds LoRA.
"""

from calc.models.adapters import with_adapters
from calc.models.families import architectures, from_config
from calc.models.registry import known, load
from calc.models.tensors import Block, Model, Tensor

__all__ = ["Block", "Model", "Tensor", "architectures", "from_config", "known", "load", "with_adapters"]
