"""`calc.models`: counts against what transformers, peft and the Hub say, laws of tensor lists, and bad input."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calc import models
from calc.models import Model, Tensor, from_config, load, with_adapters
from calc.models.families import FAMILIES
from calc.units import InputError

RECORD = json.loads((Path(__file__).parent / "oracle/recorded/models.json").read_text("utf-8"))["models"]
KNOWN = {record["id"]: record for record in models.known()}

LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def changed(base: Mapping[str, Any] = LLAMA, /, **fields: Any) -> Model:
    return from_config({**base, **fields}, "changed")


# Against others.


@pytest.mark.parametrize("model_id", KNOWN)
def test_total_and_active_count_are_what_the_meta_device_holds(model_id: str) -> None:
    model, recorded = load(model_id), RECORD[model_id]
    assert (model.num_params, model.num_active) == (recorded["params_total"], recorded["params_active"])
    singles = sum(t.count for t in model.tensors)
    assert singles == recorded["num_tensors"]


@pytest.mark.parametrize("model_id", [name for name, row in RECORD.items() if "lora_rank_16" in row])
def test_lora_on_all_linear_layers_has_pefts_count(model_id: str) -> None:
    assert with_adapters(load(model_id), rank=16).num_trainable == RECORD[model_id]["lora_rank_16"]


@pytest.mark.parametrize("model_id", [name for name, record in KNOWN.items() if "hub" in record])
def test_the_hubs_total_is_the_count_and_the_named_differences(model_id: str) -> None:
    hub = KNOWN[model_id]["hub"]
    difference = hub["total"] - load(model_id).num_params
    if model_id == "deepseek-ai/DeepSeek-V4-Flash":  # its difference was not decomposed
        assert difference == 6_612_386_171
    else:
        assert difference == sum(hub.get("difference", {}).values())


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        pytest.param("llama-3.1-8b", 8_030_261_248, 8_030_261_248, id="Llama 3.1 8B, Hub"),
        pytest.param("llama-3.3-70b", 70_553_706_496, 70_553_706_496, id="Llama 3.3 70B, Hub"),
        pytest.param("llama-3.1-405b", 405_853_388_800, 405_853_388_800, id="Llama 3.1 405B, Hub"),
        pytest.param("mixtral-8x7b-v0.1", 46_702_792_704, 12_879_925_248, id="Mixtral 8x7B, Hub"),
        pytest.param("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, id="Qwen3 30B A3B, keras-hub"),
        pytest.param("gpt-oss-20b", 20_914_757_184, 4_187_440_704, id="gpt-oss 20B, Hub"),
        pytest.param("deepseek-v3", 671_026_404_352, 37_552_282_624, id="DeepSeek-V3 without MTP, Hub"),
        pytest.param("gpt2", 124_439_808, 124_439_808, id="GPT-2, paper's 124M"),
    ],
)
def test_published_counts(name: str, total: int, active: int) -> None:
    assert (load(name).num_params, load(name).num_active) == (total, active)


@pytest.mark.parametrize(
    ("name", "rank", "targets", "count"),
    [
        ("llama-3.1-8b", 8, "all-linear", 20_971_520),
        ("llama-3.1-8b", 16, "all-linear", 41_943_040),
        ("llama-3.1-8b", 64, "ALL-LINEAR", 167_772_160),
        ("llama-3.1-8b", 16, ("q_proj", "v_proj"), 6_815_744),
        ("llama-3.3-70b", 16, "all-linear", 207_093_760),
        ("llama-3.3-70b", 16, ("self_attn.q_proj", "v_proj"), 32_768_000),
    ],
)
def test_lora_counts_that_peft_gives(name: str, rank: int, targets: str | tuple[str, ...], count: int) -> None:
    assert with_adapters(load(name), rank=rank, targets=targets).num_trainable == count


# Laws.


@pytest.mark.parametrize("model_id", KNOWN)
def test_blocks_partition_the_layers_and_tensors_sum_to_the_count(model_id: str) -> None:
    model = load(model_id)
    blocks = {layer: block for block in model.blocks for layer in block.layers}
    assert sorted(blocks) == list(range(model.num_layers))
    assert model.num_layers == model.config["num_hidden_layers"]
    assert sum(len(block.layers) for block in model.blocks) == len(blocks)
    ends = sum(t.numel * t.count for t in (*model.first, *model.last))
    assert sum(t.numel * t.count for t in model.tensors) == model.num_params
    assert model.num_params == ends + sum(block.numel for block in blocks.values())
    assert model.largest_block.numel == max(block.numel for block in blocks.values())
    assert len({(t.name, t.shape) for t in model.tensors}) == len(model.tensors)
    assert any(t.name == "lm_head.weight" for t in model.last) is not model.tied
    has_experts = any(t.kind == "expert" for t in model.tensors)
    assert (model.num_active < model.num_params) is has_experts
    assert model.num_trainable == model.num_params


sizes = st.integers(1, 48)
llamas = st.fixed_dictionaries(
    {
        "model_type": st.just("llama"),
        "hidden_size": st.just(96),
        "intermediate_size": st.integers(1, 500),
        "num_hidden_layers": st.integers(1, 40),
        "num_attention_heads": st.sampled_from([8, 16, 32]),
        "num_key_value_heads": st.sampled_from([1, 2, 8]),
        "vocab_size": st.integers(1, 5000),
        "head_dim": sizes,
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
    }
)


@given(llamas)
def test_a_llama_is_its_closed_form(config: dict[str, Any]) -> None:
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    attention = 2 * hidden * (query + kv) + config["attention_bias"] * (query + 2 * kv + hidden)
    mlp = 3 * hidden * inner + config["mlp_bias"] * (2 * inner + hidden)
    untied, tied = (from_config({**config, "tie_word_embeddings": tie}, "drawn") for tie in (False, True))
    assert untied.num_params == layers * (attention + mlp + 2 * hidden) + hidden + 2 * hidden * config["vocab_size"]
    assert untied.num_params - tied.num_params == hidden * config["vocab_size"]


@given(llamas, st.integers(1, 8))
def test_lora_is_rank_times_in_plus_out_and_freezes_the_rest(config: dict[str, Any], rank: int) -> None:
    base = from_config({**config, "intermediate_size": 64, "head_dim": 8}, "drawn")
    adapted = with_adapters(base, rank=rank)
    linear = [t for block in base.blocks for t in block.tensors if t.kind == "linear"]
    assert adapted.num_trainable == base.num_layers * sum(rank * sum(t.shape) for t in linear)
    assert adapted.num_params - adapted.num_trainable == base.num_params
    assert all(t.trainable is (t.kind == "adapter") for t in adapted.tensors)


@given(st.integers(1, 16), st.integers(1, 16))
def test_more_experts_per_token_use_more_until_all_are_used(chosen: int, experts: int) -> None:
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": experts}
    if chosen > experts:
        with pytest.raises(InputError, match="num_experts_per_tok"):
            changed(mixtral, num_experts_per_tok=chosen)
        return
    model = changed(mixtral, num_experts_per_tok=chosen)
    routed = sum(t.numel * t.count for t in model.tensors if t.kind == "expert")
    assert model.num_params - model.num_active == routed - Fraction(routed * chosen, experts)


def test_a_tensor_counts_its_elements() -> None:
    assert Tensor(name="w", shape=(3, 5, 7), count=4).numel == math.prod((3, 5, 7))


# Configs.


def test_a_multimodal_config_gives_its_text_model() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "model_type"}
    pixtral = {"model_type": "mistral3", "text_config": text, "vision_config": {}, "tie_word_embeddings": True}
    model = from_config(pixtral, "pixtral")
    assert (model.model_type, model.tied) == ("mistral", True)
    assert "vision" in model.assumptions[0]
    assert from_config({**pixtral, "text_config": {**text, "tie_word_embeddings": False}}, "own word").tied is False


def test_gemma_3_leaves_fields_to_the_defaults_of_transformers() -> None:
    """As google/gemma-3-4b-it's own file does; secondary: its text_config has no vocab_size and no head counts."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    model = from_config({"model_type": "gemma3", "text_config": text}, "gemma")
    assert model.num_params == load("gemma-3-4b-it").num_params == 3_880_263_168
    assert "vocab_size=262208" in model.assumptions[-1]


