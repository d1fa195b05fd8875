"""A run, its phases and its peak: laws, integers, published measurements, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from calc.estimate import Estimate, estimate
from calc.job import Job
from calc.models import load
from calc.settings import CHOICES, DEFAULTS, SETTINGS, SIZES
from calc.units import InputError

GB, GIB = 10**9, 2**30
LLAMA8, LLAMA70 = load("llama-3.1-8b"), load("llama-3.3-70b")
LLAMA2, LLAMA2_70 = load("llama-2-7b-hf"), load("llama-2-70b-hf")
STRATEGIES = ("zero1", "zero2", "zero3", "fsdp1", "fsdp2", "ddp")


def run(strategy: str = "fsdp2", world_size: int = 8, model: Any = LLAMA8, **settings: Any) -> Job:
    return Job.of(model=model, strategy=strategy, world_size=1 if strategy == "single" else world_size, **settings)


def peak(*args: Any, **settings: Any) -> int:
    found = estimate(run(*args, **settings)).peak
    assert found
    return found.bytes


RUNS = [run(strategy) for strategy in ("single", *STRATEGIES)]
RUNS += [run(recipe="pure-bf16"), run("single", recipe="autocast"), run("zero1", recipe="megatron")]
RUNS += [run(lora_rank=16, base_dtype="nf4"), run("single", lora_rank=16), run("zero3", offload="all")]
RUNS += [run(model=load("mixtral-8x7b-v0.1")), run(model=load("deepseek-v3"), world_size=512)]


def name(run: Job) -> str:
    return f"{run.model.model_type} {run.strategy} {run.recipe} {run.lora_rank} {run.stack.offload}"


@pytest.mark.parametrize("run", RUNS, ids=name)
def test_lines_sum_and_the_peak_is_the_largest_phase(run: Job) -> None:
    found = estimate(run)
    assert found.phases
    assert found.peak
    assert list(found.phases) == ["load", "forward+backward", "step", "save"]
    for phase in (*found.phases.values(), *found.instants):
        assert phase.bytes == sum(line.bytes for line in phase.lines)
        assert all(line.bytes > 0 for line in phase.lines)
        assert len({line.line for line in phase.lines}) == len(phase.lines)
        assert {line.kind for line in phase.lines} <= {"exact", "config", "measured"}
    assert found.peak.bytes == max(phase.bytes for phase in found.phases.values())
    assert found.phases["forward+backward"] == max(found.instants, key=lambda phase: phase.bytes)
    gathering = {"fwd_layers"} if run.strategy in ("fsdp2", "hsdp") else set()
    instants = {phase.instant for phase in found.instants}
    assert instants == {"head_fwd", "head_bwd", "layers_bwd", "root_bwd"} | gathering
    if run.held.name == run.recipe and run.stack.offload == "none":
        step = {line.line: line.bytes for line in found.phases["step"].lines}
        for line in ("weights", "master", "gradients", "optimizer"):
            assert step.get(line, 0) == getattr(found.states, line)


@pytest.mark.parametrize("run", RUNS, ids=name)
def test_the_band_is_never_wider_than_eight_percent_and_two_gigabytes(run: Job) -> None:
    found = estimate(run).peak
    assert found
    assert found.bytes < found.low <= found.high
    assert found.high - found.low <= found.bytes * 8 // 100 + 2 * GB
    assert (found.low - found.bytes) == (300_000_000 if run.world_size == 1 else 660_000_000)


@pytest.mark.parametrize("strategy", ["single", *STRATEGIES])
def test_more_tokens_never_need_less(strategy: str) -> None:
    found = [peak(strategy, seq_len=seq_len) for seq_len in (1, 512, 2048, 8192, 32768)]
    assert found == sorted(found)
    # Twice the sequence or twice the batch: only cosines and sines are by position, and serve the whole batch.
    # They are there at the worst instant, or that is the optimizer's step.
    assert peak(strategy, seq_len=4096) - peak(strategy, seq_len=2048, micro_batch=2) in (0, 2 * 128 * 2 * 2048)
    kept = [peak(strategy, seq_len=8192, checkpointing=how) for how in ("full", "matmuls", "none")]
    assert kept == sorted(kept)


@pytest.mark.parametrize("strategy", ["zero3", "fsdp1", "fsdp2"])
def test_more_gpus_never_need_more_where_everything_is_divided(strategy: str) -> None:
    found = [peak(strategy, count, LLAMA70) for count in (2, 4, 8, 16, 64, 512)]
    assert all(more > fewer for more, fewer in pairwise(found))
    # What is gathered, the logits and the activations do not shrink.
    assert found[-1] > 8 * GB


def test_a_higher_stage_never_keeps_more_and_each_setting_moves_the_peak_as_it_should() -> None:
    staged = [peak(strategy, model=LLAMA70) for strategy in ("ddp", "zero1", "zero2", "zero3")]
    assert staged == sorted(staged, reverse=True)
    base = peak(seq_len=2048)
    assert peak(accumulation=2) > base
    assert peak(accumulation=2, no_sync=True) > peak(accumulation=2)
    assert peak(reshard_after_forward=False) > base
    assert peak(wrap="block+ends") < base
    assert peak(reduce_dtype="bf16") < base
    assert peak(seq_len=32768, loss="chunked") < peak(seq_len=32768)
    copied, view = (estimate(run("ddp", gradient_as_bucket_view=both)).phases for both in (False, True))
    assert copied
    assert view
    assert copied["step"].bytes - view["step"].bytes == 2 * LLAMA8.num_params
    # The buckets stay, so that views of them are there before the backward and while saving.
    assert view["save"].bytes == copied["save"].bytes
    assert peak("ddp", gradient_as_bucket_view=True) < peak("ddp") - 2 * LLAMA8.num_params // 2
    assert peak("single", step="foreach") - peak("single") == pytest.approx(4 * LLAMA8.num_params, rel=0.01)
    once, twice = (estimate(run("zero2", overlap_comm=both)).phases for both in (False, True))
    assert once
    assert twice
    assert twice["forward+backward"].bytes - once["forward+backward"].bytes == 2 * 500_000_000
    assert twice["step"] == once["step"]  # the buckets are freed by then
    assert peak("zero3", stage3_max_live_parameters=0) < peak("zero3")
    assert peak(load="gpu", model=LLAMA70) == 4 * LLAMA70.num_params


def instants(*args: Any, **settings: Any) -> dict[str, int]:
    return {phase.instant: phase.bytes for phase in estimate(run(*args, **settings)).instants}


def test_by_how_many_bytes_a_setting_moves_the_peak() -> None:
    """Llama 3.1 8B on eight GPUs: layers of 218,112,000 elements, a root of embedding, head and a norm of 4,096."""
    params, layer, matrix = LLAMA8.num_params, 218_112_000, 128256 * 4096
    root = 2 * matrix + 4096
    assert params == 32 * layer + root
    base, at = peak(), instants()
    assert base == at["root_bwd"]
    # Gradients of the root are there already, in fp32 over eight.
    assert peak(accumulation=2) - base == 4 * root // 8
    # All gradients whole in fp32, beside the logits of the second micro-batch.
    assert peak(accumulation=2, no_sync=True) - at["head_bwd"] == 4 * params
    # Every layer gathered in 16 bit, and none prefetched.
    assert peak(reshard_after_forward=False) - at["head_bwd"] == 2 * 31 * layer
    # The embedding's 16-bit gradient and its reduction alone: 2 + 4 + 4/8, where the root had 2 + 4; and 4/8 of the
    # head and norm that are reduced already.
    assert peak(wrap="block+ends") - base == (13 * matrix + (matrix + 4096)) // 2 - 6 * root
    # A layer on its way in bf16, and then the layers' backward is the worst.
    assert peak(reduce_dtype="bf16") == at["layers_bwd"] - 2 * layer
    long, fused = instants(seq_len=32768), instants(seq_len=32768, loss="chunked")
    assert fused["layers_bwd"] == long["layers_bwd"] == peak(seq_len=32768, loss="chunked")
    assert peak(seq_len=32768) == long["head_bwd"]
    # foreach: 4 bytes of temporaries a parameter, and no gradient of the last layer's input.
    assert peak("single", step="foreach") - peak("single") == 4 * params - 2 * 2048 * 4096
    # DeepSpeed: 10⁹ live elements and what is prefetched, or the largest matrix instead of them.
    live, least = instants("zero3"), instants("zero3", stage3_max_live_parameters=0)
    assert {live[name] - least[name] for name in live} == {2 * (10**9 - matrix)}
    assert peak("zero3") == live["head_bwd"]


def test_without_a_sync_a_head_of_its_own_keeps_one_shard_of_gradients() -> None:
    """Only the last micro-batch reduces, whatever the micro-batches before it were."""
    for strategy in ("fsdp1", "fsdp2"):
        words: dict[str, Any] = {"wrap": "block+ends", "no_sync": True, "checkpointing": "none", "loss": "chunked"}
        two, eight = (
            lines_of(estimate(run(strategy, accumulation=count, **words)), "forward+backward") for count in (2, 8)
        )
        assert two.get("gradients", 0) == eight.get("gradients", 0), strategy


def lines_of(found: Estimate, phase: str) -> dict[str, int]:
    assert found.phases
    return {line.line: line.bytes for line in found.phases[phase].lines}


def test_the_70b_on_eight_gpus_line_by_line() -> None:
    """Layers' backward: 16 bytes over eight, what is gathered, and what is on its way to be reduced."""
    found = estimate(run(model=LLAMA70))
    block, ends, head = 855_654_400, 2 * 128256 * 8192 + 8192, 128256 * 8192
    assert lines_of(found, "forward+backward") == {
        "weights": LLAMA70.num_params // 2,
        "optimizer": LLAMA70.num_params,
        "gradients": 78 * block // 2,
        "gathered layer": 2 * block,
        "prefetched unit": 2 * block,
        "gathered root": 2 * ends,
        "head gradient": 2 * head,
        "reduce-scatter input": 4 * block,
        "saved activations": 2048 * (2 * 2 * 8192 + 16 + 4 * 128),
        "recomputed layer": 2048 * (6 * 8192 + 4),
        "activation gradients": 2048 * 20 * 8192,
        "layer gradients": 2 * block,
    }


