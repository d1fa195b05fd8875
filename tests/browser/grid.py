"""The runs on which the browser's Python must give CPython's bytes, and what each of them gives.

Read by the test itself and, as it stands, by Python in Node: it may import nothing but calc.
"""

from __future__ import annotations

import hashlib
import json
from itertools import islice, product

from calc.cli import answer, calculated
from calc.units import InputError

#: Each list is walked at its own stride, so that few runs meet many pairs.
MODELS = (
    "llama-3.2-3b",
    "llama-3.1-8b",
    "llama-3.3-70b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt2",
    "70B",
    "7e9",
)
CARDS = ("h100-sxm5-80gb", "b200-sxm", "geforce-rtx-4090", "instinct-mi300x", "tpu-v5p")
WAYS = (
    *(["--strategy", name] for name in ("zero1", "zero2", "zero3", "fsdp1", "fsdp2", "ddp")),
    ["--strategy", "fsdp2", "--recipe", "pure-bf16"],
    ["--strategy", "fsdp1", "--recipe", "pure-bf16", "--optimizer", "adamw8bit"],
    ["--strategy", "ddp", "--optimizer", "adamw8bit"],
    ["--strategy", "zero3", "--offload", "all"],
    ["--strategy", "zero2", "--lora-rank", "16"],
    ["--strategy", "ddp", "--lora-rank", "8", "--base-dtype", "nf4"],
    ["--strategy", "fsdp2", "--optimizer", "muon"],
    ["--strategy", "zero4"],
)
BATCHES = ([], ["--micro-batch", "3", "--accumulation", "2"], ["--seq-len", "8191", "--checkpointing", "none"])
COUNTS = (2, 6, 8, 16, 24, 64, 128, 1000)


def runs() -> list[list[str]]:
    """The arguments of `calc estimate`, in a fixed order."""
    found = product(COUNTS, BATCHES, WAYS, MODELS)
    return [
        ["estimate", model, "--gpus", str(count), *way, *batch, "--gpu", CARDS[index % len(CARDS)]]
        for index, (count, batch, way, model) in enumerate(found)
    ]


def given(argv: list[str], *, page: bool) -> str:
    """What a run answers, as one hash of its JSON and, with `page`, of the calculator's page; or its error line."""
    try:
        text = json.dumps(answer(argv), sort_keys=True)
        if page:
            text += calculated(argv)[1]
    except InputError as error:
        return f"error: {error}"
    return hashlib.sha256(text.encode()).hexdigest()


def results(every: int = 1, page_every: int = 20) -> list[str]:
    """The answers of each `every`-th run; every `page_every`-th of them with its page."""
    chosen = islice(runs(), 0, None, every)
    return [given(argv, page=index % page_every == 0) for index, argv in enumerate(chosen)]