def test_absent_fields_are_listed_with_what_they_were_taken_as() -> None:
    (line,) = changed().assumptions
    assert line.startswith("absent from the config")
    assert all(word in line for word in ("head_dim=128", "attention_bias=false", "tie_word_embeddings=false"))
    assert changed(head_dim=128, attention_bias=False, mlp_bias=False, tie_word_embeddings=False).assumptions == ()


def test_what_is_left_out_of_the_count_is_said() -> None:
    notes = " ".join(changed(num_nextn_predict_layers=1, quantization_config={"bits": 4}).assumptions)
    assert "multi-token-prediction" in notes
    assert "quantisation" in notes


def test_a_family_with_shared_experts_may_have_none() -> None:
    some, none = (changed(model_type="deepseek_v3", n_shared_experts=number) for number in (1, 0))
    assert some.num_params - none.num_params == 29 * 3 * 4096 * 2048  # layers with experts
    assert not any("shared" in tensor.name for tensor in none.tensors)


def test_every_config_says_the_usual_sizes() -> None:
    for name in ("gpt2", "falcon-7b", "llama-3.1-8b", "gemma-4-31b-it"):
        config = load(name).config
        usual = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
        assert all(isinstance(config[field], int) for field in usual)
    assert load("gpt2").config["intermediate_size"] == 3072
    assert load("falcon-7b").config["num_key_value_heads"] == 1
    with pytest.raises(TypeError):
        load("gpt2").config["hidden_size"] = 1  # type: ignore[index]


