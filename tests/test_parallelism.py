"""Slices of a model: tensor, expert and pipeline parallelism, and what shards of them a rank keeps."""

from __future__ import annotations

import pytest

from calc.communication import collectives
from calc.estimate import estimate
from calc.job import Job
from calc.models import load
from calc.models.parts import part, stages
from calc.stacks import choose
from calc.stacks.megatron import Megatron
from calc.stacks.single import Single
from calc.units import InputError
from tests.stacks import kept

LLAMA = load("llama-3.3-70b")
NORMS = 161 * 8192
SOME = [
    "llama-3.3-70b",
    "llama-3.1-8b",
    "mixtral-8x7b-v0.1",
    "deepseek-v3",
    "gpt-oss-20b",
    "qwen3-30b-a3b",
    "gemma-2-9b",
]


def sixteen(num_params: int) -> int:
    return 16 * num_params


def test_tp_8_keeps_an_eighth_and_every_norm() -> None:
    """141.1 GB as under ZeRO-3, and 18.5 MB for the norms that seven of eight ranks keep again."""
    found = kept(Single, part(LLAMA, tp=8), "zero", 1)
    assert found.total == sixteen(LLAMA.num_params) // 8 + sixteen(NORMS) * 7 // 8
    assert sixteen(NORMS) * 7 // 8 == 18_464_768


def test_pp_8_has_its_largest_stage_at_an_end() -> None:
    sizes = [sixteen(part(LLAMA, pp=8, stage=stage).num_params) for stage in range(8)]
    assert sizes.index(max(sizes)) == 7
    assert [round(size / 1e9, 1) for size in sizes] == [153.7, *[136.9] * 6, 153.7]
    assert sum(sizes) == sixteen(LLAMA.num_params)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_stages_hold_every_layer_once(name: str, pp: int) -> None:
    model = load(name)
    found = [part(model, pp=pp, stage=stage) for stage in range(pp)]
    layers = [layer for stage in found for block in stage.blocks for layer in block.layers]
    assert sorted(layers) == list(range(model.num_layers))
    copies = sum(t.numel for t in model.first) if model.tied and pp > 1 else 0
    assert sum(stage.num_params for stage in found) == model.num_params + copies
    assert max(found[stage].num_params for stage in stages(model, pp)) == max(stage.num_params for stage in found)


@pytest.mark.parametrize("name", SOME)
def test_what_is_not_cut_is_what_a_second_rank_keeps_again(name: str) -> None:
    """tp·part − whole = (tp − 1) · what every rank has, for any degree."""
    model = load(name)
    again = {tp: part(model, tp=tp).num_params * tp - model.num_params for tp in (2, 4)}
    assert again[4] - 3 * again[2] in range(-8 * 8192, 8 * 8192)  # vocabularies are rounded up
    assert 0 < again[2] < model.num_params // 50
    names = {t.kind for t, cut in zip(model.tensors, part(model, tp=2).tensors, strict=True) if t.shape == cut.shape}
    assert names <= {"norm", "router", "bias", "linear"}


def test_experts_are_dealt_out_and_as_many_stay_with_a_token() -> None:
    model = load("qwen3-30b-a3b")
    experts = sum(t.count * t.numel for t in model.tensors if t.kind == "expert")
    found = part(model, ep=8)
    assert model.num_params - found.num_params == experts * 7 // 8
    chosen = {int(t.shape[0] * t.active) for t in found.tensors if t.kind == "expert"}
    assert chosen == {int(str(model.config["num_experts_per_tok"]))}


def test_adapters_of_experts_are_dealt_out_with_them() -> None:
    """Their inner dimension has a rank for each expert: 48 layers of 128 experts, 16 of them on a rank."""
    found = estimate(
        Job.of(model=load("qwen3-30b-a3b"), world_size=8, strategy="ddp", recipe="megatron", ep=8, lora_rank=8)
    )
    whole = 8 * ((2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048) + (2048 + 128))  # attention and router
    experts = 16 * 8 * (2 * (2048 + 2 * 768) + (768 + 2048))
    assert found.states.gradients == 4 * 48 * (whole + experts) == 275_447_808


def test_expert_parallelism_needs_experts() -> None:
    with pytest.raises(InputError, match=r"^ep 2 needs a model with experts; meta-llama/Llama-3.1-8B has none$"):
        Job.of(model=load("llama-3.1-8b"), world_size=2, ep=2)