def sub_group(model: Any, ranks: int, size: int) -> int:
    """Elements of the largest sub-group, written down once more: it closes at the tensor that reaches `size`."""
    (block,) = model.blocks
    layers = [tensor for _ in range(model.num_layers) for tensor in block.tensors]
    groups, filled = [0], True
    for tensor in (*model.first, *layers, *model.last):
        groups += [0] * filled
        groups[-1] += tensor.numel // ranks
        filled = groups[-1] >= size
    return max(groups)


def test_llama_8b_on_four_gpus_makes_fp32_gradients_in_two_sub_groups() -> None:
    found = lines_of(estimate(run("zero3", 4)), "step")
    assert found["fp32 gradients"] == 4_015_140_864 == 4 * sub_group(LLAMA8, 4, 10**9)


def test_zero_has_the_phases_of_deepspeed_and_its_own_states() -> None:
    for strategy in ("zero1", "zero2", "zero3"):
        zero, deepspeed = (estimate(run(strategy, recipe=recipe)) for recipe in ("zero", "deepspeed"))
        assert zero.phases == deepspeed.phases
        assert zero.states.total < deepspeed.states.total
    # Stage 3 makes fp32 gradients for one sub-group at a time, the others for all they have.
    share = LLAMA70.num_params // 8
    eight = estimate(run("zero3", model=LLAMA70))
    assert lines_of(eight, "step")["fp32 gradients"] == 4 * sub_group(LLAMA70, 8, 10**9)
    assert lines_of(estimate(run("zero3", model=LLAMA70, sub_group_size=10**12)), "step")["fp32 gradients"] == 4 * share
    assert lines_of(estimate(run("zero2", model=LLAMA70)), "step")["fp32 gradients"] == 4 * share


