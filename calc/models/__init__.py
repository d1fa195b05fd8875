"""A model is its parameter tensors, listed from the fields of its `config.json` as transformers makes them.

`tensors` says what a model is, `architectures` lists its tensors by a table in `calc/data`,
`fields` reads the config, `kinds` tells its layers apart, `registry` finds a model, `adapters` adds LoRA.
"""

from calc.models.adapters import with_adapters
from calc.models.architectures import architectures, from_config
from calc.models.registry import known, load
from calc.models.tensors import Block, Model, Tensor

__all__ = ["Block", "Model", "Tensor", "architectures", "from_config", "known", "load", "with_adapters"]
