# Qwen/Qwen2.5-3B on 8 GPUs:
# strategy ddp, recipe autocast, optimizer adamw.
# Accepted by torch 2.13.0.
# Change MODEL; torchrun --nproc-per-node and --nnodes say how many GPUs.

import os

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

MODEL = "Qwen/Qwen2.5-3B"
DTYPE = torch.float32  # the fp32 weight is the master copy


def shard(model):
    """Nothing is divided; the gradients live in DDP's buckets."""
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def step(model, optimizer, micro_batches):
    for batch in micro_batches:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        (loss / len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main(batches):
    """Train; the micro-batches of a step: 1 of 1 × 2048 tokens."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    model = AutoModelForCausalLM.from_pretrained(
        MODEL,
        dtype=DTYPE,
        attn_implementation="sdpa",
    )
    model.activation_checkpointing_enable()
    model = shard(model.cuda())
    adam = optimizer(model)
    for micro_batches in batches:
        step(model, adam, micro_batches)


# Keeps 49,375,019,008 bytes per GPU, 49.38 GB:
# weights 12.34 GB, gradients 12.34 GB, optimizer 24.69 GB.
# Peaks at 59.32 GB in forward+backward, 1 × 2,048 tokens at a time.