def test_offload_moves_lines_to_the_host() -> None:
    on, off = estimate(run("zero3", model=LLAMA70)), estimate(run("zero3", model=LLAMA70, offload="optimizer"))
    assert (off.states.weights, off.states.total) == (on.states.weights, on.states.weights)
    assert off.one_line.total == on.one_line.total - 14 * LLAMA70.num_params // 8  # type: ignore[operator]
    params = LLAMA70.num_params  # all of them are on the one node
    assert off.host_per_node_bytes == 18 * params
    assert estimate(run("zero3", model=LLAMA70, offload="all")).host_per_node_bytes == 20 * params
    # Before stage 3: updated weights in 16 bit, one gradient in transit on either side, and a sum of several.
    two, largest = run("zero2", model=LLAMA70, offload="optimizer"), 128256 * 8192
    assert estimate(two).host_per_node_bytes == 18 * params + 8 * 2 * largest
    assert estimate(two.but(accumulation=2)).host_per_node_bytes == 20 * params + 8 * 2 * largest
    assert lines_of(estimate(two), "step")["offload buffer"] == 2 * largest
    assert "offload buffer" not in lines_of(off, "step")
    # NVMe: the GPU as with everything on the host, which keeps 16-bit gradients, 10⁹ weights and the buffers.
    disk, group = estimate(run("zero3", model=LLAMA70, offload="nvme", load="gpu")), sub_group(LLAMA70, 8, 10**9)
    assert disk.phases == estimate(run("zero3", model=LLAMA70, offload="all", load="gpu")).phases
    assert disk.host_per_node_bytes == 2 * params + 8 * (2 * 10**9 + 10**9 + (2 + 16) * group)
    assert estimate(run("fsdp2", model=LLAMA70, offload="all", load="gpu")).host_per_node_bytes == 16 * params
    paged = estimate(run("fsdp1", recipe="pure-bf16", optimizer="paged-adamw8bit", load="gpu"))
    assert "optimizer" not in lines_of(paged, "step")
    assert paged.host_per_node_bytes == 8 * paged.states.optimizer
    for other in (run("zero2", optimizer="paged-adamw8bit", load="gpu"), paged.job.but(strategy="ddp", pp=2)):
        found = estimate(other)  # of the fullest stage where there are several
        assert found.host_per_node_bytes == 8 * found.states.optimizer
    # The gradient in transit is one that trains.
    adapters = estimate(run("zero2", offload="optimizer", load="gpu", lora_rank=16))
    assert adapters.host_per_node_bytes == 18 * adapters.model.num_trainable + 8 * 2 * 14336 * 16
    assert lines_of(adapters, "step")["offload buffer"] == 2 * 14336 * 16
    # On NVMe a share below 10⁹ weights is one sub-group, and all of its weights stay in memory.
    small = load("llama-3.2-3b")
    assert estimate(run("zero3", model=small, offload="nvme", load="gpu")).host_per_node_bytes == (
        (2 + 2 + 16) * small.num_params + 8 * 10**9
    )


