"""What the numbers of a job rest on, one line each: the choices first, then what was left out."""

from __future__ import annotations

from collections.abc import Iterator

from calc.job import Job
from calc.models import Model
from calc.models.families import attention_of, unsupported
from calc.optimizers import get_optimizer, step_word
from calc.settings import CHOICES, DEGREES, NODE_GPUS


def assumptions(job: Job, model: Model) -> tuple[str, ...]:
    """The lines for `job`, of which `model` is the whole model with its adapters."""
    first = f"strategy {job.strategy}, recipe {job.recipe}, optimizer {job.optimizer}"
    told = (
        "bytes are those of the largest rank",
        *_of_the_step(job, model),
        *job.stack.accounting(job.recipe),
    )
    return (
        first,
        *model.assumptions,
        *told,
        *_of_extras(job),
        *job.stack.remarks(model, job.ep),
        *_degrees(job),
    )


def _of_the_step(job: Job, model: Model) -> Iterator[str]:
    runs, reason = attention_of(job.model, job.attention), unsupported(model)
    if reason:
        yield f"{reason}: the phases and the peak are not computed"
    else:
        kept, loss = CHOICES["checkpointing"][job.checkpointing], CHOICES["loss"][job.loss]
        yield f"checkpointing {job.checkpointing}: {kept}; {runs} attention; {loss}"
        load, save = CHOICES["load"][job.load], CHOICES["save"][job.save]
        hosted = min(job.world_size, NODE_GPUS)
        optimizer = get_optimizer(job.optimizer)
        word = step_word(optimizer, job.step)
        step = CHOICES["step"][word] if word else f"optimizer step as {optimizer.library} takes it"
        yield f"{step}; {load}; {save}; GPUs per host: {hosted}"
        yield (
            "the band adds a CUDA context, NCCL and fragmentation as published: "
            "it has not been measured on a GPU here"
        )
    if runs != job.attention:
        yield f"transformers has no SDPA for this model and falls back to {runs} attention"
    if not model.has_architecture:
        yield "the one-line formula lacks its activations, and so its total"


def _of_extras(job: Job) -> Iterator[str]:
    """Adapters, paged states, offload."""
    if job.lora_rank:
        wide = {
            "autocast": "fp32, under autocast",
            "fp32": "fp32",
            "fsdp2-mixed": "fp32 shards, bf16 when gathered",
        }
        adapters, base = wide.get(job.recipe, "16-bit"), CHOICES["base_dtype"][job.base_dtype]
        what = f"LoRA rank {job.lora_rank} on {job.lora_targets}"
        yield f"{what}; base frozen in {base}; adapters {adapters}"
        if job.recipe not in wide:
            yield "peft's own default is fp32 adapters, recipe autocast"
    if get_optimizer(job.optimizer).paged:
        yield (
            "paged states are managed memory, which PyTorch does not count: "
            "they are in the host's bytes"
        )
    if job.stack.offloaded:
        yield f"{CHOICES['offload'][job.stack.offload]}: {', '.join(job.stack.offloaded)}"


def _degrees(job: Job) -> Iterator[str]:
    degrees = {name: getattr(job, name) for name in ("tp", "pp", "cp", "ep")} | {
        "shard_size": job.stack.shard_size
    }
    yield from (
        f"{name} {degrees[name]}: {means}" for name, means in DEGREES.items() if degrees[name] > 1
    )
