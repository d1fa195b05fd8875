"""An out-of-memory message → its figures, and the lines of the ledger as large as the request.

PyTorch prints GiB with two decimals, DeepSpeed prints the same GiB as "GB". What PyTorch says it
tried to allocate is not the tensor but the segment it asked CUDA for: 2 MiB up to 1 MiB, 20 MiB up
to 10 MiB, then multiples of 2 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from calc.estimate import Estimate
from calc.job import Job
from calc.models import Model
from calc.optimizers import state_bytes
from calc.plan import training_of
from calc.units import DTYPE_BYTES, UNITS, InputError, ceil_div, records, text

MIB = UNITS["MiB"]
#: A request up to here is any tensor up to 10 MiB.
SMALL_BYTES = 20 * MIB
#: A line within 2 % of the request is called near; so many are named.
NEAR_PERCENT, MAX_CANDIDATES = 2, 8
_FEWER_TOKENS = "--checkpointing full, or fewer tokens: --seq-len, --micro-batch"
_UNITS = "--wrap block+ends; more GPUs do not make it smaller"
#: What moves a line, by a word of its name; the first that is in it counts.
LEVERS: Mapping[str, str] = MappingProxyType(
    {
        "fp32 gradients": "a smaller sub_group_size under ZeRO-3, or more shards",
        "logits": "--loss chunked, or fewer tokens: --seq-len, --micro-batch",
        "activation": _FEWER_TOKENS,
        "attention scores": "--attention sdpa",
        "reduce-scatter": "--reduce-dtype bf16, --wrap block+ends",
        "gathered": _UNITS,
        "prefetched": _UNITS,
        "temporaries": "--step fused",
        "bucket": "a smaller bucket in the config",
        "optimizer": "more shards, --optimizer adamw8bit, --offload optimizer",
        "master": "more shards, --offload optimizer",
        "weight": "more shards under ZeRO-3 or FSDP, --lora-rank with --base-dtype nf4",
        "gradient": _UNITS,
    }
)
_QUANTITY = r"(\d{1,30}(?:\.\d{1,30})?)\s*(bytes|[KMGT]i?B)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The figures of one message in bytes, or None; `binary_gb` if it prints GiB as GB.

    `precision` is half of the last printed digit of the request (or, without one, of what is
    allocated), and `failures` counts the requests in the text, of which the first is read.
    """

    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    in_use: int | None = None
    precision: int = 0
    binary_gb: bool = False
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A line of the ledger, or a tensor of it, that is `off_by` bytes larger than the request."""

    line: str
    phase: str
    bytes: int
    off_by: int
    exact: bool
    lever: str


def read(message: str) -> Message:
    """The figures of the first out-of-memory message in a text, in bytes.

    Raises `InputError` where the text has no such message. One without figures is read as all None.
    Source: PyTorch's CUDACachingAllocator, DeepSpeed's `see_memory_usage`; wordings in
    `oom-wordings.json`.

    >>> read("CUDA out of memory. Tried to allocate 1.96 GiB (GPU 0; 79.20 GiB total)").requested
    2104533975
    """
    flat = " ".join(message.split())
    failure = re.search(r"[Oo]ut of memory|OutOfMemoryError", flat)
    if failure and "ried to allocate" in flat[failure.start() :]:
        flat = flat[failure.start() :]
    tries = [match.start() for match in re.finditer("ried to allocate", flat)]
    if len(tries) > 1:  # no figure of a second message fills a gap in the first
        flat = flat[: tries[1]]
    found: dict[str, int] = {}
    precision: dict[str, int] = {}
    binary = False
    for record in records("oom-wordings"):
        name = record["figure"]
        pattern = "|".join(
            re.escape(wording).replace(r"\{q\}", _QUANTITY) for wording in record["wordings"]
        )
        if match := re.search(rf"(?<![\w.])(?:{pattern})", flat):
            digits, unit = (group for group in match.groups() if group)
            size = 1 if unit == "bytes" else UNITS[f"{unit[0]}iB"]
            found[name] = round(Fraction(digits) * size)
            precision[name] = ceil_div(size, 2 * 10 ** len(digits.partition(".")[2]))
            binary |= len(unit) == 2
    if not found and not failure:
        raise InputError(
            "no out-of-memory message here: "
            "no 'Tried to allocate …', no 'out of memory', no 'MA … GB'"
        )
    if (unused := found.pop("unused", None)) is not None and "allocated" in found:
        found.setdefault("reserved", found["allocated"] + unused)
    exact = precision.get("requested", precision.get("allocated", 0))
    return Message(**found, precision=exact, binary_gb=binary, failures=len(tries))


def segment(num_bytes: int) -> int:
    """What PyTorch asks CUDA for when it needs a new block of that many bytes.

    Formula: 2 MiB up to 1 MiB, 20 MiB below 10 MiB, else rounded up to 2 MiB.
    Source: `get_allocation_size` in PyTorch's CUDACachingAllocator.

    >>> [segment(size) // 2**20 for size in (1000, 2 * 2**20, 11 * 2**20 + 1)]
    [2, 20, 12]
    """
    if num_bytes <= MIB:
        return 2 * MIB
    return 20 * MIB if num_bytes < 10 * MIB else ceil_div(num_bytes, 2 * MIB) * 2 * MIB


def candidates(message: Message, found: Estimate) -> tuple[Candidate, ...]:
    """The ledger's lines and tensors about as large as the request, closest first.

    Exactly: the same segment within the printed digits. Nearly: within 2 %. Requests up to 20 MiB
    name nobody.
    A report without a request is compared with the phases' sums.
    """
    wanted = message.requested or message.allocated or 0
    near: dict[tuple[str, int], Candidate] = {}
    if wanted <= SMALL_BYTES:
        return ()
    for line, phase, amount in requests(found) if message.requested else _sums(found):
        off, asked, lever = amount - wanted, amount, ""
        if message.requested:
            asked, lever = segment(amount), lever_of(line)
        exact = abs(asked - wanted) <= message.precision
        if exact or 100 * abs(off) <= NEAR_PERCENT * wanted:
            named = Candidate(
                line=line, phase=phase, bytes=amount, off_by=off, exact=exact, lever=lever
            )
            near.setdefault((line, amount), named)
    return tuple(sorted(near.values(), key=lambda c: (not c.exact, abs(c.off_by))))[:MAX_CANDIDATES]


def lever_of(line: str) -> str:
    """What makes a line of the ledger, or a tensor that it names, smaller.

    >>> lever_of("fp32 gradients")
    'a smaller sub_group_size under ZeRO-3, or more shards'
    """
    if line == "gradients":
        return "more shards from ZeRO-2 on, --lora-rank"
    return next((lever for word, lever in LEVERS.items() if word in line), _FEWER_TOKENS)


def _sums(found: Estimate) -> Iterator[tuple[str, str, int]]:
    yield "all states", "between steps", found.states.total
    for name, phase in (found.phases or {}).items():
        yield "everything", name, phase.bytes


def requests(found: Estimate) -> Iterator[tuple[str, str, int]]:
    """Everything that a run may ask for in one piece: (line, phase, bytes)."""
    step = "forward+backward"
    phases = [
        *(found.phases or {}).items(),
        *((f"{step}, {instant.instant}", instant) for instant in found.instants),
    ]
    for name, phase in phases:
        yield from ((line.line, name, line.bytes) for line in phase.lines)
    for _, model in found.job.parts():
        yield from _tensors(found.job, model, step)


def _tensors(job: Job, model: Model, step: str) -> Iterator[tuple[str, str, int]]:
    """Single tensors of one rank: states, whole weights and gradients, activations."""
    training = training_of(job, model)
    recipe, optimizer, stack = training.recipe, training.optimizer, job.stack
    for held in stack.handed(training, stack.ranks) if optimizer.states else ():
        for shape, kind, _ in held:
            states = state_bytes(optimizer, shape, recipe.state_dtype, kind=kind)
            state = states // len(optimizer.states)
            yield f"one optimizer state of a shard {list(shape)}", "step", state
    computes = 4 if recipe.name == "fp32" else 2
    loaded = {recipe.itemsize("weights")} if job.load == "gpu" or stack.stage < 3 else set()
    gradient_itemsize = stack.gradient_itemsize(training)
    for tensor in model.tensors:
        for itemsize in loaded | {computes}:
            what = f"whole weight {tensor.name} in {itemsize} bytes"
            yield what, "load or gather", itemsize * tensor.numel
        if tensor.trainable:
            yield f"whole gradient of {tensor.name}", step, gradient_itemsize * tensor.numel
    square = ceil_div(job.seq_len, job.cp) * job.tokens if job.attention == "eager" else 0
    widths = {
        "hidden states": ("hidden_size", job.tokens),
        "MLP intermediate": ("intermediate_size", job.tokens),
        "logits": ("vocab_size", job.tokens),
        "attention scores": ("num_attention_heads", square),
    }
    for name, (field, count) in widths.items():
        width = model.config.get(field)
        amount = count * width if isinstance(width, int) else 0
        for dtype, itemsize in DTYPE_BYTES.items():
            yield f"{name} in {dtype}", step, itemsize * amount


def notes(message: Message) -> tuple[str, ...]:
    """What the figures alone say, one line each, and what they cannot say."""
    requested, allocated = message.requested or 0, message.allocated or 0
    reserved = message.reserved or 0
    unused, own = reserved - allocated, message.in_use or reserved
    others = (message.capacity or 0) - (message.free or 0) - own if message.free is not None else 0
    small = text(requested, "MiB", 0)
    figures = bool(requested or allocated)
    outside = others > UNITS["GiB"] and own > 0
    said = {
        "GB in this message is GiB: 2³⁰ bytes": message.binary_gb,
        "the message has no figures, so it cannot be told what was too much": not figures,
        "a report without a request: compared with the sums of the ledger": (
            allocated > requested == 0
        ),
        f"a request of {small} is any tensor up to 10 MiB: the card was full already": (
            0 < requested <= SMALL_BYTES
        ),
        f"{text(unused, 'GiB', 2)} are reserved and unused, enough but in pieces: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": unused >= requested > 0,
        f"{text(others, 'GiB', 2)} of the card are used outside this process "
        "or by its CUDA context": outside,
        f"{message.failures:,} failures in this text: the first is read": message.failures > 1,
        "the request alone is larger than the card": requested > (message.capacity or requested),
    }
    return tuple(line for line, holds in said.items() if holds)