def test_nf4_gathers_packed_weights_and_unpacks_one_matrix() -> None:
    def in_backward(base_dtype: str) -> dict[str, int]:
        found = estimate(run(lora_rank=16, base_dtype=base_dtype, checkpointing="none", seq_len=64))
        (phase,) = (phase for phase in found.instants if phase.instant == "layers_bwd")
        return {line.line: line.bytes for line in phase.lines}

    plain, found, double = in_backward("bf16"), in_backward("nf4"), in_backward("nf4-double")
    linear = 218_103_808  # the seven matrices of a layer
    adapters = 16 * (2 * (H + H) + 2 * (H + 1024) + 3 * (H + 14336))
    assert plain["gathered layer"] == 2 * (linear + adapters + 2 * H)
    assert found["gathered layer"] == linear // 2 + 2 * (adapters + 2 * H)
    assert found["dequantised matrix"] == 2 * 14336 * H
    # One gathered unit or one matrix is the same with quantised scales; what stays on each rank is not.
    assert double["gathered layer"] == found["gathered layer"]


def test_scales_of_nf4_stay_on_the_gpu_when_the_base_is_offloaded() -> None:
    away = estimate(run("fsdp1", model=LLAMA70, lora_rank=16, base_dtype="nf4", recipe="pure-bf16", offload="all"))
    matrices = LLAMA70.num_params - 2 * 128256 * 8192 - 161 * 8192
    assert away.states.weights == matrices // 16 + 64 * 7 * 80
    assert away.states.total == away.states.weights


