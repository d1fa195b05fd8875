"""The runs that PyTorch's trackers were asked about, and the `Job` of each; needs no framework."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from calc.job import Job
from calc.models import Model, from_config, known

RECORDED = Path(__file__).parent / "recorded"
DEFAULTS: Mapping[str, Any] = {
    "num_hidden_layers": None,
    "world_size": 8,
    "strategy": "fsdp2",
    "recipe": "fsdp2-mixed",
    "seq_len": 2048,
    "micro_batch": 1,
    "accumulation": 1,
    "checkpointing": "full",
    "attention": "sdpa",
    "loss": "full",
    "step": "for-loop",
    "reduce_dtype": "",
    "wrap": "block",
    "reshard_after_forward": True,
    "no_sync": False,
    "lora_rank": 0,
    "base_dtype": "",
}


def config_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run's model, with as many layers as the run asks for."""
    config = dict(run.get("config") or next(r["config"] for r in known() if r["name"] == run["model"]))
    count = run.get("num_hidden_layers") or config["num_hidden_layers"]
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = config["layer_types"][:count]
    return config | {"num_hidden_layers": count}


def model_of(run: Mapping[str, Any]) -> Model:
    return from_config(config_of(run), run["model"])


def run_of(given: Mapping[str, Any]) -> Job:
    """The same run in calc's words."""
    run = DEFAULTS | given
    words = {key: run[key] for key in DEFAULTS if key not in ("num_hidden_layers", "base_dtype")}
    if run["strategy"] == "single":
        words["world_size"] = 1
    if run["lora_rank"]:
        words["base_dtype"] = run["base_dtype"] or ("bf16" if run["recipe"] == "pure-bf16" else "fp32")
    return Job.of(model=model_of(run), **words)


#: Mistral NeMo's own: 32 heads of 128 beside a hidden size of 5,120.
NEMO = {"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336, "num_hidden_layers": 40}
NEMO |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072}
NEMO |= {"sliding_window": None, "tie_word_embeddings": False}


def runs() -> Iterator[dict[str, Any]]:
    """Architectures with few layers of their real shapes, then settings on small real models."""
    both = ({"checkpointing": "full"}, {"checkpointing": "none"})
    for name, layers, more in (
        ("qwen3-8b", 4, {"seq_len": 4096}),  # norms on q and k
        ("qwen3-32b", 3, {}),  # heads × head_dim is not hidden_size
        ("mistral-nemo", 4, {"seq_len": 4096, "config": NEMO}),
        ("qwen2.5-0.5b", 24, {}),  # tied
        ("llama-3.2-3b", 8, {"micro_batch": 4}),
        ("qwen3-30b-a3b", 3, {}),  # experts
        ("mixtral-8x7b-v0.1", 2, {}),
        ("glm-4.5-air", 3, {}),
        ("minimax-m2.5", 2, {}),
        ("deepseek-v3", 4, {"world_size": 64}),  # latent attention
        ("gemma-3-1b-it", 6, {}),  # a sliding window shorter than the sequence
        ("olmo-2-1124-7b", 4, {}),
        ("phi-4-mini", 4, {}),
        ("smollm3-3b", 4, {}),
    ):
        for one in both:
            yield {"model": name, "num_hidden_layers": layers} | more | one
    yield {"model": "qwen3-0.6b", "seq_len": 8192}
    yield {"model": "gemma-2-9b", "num_hidden_layers": 4, "attention": "eager"}
    small = {"model": "llama-3.2-3b", "num_hidden_layers": 8}
    for one in (
        {"recipe": "pure-bf16"},
        {"recipe": "fp32"},
        {"accumulation": 2},
        {"accumulation": 2, "no_sync": True},
        {"reshard_after_forward": False},
        {"reduce_dtype": "bf16"},
        {"world_size": 64, "step": "foreach"},
        {"attention": "eager", "checkpointing": "none"},
    ):
        yield small | one
    for recipe in ("pure-bf16", "fp32", "autocast"):
        for one in both:
            yield small | {"strategy": "single", "recipe": recipe} | one
    long = {"seq_len": 8192}
    for one in ({"strategy": "single", "recipe": "pure-bf16"}, {}, {"model": "llama-3.1-8b", "num_hidden_layers": 4}):
        yield small | long | {"loss": "chunked"} | one
        yield small | {"checkpointing": "selective"} | one
    for step in ("fused", "foreach"):
        yield small | {"strategy": "single", "recipe": "pure-bf16", "step": step, "accumulation": 2}
    eight = {"model": "llama-3.1-8b", "num_hidden_layers": 4, "lora_rank": 16}
    for one in both:
        yield eight | {"base_dtype": "bf16"} | one
        yield eight | {"strategy": "single", "recipe": "autocast", "base_dtype": "bf16"} | one
        yield eight | {"strategy": "single", "recipe": "pure-bf16"} | one
        yield {"model": "qwen3-30b-a3b", "num_hidden_layers": 3, "lora_rank": 16, "base_dtype": "bf16"} | one
    # Few tokens: gathering in the forward is the worst, and on few ranks the last reduction.
    few = {"model": "llama-3.1-8b", "num_hidden_layers": 4, "seq_len": 512}
    yield few | {"lora_rank": 16}
    yield few | {"world_size": 2}
    yield few | {"world_size": 3, "reduce_dtype": "bf16"}
    yield few | {"model": "qwen2.5-7b", "world_size": 64, "recipe": "pure-bf16"}
    # Fewer experts than ranks: FSDP2 fills them up to one for each rank.
    yield {"model": "mixtral-8x7b-v0.1", "num_hidden_layers": 3, "world_size": 16}
    yield {"model": "mixtral-8x7b-v0.1", "num_hidden_layers": 2, "world_size": 64, "checkpointing": "none"}
    # Embedding and head as units of their own: the head is reduced before the norm beside it, which gathers it again.
    for one in ({}, {"world_size": 2, "checkpointing": "none"}, {"reshard_after_forward": False}):
        yield few | {"wrap": "block+ends"} | one
    # Autocast knows no grouped product: experts run in the dtype of their weights.
    experts = {"model": "qwen3-30b-a3b", "num_hidden_layers": 3, "strategy": "single", "seq_len": 1024}
    for one in ({"recipe": "fp32"}, {"recipe": "autocast"}, {"recipe": "autocast", "checkpointing": "none"}):
        yield experts | one
    # Accumulating without a sync: the first micro-batch, one between, and the last each have their own worst instant.
    eight = {"model": "llama-3.1-8b", "num_hidden_layers": 4, "seq_len": 256, "no_sync": True}
    for one in ({"recipe": "fp32", "accumulation": 2}, {"recipe": "pure-bf16", "accumulation": 3}):
        yield eight | one
        yield eight | one | {"model": "llama-3.2-3b"}
    yield eight | {"accumulation": 2, "reshard_after_forward": False}
    yield eight | {"accumulation": 3, "world_size": 2, "reduce_dtype": "bf16", "checkpointing": "none"}
    # The head alone is reduced before the layers, and what the earlier micro-batch left of its gradient goes with it.
    head = {"model": "llama-3.1-8b", "num_hidden_layers": 6, "seq_len": 512, "checkpointing": "none"}
    yield head | {"no_sync": True, "accumulation": 2, "wrap": "block+ends", "world_size": 64}


