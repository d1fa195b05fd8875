"""Every setting of a job in the command line's words: what it may be, and its default."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from calc.stacks import STACKS, settings_of

#: What a choice may be, by its field, each word with what it means.
CHOICES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "checkpointing": {
            "full": "every layer is recomputed from its input",
            "selective": "every second layer is recomputed from its input",
            "matmuls": "each layer keeps its matrix products and attention, "
            "and recomputes the rest",
            "none": "every layer keeps what its backward needs",
        },
        "attention": {"sdpa": "sdpa attention", "eager": "eager attention"},
        "loss": {
            "full": "logits in full, upcast to fp32",
            "chunked": "logits a few tokens at a time",
        },
        "step": {
            "fused": "optimizer step fused",
            "foreach": "optimizer step foreach",
            "for-loop": "optimizer step for-loop",
        },
        "reduce_dtype": {"fp32": "reduced in fp32", "bf16": "reduced in bf16"},
        "wrap": {
            "block": "a unit per layer, and the root",
            "block+ends": "embedding and head are units of their own",
        },
        "load": {
            "cpu": "each rank reads the model on the CPU",
            "gpu": "each rank reads the model on its GPU",
        },
        "save": {"sharded": "sharded checkpoints", "full": "full checkpoints"},
        "offload": {
            "none": "",
            "optimizer": "offloaded to the host",
            "all": "offloaded to the host",
            "nvme": "offloaded to NVMe, with 16-bit gradients, "
            "up to 10⁹ weights and buffers on the host",
        },
        "base_dtype": {
            "bf16": "bf16",
            "fp32": "fp32",
            "nf4": "nf4, its scales in fp32",
            "nf4-double": "nf4, its scales quantised too",
        },
    }
)
#: GPUs that share one host's memory.
NODE_GPUS = 8
_ELEMENTS = 10**12
#: Whole numbers by field, with their least and largest value.
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "world_size": (1, 1_000_000),
        "seq_len": (1, 100_000_000),
        "micro_batch": (1, 1_000_000),
        "accumulation": (1, 1_000_000),
        "lora_rank": (0, 1_000_000),
        "reduce_bucket_size": (1, _ELEMENTS),
        "stage3_max_live_parameters": (0, _ELEMENTS),
        "stage3_prefetch_bucket_size": (0, _ELEMENTS),
        "sub_group_size": (1, _ELEMENTS),
        "tp": (1, 1_000_000),
        "pp": (1, 1_000_000),
        "cp": (1, 1_000_000),
        "ep": (1, 1_000_000),
        "shard_size": (0, 1_000_000),
    }
)
#: Every setting in the command line's words, with its default; an empty word is the stack's own.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "world_size": 1,
        "strategy": "",
        "recipe": "",
        "optimizer": "adamw",
        "seq_len": 2048,
        "micro_batch": 1,
        "accumulation": 1,
        "checkpointing": "full",
        "attention": "sdpa",
        "loss": "full",
        "step": "fused",
        "reduce_dtype": "",
        "wrap": "block",
        "load": "cpu",
        "save": "sharded",
        "offload": "none",
        "reshard_after_forward": True,
        "no_sync": False,
        "gradient_as_bucket_view": False,
        "overlap_comm": False,
        "reduce_bucket_size": 500_000_000,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_prefetch_bucket_size": 50_000_000,
        "sub_group_size": 1_000_000_000,
        "lora_rank": 0,
        "lora_targets": "all-linear",
        "base_dtype": "bf16",
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "shard_size": 0,
    }
)
#: Settings that only some stacks have, each with the library whose they are.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        name: next(stack.owner for stack in STACKS if name in settings_of(stack))
        for name in DEFAULTS
        if name != "reduce_dtype" and any(name in settings_of(stack) for stack in STACKS)
    }
)
#: What each degree of parallelism is taken to be.
DEGREES: Mapping[str, str] = MappingProxyType(
    {
        "tp": "norms and the residual stream are whole on each rank, without sequence parallelism",
        "pp": "one forward, one backward; the largest stage is shown",
        "cp": "each rank has its part of every sequence; "
        "keys and values in transit are not counted",
        "ep": "tokens are routed evenly; those in transit are not counted",
        "shard_size": "one shard group is shown; the others are copies of it",
    }
)