@pytest.mark.parametrize(("base", "bytes_per_element"), [("nf4", 0.5625), ("nf4-double", 0.515869)])
def test_nf4_scales_are_fp32_unless_they_are_quantised_too(base: str, bytes_per_element: float) -> None:
    """bitsandbytes' default is single; a 70B base of linear layers and the 16-bit rest, to the byte."""
    kept = estimate(Job.of(model=LLAMA70, recipe="pure-bf16", lora_rank=16, base_dtype=base)).states.weights
    ends, norms, adapters = 2 * 128256 * 8192, 161 * 8192, 207_093_760
    matrices = LLAMA70.num_params - ends - norms
    # A code book of 16 fp32 per matrix; with quantised scales one of 256 fp32 and an fp32 offset more.
    books = 80 * 7 * (64 if base == "nf4" else 64 + 1024 + 4)
    linear = kept - 2 * (ends + norms + adapters) - books
    assert linear == pytest.approx(bytes_per_element * matrices, rel=1e-6)
    assert linear == matrices // 2 + (matrices // 16 if base == "nf4" else matrices // 64 + matrices // 64 // 64)


H = 4096


def test_a_bare_count_and_an_unknown_architecture_have_no_phases_and_say_so() -> None:
    for model in (load("70B"), load("gpt2")):
        found = estimate(Job.of(model=model, world_size=8))
        assert (found.phases, found.peak, found.instants) == (None, None, ())
        assert found.states.total > 0
        assert any("phases and the peak are not computed" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("settings", "value", "unit"),
    [
        # Llama-2-7B, one GPU, two sequences of at most 512 tokens (torchao's benchmark, torchtune recipe).
        ({"recipe": "pure-bf16", "micro_batch": 2, "seq_len": 512}, 51.6, GIB),
        ({"recipe": "pure-bf16", "micro_batch": 2, "seq_len": 512, "optimizer": "adamw8bit"}, 39.3, GIB),
        # LOMO's table 1: fp16 with an fp32 master copy, eight sequences of 512.
        ({"micro_batch": 8, "seq_len": 512}, 102.2, GIB),
    ],
)
def test_measured_on_one_gpu(settings: dict[str, Any], value: float, unit: int) -> None:
    """Readings of the allocator's reserved bytes, so without the context: from the peak to its high."""
    found = estimate(Job.of(model=LLAMA2, **settings)).peak
    assert found
    assert found.bytes <= value * unit <= found.high


def test_measured_lora_of_70b_on_eight_gpus() -> None:
    """PEFT's guide: 72 to 80 GB with FSDP, an fp32 base, rank 8, eight sequences of 2,048."""
    settings = {"lora_rank": 8, "base_dtype": "fp32", "micro_batch": 8, "model": LLAMA2_70}
    found = estimate(run("fsdp1", **settings)).peak
    assert found
    assert found.low <= 72 * GB <= found.high