def test_kinds_of_layers() -> None:
    kinds = {name: [(b.name, b.attention, b.mlp, len(b.layers)) for b in load(name).blocks] for name in KNOWN}
    assert kinds["meta-llama/Llama-3.1-8B"] == [("dense", "full", "swiglu", 32)]
    assert kinds["Qwen/Qwen3.5-9B"] == [
        ("linear_attention", "linear", "swiglu", 24),
        ("full_attention", "full", "swiglu", 8),
    ]
    assert kinds["deepseek-ai/DeepSeek-V3"] == [("dense", "mla", "swiglu", 3), ("moe", "mla", "moe", 58)]
    assert kinds["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"] == [
        ("linear_attention", "linear", "none", 23),
        ("moe", "none", "moe", 23),
        ("full_attention", "full", "none", 6),
    ]
    assert {row[1] for rows in kinds.values() for row in rows} == {"full", "sliding", "mla", "linear", "none"}
    assert {row[2] for rows in kinds.values() for row in rows} == {"swiglu", "geglu", "gelu", "moe", "none"}


# Names, paths and counts.


def test_every_known_model_answers_to_its_id_and_its_short_name() -> None:
    short = [record["name"] for record in models.known()]
    assert len(set(short)) == len(set(KNOWN)) == len(short) == 66
    for model_id, record in KNOWN.items():
        last = model_id.split("/")[1]
        assert record["name"] == last.lower().replace("-instruct", "")
        for name in (model_id, model_id.upper(), record["name"], last, f" {last} "):
            assert load(name) is load(model_id)
    assert load("meta-llama/Llama-3.1-8B-Instruct").name == "meta-llama/Llama-3.1-8B"


def test_every_known_model_says_where_it_comes_from() -> None:
    for record in models.known():
        assert record["source"]
        assert record["released"].endswith(", from memory")
        if "hub" in record:
            assert record["hub"]["source"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("70B", 70 * 10**9),
        ("8.03B", 8_030_000_000),
        ("7.5e9", 7_500_000_000),
        ("70553706496", 70_553_706_496),
        ("70,553,706,496", 70_553_706_496),
        ("1T", 10**12),
        ("500m", 5 * 10**8),
        ("1", 1),
        ("1000T", 10**15),
    ],
)
def test_a_bare_count_is_exact(text: str, count: int) -> None:
    model = load(text)
    assert (model.num_params, model.num_active, model.name) == (count, count, text)
    assert (model.has_architecture, model.num_layers, model.blocks, dict(model.config)) == (False, 0, (), {})
    assert "bare count" in model.assumptions[0]


@pytest.mark.parametrize("text", ["0", "-70B", "0.5", "1001T", "1e99", "-1", "1.0000000001B", "0B"])
def test_an_impossible_count_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"from 1 to 10\^15, not '"):
        load(text)