def test_published_megatron_accountings() -> None:
    """Megatron-LM, dist_optimizer.md: 4 + 16/d, 6 + 12/d and 8 + 8/d bytes per parameter."""
    for recipe, whole, divided in (("deepspeed", 4, 16), ("megatron", 6, 12), ("fp32", 8, 8)):
        for ranks in (2, 4, 8):
            found = kept(choose("zero1", recipe), LLAMA, recipe, ranks).total
            exact = (whole + divided / ranks) * LLAMA.num_params
            assert found == pytest.approx(exact, rel=0.03 if recipe == "fp32" else 1e-9)  # torch deals out tensors
    # Megatron-LLM issue 52: 70B over 32 GPUs, 18 bytes per parameter; its 68,976,648,192 are Llama 2's.
    assert round(18 * 68_976_648_192 / 32 / 1e9, 1) == 38.8
    # The last stage counted by hand: twenty layers whose matrices are in eight, the final norm, an eighth of the head.
    matrices = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    last = 20 * (matrices // 8 + 2 * 8192) + 8192 + 128256 * 8192 // 8
    assert kept(Megatron, part(LLAMA, tp=8, pp=4, stage=3), "megatron", 1).total == 18 * last


@pytest.mark.parametrize(
    ("name", "degrees", "said"),
    [
        ("llama-3.3-70b", {"tp": 3}, "tp 3 does not divide num_attention_heads of 64"),
        ("llama-3.3-70b", {"tp": 16}, "tp 16 does not divide num_key_value_heads of 8"),
        ("llama-3.3-70b", {"pp": 81}, "pp 81 is more than the 80 layers"),
        ("mixtral-8x7b-v0.1", {"ep": 3}, "ep 3 does not divide model.layers.*.mlp.experts.gate_up_proj of 8"),
        ("gpt2", {"tp": 2}, "tensor parallelism of .* is not written down"),
        ("70B", {"tp": 2}, "bare count"),
    ],
)
def test_a_degree_that_cuts_nothing_evenly_is_refused(name: str, degrees: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("*.mlp", r"\*.mlp")):
        part(load(name), **degrees)


@pytest.mark.parametrize("groups", [1, 2, 8, 1000])
def test_hsdp_keeps_what_its_shard_group_keeps_at_any_number_of_replicas(groups: int) -> None:
    found = estimate(Job.of(model=LLAMA, world_size=8 * groups, strategy="hsdp", shard_size=8))
    alone = estimate(Job.of(model=LLAMA, world_size=8, strategy="fsdp2"))
    assert (found.states, found.peak, found.one_line) == (alone.states, alone.peak, alone.one_line)
    assert found.states.total == 141_107_412_992


def test_degrees_of_a_run() -> None:
    def states(**degrees: int) -> int:
        return estimate(Job.of(model=LLAMA, world_size=8, **degrees)).states.total  # type: ignore[arg-type]

    assert states(tp=8) == 141_107_412_992 + 18_464_768
    assert states(pp=8) == 153_715_605_504
    assert states(pp=8) > states() == states(cp=8)
    assert Job.of(model=LLAMA, world_size=8, tp=8).strategy == "single"
    assert Job.of(model=LLAMA, world_size=64, tp=8).stack.ranks == 8


def test_a_pipeline_s_first_stage_holds_a_micro_batch_for_every_stage() -> None:
    """Activations of a stage: min(stages from it on, micro-batches) micro-batches (1F1B, arXiv:2104.04473)."""

    def peak(accumulation: int, pp: int = 8) -> int:
        run = Job.of(model=LLAMA, world_size=8, pp=pp, accumulation=accumulation, seq_len=32_768, loss="chunked")
        found = estimate(run)
        assert found.peak
        return found.peak.bytes

    first = 10 * 2 * 8192 * 32_768
    assert peak(8) == peak(64)
    assert peak(8) - peak(4) == 4 * first


def test_parts_of_a_sequence_and_experts_in_a_run() -> None:
    def of(name: str, **settings: object) -> tuple[int, int]:
        found = estimate(Job.of(model=load(name), world_size=16, **settings))  # type: ignore[arg-type]
        assert found.peak
        return found.states.total, found.peak.bytes

    whole, halves = (of("llama-3.3-70b", strategy="fsdp2", seq_len=65_536, cp=cp) for cp in (1, 2))
    assert halves == of("llama-3.3-70b", strategy="fsdp2", seq_len=32_768)
    assert halves[0] == whole[0]
    assert halves[1] < whole[1]
    plain, dealt = (of("mixtral-8x7b-v0.1", strategy="fsdp2", ep=ep) for ep in (1, 8))
    assert dealt[0] == plain[0]  # divided by 16 either way
    assert dealt[1] < plain[1]  # but no longer gathered
    assert of("mixtral-8x7b-v0.1", strategy="zero1", ep=8)[0] < of("mixtral-8x7b-v0.1", strategy="zero1")[0]


def test_hsdp_sends_only_gradient_shards_between_nodes() -> None:
    """Between two nodes: all-reduced fp32 gradients against gathered weights and scattered gradients."""
    run = Job.of(model=LLAMA, world_size=16, strategy="hsdp", accumulation=4)
    inside, outside = [], []
    for found in collectives(run):
        (outside if found.between_nodes(8) else inside).append(found)
    assert [found.what for found in outside] == ["gradient shards between groups"]
    assert sum(found.between_nodes(8) for found in outside) == 4 * 2 * 4 * LLAMA.num_params // 2
    assert sum(found.num_bytes for found in inside) == sum(
        found.num_bytes for found in collectives(Job.of(model=LLAMA, world_size=8, strategy="fsdp2", accumulation=4))
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"world_size": 16, "tp": 16}, "tp 16 does not divide num_key_value_heads"),
        ({"world_size": 8, "pp": 3}, "tp·pp·cp 3 does not divide world_size 8"),
        ({"world_size": 8, "tp": 2, "strategy": "single"}, "'single' takes world_size 2, not 8"),
        ({"world_size": 12, "strategy": "hsdp"}, "shard_size 8 does not divide the 12 ranks"),
        ({"world_size": 8, "shard_size": 4}, "shard_size is a setting of strategy 'hsdp'"),
        ({"world_size": 8, "pp": 0}, "pp must be a whole number from 1"),
    ],
)
def test_bad_degrees(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Job.of(model=LLAMA, **settings)  # type: ignore[arg-type]