def test_without_a_sync_whole_gradients_are_kept() -> None:
    kept = lines_of(estimate(run(accumulation=2, no_sync=True, seq_len=8192)), "forward+backward")
    assert kept["gradients accumulated whole"] == 4 * LLAMA8.num_params
    once = estimate(run(accumulation=1, no_sync=True))
    assert once.phases == estimate(run()).phases


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 0}, "seq_len must be a whole number from 1 to 100,000,000, not 0"),
        ({"micro_batch": -1}, "micro_batch must be a whole number from 1 to 1,000,000, not -1"),
        ({"accumulation": 1.5}, "accumulation must be a whole number"),
        ({"lora_rank": 5000}, "rank 5000 is larger than the smallest dimension of the targets, 1024"),
        ({"base_dtype": "nf4"}, "base_dtype 'nf4' is for a frozen base: give lora_rank as well"),
        ({"offload": "optimizer"}, "offload 'optimizer' does not exist under strategy 'fsdp2'"),
        ({"strategy": "ddp", "offload": "all"}, "allowed: none"),
        ({"strategy": "zero2", "offload": "all"}, "allowed: none, optimizer"),
        ({"offload": "nvme"}, "allowed: none, all"),
        ({"checkpointing": "ful"}, "unknown checkpointing 'ful'; did you mean 'full'?"),
        ({"strategy": "ddp", "wrap": "block+ends"}, "wrap is a setting of FSDP; strategy 'ddp' has none"),
        ({"strategy": "zero3", "no_sync": True}, "no_sync is a setting of FSDP; strategy 'zero3' has none"),
        ({"overlap_comm": True}, "overlap_comm is a setting of DeepSpeed; strategy 'fsdp2' has none"),
        ({"overlap_comm": True}, "; strategies that have it: zero1, zero2, zero3"),
        ({"strategy": "single", "no_sync": True}, "; strategies that have it: fsdp1, fsdp2, hsdp"),
        ({"gradient_as_bucket_view": True}, "gradient_as_bucket_view is a setting of DDP; strategy 'fsdp2' has none"),
        ({"strategy": "single", "gradient_as_bucket_view": True}, "; strategies that have it: ddp, zero1"),
        ({"no_sync": 1}, "no_sync must be true or false, not 1"),
        ({"strategy": "zero3", "reduce_dtype": "fp32"}, "reduce_dtype is a setting of FSDP"),
        ({"strategy": "zero3", "reduce_bucket_size": 0}, "reduce_bucket_size must be a whole number from 1"),
    ],
)
def test_bad_input_is_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        estimate(run(**settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_setting_has_a_default_that_is_allowed_and_can_be_given_again() -> None:
    for each in RUNS:
        assert each.but() == each
        for field, allowed in CHOICES.items():
            assert each.settings[field] in allowed
        assert each.settings.keys() == DEFAULTS.keys()
    assert {*SIZES, *SETTINGS, *CHOICES} <= {*DEFAULTS}
    assert [field for field, (least, _) in SIZES.items() if not least] == [
        *("lora_rank", "stage3_max_live_parameters", "stage3_prefetch_bucket_size", "shard_size")
    ]


@pytest.mark.parametrize(("world_size", "host"), [(2, 2), (16, 8)])
def test_no_more_gpus_share_a_host_than_there_are(world_size: int, host: int) -> None:
    told = estimate(run(world_size=world_size)).assumptions
    assert any(line.endswith(f"; GPUs per host: {host}") for line in told)


def test_megatron_s_gradients_are_a_buffer_that_is_always_there() -> None:
    found = estimate(run("zero1", recipe="megatron"))
    assert found.phases
    for phase in (*found.instants, found.phases["step"]):
        lines = {line.line: line.bytes for line in phase.lines}
        assert lines["gradients"] == 4 * LLAMA8.num_params
        assert "gradient buckets" not in lines


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_the_step_s_temporaries_are_of_what_a_rank_has_of_experts_and_the_rest(ep: int) -> None:
    found = estimate(run(model=load("qwen3-30b-a3b"), ep=ep, step="foreach"))
    assert lines_of(found, "step")["step temporaries"] == found.states.optimizer // 2


def test_experts_that_are_divided_already_are_filled_up_to_fewer_ranks() -> None:
    model = load("mixtral-8x7b-v0.1")
    expert = 3 * 4096 * 14336
    rest = model.blocks[0].numel - 8 * expert + (16 - 8) * 4096  # the router's rows are filled up too
    for ep, room in ((1, 16), (4, 4), (8, 2)):  # a rank's 8/ep experts, on 16/ep ranks
        gathered = lines_of(estimate(run(model=model, world_size=16, ep=ep)), "forward+backward")["gathered layer"]
        assert gathered == 2 * (rest + room * expert)


MIXTRAL = {"model": load("mixtral-8x7b-v0.1")}


@pytest.mark.parametrize(
    ("words", "said", "not_said"),
    [
        ("DDP holds everything", [{"strategy": "ddp"}], [{}, {"strategy": "zero1"}]),
        ("the paper's accounting", [{"strategy": "zero3"}], [{"strategy": "zero3", "recipe": "deepspeed"}, {}]),
        ("DeepSpeed's own count", [{"strategy": "zero3", "recipe": "deepspeed"}], [{"strategy": "zero3"}, {}]),
        ("one sub-group at a time", [{"strategy": "zero3"}], [{"strategy": "zero2"}, {}]),
        ("one flat partition", [{"strategy": "zero1"}, {"strategy": "zero2"}], [{"strategy": "zero3"}, {}]),
        (
            "peft's own default",
            [{"lora_rank": 8, "recipe": "pure-bf16"}],
            [{"lora_rank": 8}, {"strategy": "ddp", "lora_rank": 8, "recipe": "autocast"}, {"recipe": "pure-bf16"}],
        ),
        (
            "DeepSpeed's optimizer on the host",
            [{"strategy": "zero3", "offload": "all"}, {"strategy": "zero2", "offload": "optimizer"}],
            [{"strategy": "zero3", "offload": "nvme"}, {"strategy": "zero3"}, {"offload": "all"}],
        ),
        ("tp 2: ", [{"tp": 2}], [{}, {"pp": 2}]),
        (
            "8 experts on 16 ranks",
            [MIXTRAL | {"world_size": 16}, MIXTRAL | {"world_size": 32, "strategy": "hsdp", "shard_size": 16}],
            [MIXTRAL | {"world_size": 16, "strategy": "zero3"}, MIXTRAL | {"world_size": 16, "strategy": "hsdp"}],
        ),
        ("2 experts on 4 ranks", [MIXTRAL | {"world_size": 16, "ep": 4}], [MIXTRAL | {"world_size": 16}]),
        ("experts on", [MIXTRAL | {"world_size": 9}], [MIXTRAL, {"world_size": 2048}]),
    ],
)
def test_an_assumption_is_told_where_it_holds_and_nowhere_else(
    words: str, said: list[dict[str, Any]], not_said: list[dict[str, Any]]
) -> None:
    for settings in said:
        assert any(words in line for line in estimate(run(**settings)).assumptions), settings
    for settings in not_said:
        assert not any(words in line for line in estimate(run(**settings)).assumptions), settings


def test_assumptions_name_the_choices_first() -> None:
    lines = estimate(run(lora_rank=16, base_dtype="nf4")).assumptions
    assert lines[0] == "strategy fsdp2, recipe fsdp2-mixed, optimizer adamw"
    text = " ".join(lines)
    for words in ("checkpointing full", "sdpa attention", "upcast to fp32", "step fused", "nf4, its scales in fp32"):
        assert words in text
    assert "not been measured on a GPU" in text
    assert "falls back to eager" in " ".join(estimate(run(model=load("gemma-2-9b"))).assumptions)
