# meta-llama/Llama-3.1-8B on 16 GPUs:
# strategy hsdp, recipe fsdp2-mixed, optimizer adamw.
# Accepted by torch 2.13.0.
# Change MODEL; torchrun --nproc-per-node and --nnodes say how many GPUs.

import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM

MODEL = "meta-llama/Llama-3.1-8B"
DTYPE = torch.float32  # the fp32 shard is the master copy


def shard(model):
    """Divide the model: one unit per decoder layer, and the root."""
    options = {
        "mesh": init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard")),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.bfloat16,
        ),
    }
    for block in model.model.layers:
        fully_shard(block, **options)
    fully_shard(model.model.embed_tokens, **options)
    tail = [model.model.norm, model.lm_head]
    fully_shard(tail, **options | {"reshard_after_forward": False})
    return fully_shard(model, **options)


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def step(model, optimizer, micro_batches):
    for batch in micro_batches:
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
    model = shard(model)
    adam = optimizer(model)
    for micro_batches in batches:
        step(model, adam, micro_batches)


# Keeps 16,060,522,496 bytes per GPU, 16.06 GB:
# weights 4.02 GB, gradients 4.02 GB, optimizer 8.03 GB.
# Peaks at 18.35 GB in forward+backward, 1 × 2,048 tokens at a time.
