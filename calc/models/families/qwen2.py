"""Qwen2 and Qwen2.5: Llama's layer with biases on q, k and v alone.

transformers 5.24.0 (`modeling_qwen2.py`): q, k and v always have a bias, the output projection
never. Layers from `max_window_layers` on have a window where the config turns it on.
Counted is what Llama's layer does; a bias keeps nothing for its backward.
"""

from __future__ import annotations

from calc.models.families import attention, llama
from calc.models.families.family import Family, Fields, Tensors, register
from calc.models.families.kinds import listed_or_windowed


def biased(c: Fields, kind: str) -> Tensors:
    yield from attention.query_key_value(c, bias=True)
    yield from attention.out_of_heads(c)


register(
    Family(
        model_type="qwen2",
        defaults={
            "num_key_value_heads": 32,
            "layer_types": None,
            "sliding_window": 4096,
            "use_sliding_window": False,
            "max_window_layers": 28,
            "head_dim": None,
        },
        nullable=("num_key_value_heads",),
        attentions=listed_or_windowed,
        attention=biased,
        operations=llama.operations,
    )
)