@pytest.mark.parametrize(
    "text", ["", "lama-3.1-8b", "70Q", "nan", "1e400", "9" * 5000, "a\0b", "x" * 5000, "~nobody/x"]
)
def test_an_unknown_model_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        load(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_nearest_known_name_is_offered() -> None:
    with pytest.raises(InputError, match=r"did you mean 'llama-3\.1-8b'"):
        load("lama-3.1-8b")


def test_a_config_is_read_from_its_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        assert load(str(path)).num_params == 8_030_261_248


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"model_type": "llama", "hidden_s', "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[]", "does not hold a JSON object"),
        (b"null", "does not hold a JSON object"),
        (b" " * 1_000_001, "larger than 1 MB"),
        (b"{}", "model_type is missing"),
        (b'{"model_type": 5}', "model_type is missing"),
        (b'{"model_type": "gemma3", "text_config": null}', "unknown model_type 'gemma3'.*gemma3_text"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load(str(file))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_config_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "no" / "config.json"):
        with pytest.raises(InputError, match=r"cannot read .*config\.json: No such file"):
            load(str(path))


# Fields.


@pytest.mark.parametrize("field", [name for name in LLAMA if name not in ("model_type", "num_key_value_heads")])
def test_a_missing_or_null_field_is_named(field: str) -> None:
    with pytest.raises(InputError, match=f"^{field} is missing"):
        from_config({name: value for name, value in LLAMA.items() if name != field}, "less")
    with pytest.raises(InputError, match=f"^{field} must be a whole number, not null"):
        changed(**{field: None})


@pytest.mark.parametrize(
    "value", [0, -1, 10**7 + 1, 10**18, 4096.0, float("nan"), float("inf"), "4096", [4096], {}, True]
)
@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size", "num_key_value_heads", "head_dim"])
def test_an_impossible_size_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{field} must be a whole number") as caught:
        changed(**{field: value})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "lama"}, r"unknown model_type 'lama'; did you mean 'llama'\? .*qwen3_moe.*or give the number"),
        ({"hidden_size": 100}, "hidden_size 100 must be a multiple of num_attention_heads 32"),
        ({"num_key_value_heads": 5}, "num_attention_heads 32 must be a multiple of num_key_value_heads 5"),
        ({"num_hidden_layers": 10**4 + 1}, "num_hidden_layers must be a whole number from 1 to 10,000"),
        ({"attention_bias": 1}, "attention_bias must be true or false, not 1"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings must be true or false, not null"),
        ({"per_layer_config": {"0": {"head_dim": 1}}}, "per_layer_config is not supported"),
        ({"model_type": "qwen3", "head_dim": None}, "head_dim must be a whole number, not null"),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention"]},
            "layer_types must have one entry for each of the 32",
        ),
        ({"model_type": "qwen3", "layer_types": ["dense"] * 32}, "unknown layer_types 'dense'"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1.5]}, "mlp_only_layers must be a whole number"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "mlp_only_layers must be a list of layer numbers, not 3"),
        ({"model_type": "nemotron_h"}, "the config must say the kind of each layer in layers_block_type"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M" * 31 + "x"},
            "unknown hybrid_override_pattern 'x'",
        ),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 33}, "num_kv_shared_layers must be .* from 0 to 32"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 28}, "leaves a kind of attention without keys"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "no_rope_layers must be a list with one entry"),
        ({"model_type": "gpt2", "n_embd": 7}, "hidden_size 4096|multiple"),
    ],
)
def test_an_impossible_config_is_explained(fields: dict[str, Any], message: str) -> None:
    if fields.get("model_type") == "gpt2":
        fields = {"model_type": "gpt2", "n_embd": 7, "n_layer": 1, "n_head": 2, "vocab_size": 9}
        with pytest.raises(InputError, match="hidden_size 7 must be a multiple of num_attention_heads 2"):
            from_config(fields, "gpt2")
        return
    with pytest.raises(InputError, match=message):
        changed(**fields)


def test_the_largest_number_of_layers_is_counted() -> None:
    assert changed(num_hidden_layers=10**4).num_layers == 10**4


