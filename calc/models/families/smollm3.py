"""SmolLM3: Llama's layer, in which every fourth has no rotary embedding.

transformers 5.24.0 (`modeling_smollm3.py`): a layer without rotary embedding keeps the same tensors
and bytes as one with it. Counted is what Llama's layer does.
"""

from __future__ import annotations

from calc.models.families import llama
from calc.models.families.family import Family, register
from calc.models.families.kinds import listed_or_windowed

register(
    Family(
        model_type="smollm3",
        defaults={
            "num_key_value_heads": 4,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "layer_types": None,
            "sliding_window": None,
            "use_sliding_window": False,
            "head_dim": None,
        },
        nullable=("num_key_value_heads",),
        attentions=listed_or_windowed,
        operations=llama.operations,
    )
)
