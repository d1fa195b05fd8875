"""A file per family of layers: its config, tensors, operations, slices and adapters together.

A new family is a new file that ends with `register(Family(...))`, and its name in the list below.
`family` says what a family is, `fields` reads a config, `kinds` tells layers apart; `modules`,
`attention`, `latent`, `mlp` and `experts` are parts of which families are made; `layer`,
`operations` and `head` count their bytes.
"""

from importlib import import_module

from calc.models.families.family import FAMILIES, Family, family_of, model_types, register
from calc.models.families.head import Head, head_cost
from calc.models.families.layer import Op, windowed
from calc.models.families.operations import attention_of, operations, unsupported

__all__ = [
    "FAMILIES",
    "Family",
    "Head",
    "Op",
    "attention_of",
    "family_of",
    "head_cost",
    "model_types",
    "operations",
    "register",
    "unsupported",
    "windowed",
]

#: The files, in the order in which messages list their models.
FILES = (
    "llama",
    "mixtral",
    "qwen2",
    "qwen3",
    "delta",
    "smollm3",
    "phi",
    "olmo",
    "gemma",
    "gemma4",
    "llama4",
    "gpt_oss",
    "minimax",
    "glm",
    "deepseek",
    "deepseek_v4",
    "gpt2",
    "falcon",
    "nemotron",
)
for _file in FILES:
    import_module(f"calc.models.families.{_file}")