plain = st.sampled_from([None, True, False, 0, 1, 2, 3, 8, 96, -1, 2.5, math.nan, "", "ME*-", "FSSF", "0", {}])
kinds = st.sampled_from(
    ["full_attention", "sliding_attention", "linear_attention", "moe", "sparse", "full", 0, 4, None]
)
anything = plain | st.lists(plain, max_size=5) | st.lists(kinds, min_size=4, max_size=4)
FIELDS = sorted({name for family in FAMILIES.values() for name in family.defaults} | set(LLAMA))


@settings(max_examples=300)
@given(st.sampled_from(models.architectures()), st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4))
def test_whatever_a_config_says_there_is_a_count_or_one_line(model_type: str, fields: dict[str, Any]) -> None:
    small = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 8}
    base = {**small, "vocab_size": 100, "num_key_value_heads": 2, "hybrid_override_pattern": "ME*-"}
    message = ""
    try:
        model: Model | None = from_config({**base, **fields, "model_type": model_type}, "drawn")
    except InputError as error:
        model, message = None, str(error)
    assert "\n" not in message if model is None else 0 < model.num_active <= model.num_params


# Adapters.


@pytest.mark.parametrize(
    ("name", "rank", "targets", "message"),
    [
        ("70B", 16, "all-linear", "70B is a bare count; LoRA needs"),
        (
            "llama-3.1-8b",
            16,
            ("q_pro",),
            "unknown LoRA target 'q_pro'; did you mean 'q_proj'.*all-linear, q_proj, k_proj",
        ),
        ("llama-3.1-8b", 16, (), "at least one target"),
        ("llama-3.1-8b", 1025, "all-linear", "rank 1025 is larger than the smallest dimension of the targets, 1024"),
        ("llama-3.1-8b", 0, "all-linear", "rank must be a whole number from 1"),
        ("llama-3.1-8b", True, "all-linear", "rank must be a whole number from 1"),
        ("llama-3.1-8b", 16, ("embed_tokens",), "unknown LoRA target 'embed_tokens'"),
        ("qwen3-30b-a3b", 16, ("gate_proj",), "peft adapts gate_proj and up_proj of this model together"),
        ("nvidia-nemotron-3-nano-30b-a3b-bf16", 16, "all-linear", "peft refuses LoRA on out_proj of nemotron_h"),
    ],
)
def test_impossible_adapters_are_refused(name: str, rank: int, targets: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_adapters(load(name), rank=rank, targets=targets)


def test_adapters_have_pefts_shapes_in_their_blocks() -> None:
    block = with_adapters(load("llama-3.1-8b"), rank=16, targets=("k_proj", "down_proj")).blocks[0]
    shapes = {t.name.removeprefix("model.layers.*."): t.shape for t in block.tensors if t.kind == "adapter"}
    assert shapes == {
        "self_attn.k_proj.lora_A.default.weight": (16, 4096),
        "self_attn.k_proj.lora_B.default.weight": (1024, 16),
        "mlp.down_proj.lora_A.default.weight": (16, 14336),
        "mlp.down_proj.lora_B.default.weight": (4096, 16),
    }


def test_experts_get_adapters_only_where_peft_converts_them() -> None:
    qwen, oss = (with_adapters(load(name), rank=8) for name in ("qwen3-30b-a3b", "gpt-oss-20b"))
    adapter = next(t for t in qwen.tensors if t.name.endswith("gate_up_proj.lora_B.default.weight"))
    assert (adapter.shape, adapter.active) == ((1536, 8 * 2 * 128), Fraction(8, 128))
    assert "get adapters too" in qwen.assumptions[-1]
    assert not any("experts" in t.name for t in oss.tensors if t.kind == "adapter")
    assert "get no adapters" in oss.assumptions[-1]
    only_attention = with_adapters(load("qwen3-30b-a3b"), rank=8, targets=("q_proj",))
    assert "get no adapters" in only_attention.assumptions[-1]


def test_gpt2_stores_its_matrices_the_other_way_round() -> None:
    tensors = {t.name: t.shape for t in with_adapters(load("gpt2"), rank=4).tensors}
    assert tensors["transformer.h.*.attn.c_attn.weight"] == (768, 2304)
    assert tensors["transformer.h.*.attn.c_attn.lora_A.default.weight"] == (4, 768)
    assert tensors["transformer.h.*.attn.c_attn.lora_B.default.weight"] == (2304, 4)
