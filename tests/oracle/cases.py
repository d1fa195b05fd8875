"""What is measured: the small models, the stacks, the optimizers, and which of them together.

Standard library only: the recorded results are compared with `calc` where no framework is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_CONFIGS: dict[str, dict[str, Any]] = {
    "even": {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "tie_word_embeddings": False,
    },
    "odd": {
        "model_type": "llama",
        "hidden_size": 260,
        "intermediate_size": 691,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 1003,
        "tie_word_embeddings": False,
    },
}
#: Small Llamas in Hugging Face's own words. Every dimension of `even` divides by 8, of `odd` none does;
#: `tied` has one layer and an embedding that is its head; `lora` and `qlora` are `odd` with adapters.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    **_CONFIGS,
    "tied": _CONFIGS["odd"] | {"num_hidden_layers": 1, "tie_word_embeddings": True},
    "lora": _CONFIGS["odd"],
    "qlora": _CONFIGS["odd"],
}
LORA_RANK = 8

#: Elements up to which `deepspeed3-persist` keeps a tensor whole: ten times the hidden size, as Transformers sets it.
PERSIST = 2_600

#: Lone tensors around every threshold: 4,096 elements, blocks of 128 and 256, paging from 100,000.
SIZES: tuple[tuple[int, ...], ...] = (
    *((n,) for n in (1, 2, 3, 127, 128, 129, 255, 256, 257, 383, 384, 640, 1000, 2048)),
    *((n,) for n in (4095, 4096, 4097, 4224, 4352, 4353, 8191, 8192, 99_999, 100_000, 100_001)),
    *((1, 1), (1, 4096), (4096, 1), (2, 2048), (3, 1365), (3, 1366), (16, 256), (17, 256), (63, 65)),
    *((64, 64), (127, 129), (128, 128), (129, 127), (260, 691), (300, 400)),
)

#: Under a stack: the dtypes it is measured in. `mixed` computes bf16 on fp32 weights.
STACKS: Mapping[str, str] = {
    "single": "bf16 fp32 mixed",
    "ddp": "bf16 fp32 mixed",
    "ddp-view": "bf16 fp32",
    "zero-redundancy": "bf16 fp32 mixed",
    "fsdp1": "bf16 fp32 mixed mixed-reduce-bf16",
    "fsdp1-grad-op": "bf16 mixed",
    "fsdp2": "bf16 fp32 mixed mixed-reduce-bf16",
    "fsdp2-keep": "bf16 mixed",
    "hsdp": "bf16 mixed",
    "deepspeed1": "bf16 fp32",
    "deepspeed2": "bf16 fp32",
    "deepspeed3": "bf16 fp32",
    "deepspeed3-persist": "bf16",
}
#: The stacks on which every optimizer is tried.
PAIRED = ("ddp", "zero-redundancy", "fsdp1", "fsdp2", "deepspeed1", "deepspeed2", "deepspeed3")
OPTIMIZERS = (
    *("adamw", "adamw-amsgrad", "sgd", "sgd-momentum", "adafactor", "adafactor-trainer", "lion", "muon"),
    *("adamw32bit", "adamw8bit", "paged-adamw8bit", "adamw8bit-trainer", "lion8bit"),
    *("adamw8bit-torchao", "adamw4bit-torchao"),
)
#: Which optimizers are divided among 4 and 8 ranks too: one of each rule that runs there.
DIVIDED: Mapping[str, str] = {
    "zero-redundancy bf16": "adamw8bit adamw8bit-trainer adafactor muon",
    "fsdp1 bf16": "adamw8bit adamw8bit-torchao adamw4bit-torchao adafactor",
    "fsdp2 mixed": "adamw8bit-torchao adamw4bit-torchao muon",
    "deepspeed1 bf16": "adamw8bit",
    "deepspeed3 bf16": "adamw8bit adamw8bit-torchao",
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """One measurement; `model` is a key of `CONFIGS`, or `sizes` for the lone tensors."""

    world_size: int
    stack: str
    model: str
    dtype: str
    optimizer: str

    @property
    def is_mixed(self) -> bool:
        """Whether bf16 is computed on fp32 weights."""
        return self.dtype.startswith("mixed")

    @property
    def is_adapted(self) -> bool:
        """Whether the model is frozen and has adapters."""
        return self.model in ("lora", "qlora")

    def __str__(self) -> str:
        return f"{self.stack} {self.dtype} {self.optimizer} {self.model} {self.world_size}"


def read(name: str) -> Case:
    """The case of that name."""
    stack, dtype, optimizer, model, world_size = name.split()
    return Case(stack=stack, dtype=dtype, optimizer=optimizer, model=model, world_size=int(world_size))


def _names() -> Iterator[str]:
    for optimizer in (*OPTIMIZERS, "nf4", "nf4-double"):
        yield from (f"single {dtype} {optimizer} sizes 1" for dtype in ("bf16", "fp32"))
    for optimizer in OPTIMIZERS:
        yield from (f"single {dtype} {optimizer} {model} 1" for dtype in ("bf16", "fp32") for model in ("even", "odd"))
        for stack in PAIRED:
            dtypes = {"ddp": "bf16 fp32", "zero-redundancy": "bf16 fp32", "fsdp1": "bf16 fp32 mixed"}
            for dtype in dtypes.get(stack, "bf16" if "deepspeed" in stack else "bf16 fp32 mixed").split():
                yield f"{stack} {dtype} {optimizer} even 2"
    for world_size in (2, 4, 8):
        for stack, dtypes in STACKS.items():
            if stack == "single" or (stack == "hsdp" and world_size == 2):
                continue
            for dtype in dtypes.split():
                yield f"{stack} {dtype} adamw odd {world_size}"
                if world_size == 2 or dtype == "bf16":
                    yield f"{stack} {dtype} adamw even {world_size}"
            if stack in PAIRED:
                yield from (f"{stack} bf16 adamw {model} {world_size}" for model in ("tied", "lora", "qlora"))
        for key, optimizers in DIVIDED.items():
            for optimizer in optimizers.split():
                yield f"{key} {optimizer} odd {world_size}"
                if world_size != 8:
                    yield f"{key} {optimizer} even {world_size}"


#: Every case, in the order in which it is measured.
CASES: tuple[Case, ...] = tuple(sorted(map(read, set(_names()))))


def is_quick(case: Case) -> bool:
    """Whether `make verify-quick` measures it: lone tensors, and the odd model on two and four ranks."""
    if case.model == "sizes":
        return True
    if case.model == "odd" and case.dtype in ("bf16", "mixed"):
        return case.world_size == 2 or (case.world_size == 4 and not case.stack.startswith("deepspeed"))
    if case.model == "even":  # pairs that fail
        return case.stack == "fsdp2" and case.dtype == "bf16" and "8bit" in case.optimizer
    return case.model == "qlora" and case.world_size == 2 and case.stack.startswith("fsdp")