SMALL = ("llama-3.1-8b", "llama-3.2-3b", "llama-2-7b-hf", "mistral-7b-v0.3", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-8b")
SMALL += ("qwen3-30b-a3b", "gemma-3-1b-it", "olmo-2-1124-7b", "phi-4-mini", "smollm3-3b")


def drawn(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Runs at random, always the same for a seed: settings that meet nowhere else, on a few layers."""
    draw = random.Random(seed)

    def some(share: float) -> bool:
        return draw.random() < share

    for _ in range(count):
        model, fsdp = draw.choice(SMALL), some(0.6)
        recipes = ("pure-bf16", "fp32", *(("fsdp2-mixed", "fsdp2-mixed") if fsdp else ("autocast",)))
        if model == "qwen3-30b-a3b":  # the other recipes of experts are in `runs`
            recipes = ("fsdp2-mixed",) if fsdp else ("pure-bf16",)
        run = {
            "model": model,
            "num_hidden_layers": draw.choice((3, 4)),
            "strategy": "fsdp2" if fsdp else "single",
            "recipe": draw.choice(recipes),
            "seq_len": draw.choice((256, 512, 1024, 2048)),
            "micro_batch": draw.choice((1, 1, 2, 4)),
            "accumulation": draw.choice((1, 2, 3)),
            "checkpointing": draw.choice(("full", "none", "selective")),
            "attention": "eager" if some(0.2) else "sdpa",
            "step": draw.choice(("for-loop", "foreach", "fused")),
        }
        if fsdp:
            run |= {"world_size": draw.choice((2, 3, 8, 64)), "reshard_after_forward": not some(0.25)}
            run |= {"no_sync": run["accumulation"] > 1 and some(0.5)}
            run |= {"reduce_dtype": "bf16"} if run["recipe"] == "fsdp2-mixed" and some(0.4) else {}
        if some(0.2):
            run |= {"lora_rank": 16, "base_dtype": "bf16" if run["recipe"] != "pure-bf16" and some(0.7) else ""}
        elif run["recipe"] != "autocast" and some(0.15):  # the stand-in for the kernel takes one dtype
            run |= {"loss": "chunked"}
        yield {key: value for key, value in run.items() if value != DEFAULTS.get(key)}


#: How many of them are recorded.
DRAWN = 80


def recorded(name: str) -> dict[str, Any]:
    """A recorded file."""
    return json.loads((RECORDED / f"{name}.json").read_text("utf-8"))  # type: ignore[no-any-return]
