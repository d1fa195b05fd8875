"""Every architecture on the meta device: transformers' own names and shapes against `calc.models`, to the tensor.

`python -m tests.oracle.test_models_meta` rewrites `recorded/models.json`, a line a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from calc import models
from calc.models import Model
from calc.models.families import FAMILIES, family_of
from calc.units import InputError

pytestmark = pytest.mark.oracle
RECORD = Path(__file__).parent / "recorded" / "models.json"
KNOWN = [record["id"] for record in models.known()]

SMALL = {
    "hidden_size": 96,
    "intermediate_size": 56,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "pad_token_id": None,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}
#: What a config of each architecture may say besides; `None` in a list field means that it is absent.
ALTERED: Mapping[str, list[dict[str, Any]]] = {
    "llama": [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"head_dim": 20},
        {"head_dim": None, "num_key_value_heads": None},
        {"num_key_value_heads": 1, "num_hidden_layers": 1},
        {"tie_word_embeddings": True},
    ],
    "mistral": [{"attention_bias": True}, {"head_dim": 10, "sliding_window": 44, "tie_word_embeddings": True}],
    "ministral3": [{"head_dim": 40}],
    "mixtral": [{"num_local_experts": 3, "num_experts_per_tok": 1}, {"head_dim": 8}],
    "qwen2": [
        {"head_dim": 24, "attention_bias": False},
        {"num_key_value_heads": None},
        {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 7},
    ],
    "qwen3": [{"attention_bias": True, "head_dim": 24}],
    "qwen3_moe": [
        {"mlp_only_layers": [0, 3]},
        {"decoder_sparse_step": 2, "attention_bias": True},
        {"num_experts": 0},
        {"shared_expert_intermediate_size": 64},
    ],
    "qwen3_next": [
        {"mlp_only_layers": [1], "decoder_sparse_step": 3},
        {"full_attention_interval": 2, "shared_expert_intermediate_size": 24, "attention_bias": True},
        {"layer_types": ["full_attention"] * 2 + ["linear_attention"] * 3},
        {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10},
    ],
    "qwen3_5_text": [{"full_attention_interval": 3, "attention_bias": True}, {"tie_word_embeddings": True}],
    "qwen3_5_moe_text": [{"shared_expert_intermediate_size": 0}, {"moe_intermediate_size": 20, "head_dim": 12}],
    "smollm3": [{"attention_bias": True, "mlp_bias": True}, {"head_dim": 10, "tie_word_embeddings": False}],
    "phi3": [{"head_dim": 10}, {"tie_word_embeddings": True}],
    "olmo2": [{"attention_bias": True, "head_dim": 10}],
    "olmo3": [{"attention_bias": True}],
    "gemma2": [{"attention_bias": True}, {"tie_word_embeddings": False, "head_dim": 10}],
    "gemma3_text": [{"attention_bias": True, "sliding_window_pattern": 2}],
    "gemma4_text": [
        {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 99},
        {"num_kv_shared_layers": 5, "use_double_wide_mlp": True},
        {"attention_k_eq_v": False, "num_global_key_value_heads": 4, "attention_bias": True},
        {"num_global_key_value_heads": None},
        {
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"] + ["sliding_attention"] * 2,
            "enable_moe_block": True,
            "top_k_experts": 2,
            "moe_intermediate_size": 10,
        },
    ],
    "llama4_text": [
        {"interleave_moe_layer_step": 2, "use_qk_norm": False},
        {"moe_layers": [1, 4], "attention_bias": True},
        {"no_rope_layers": [1, 0, 1, 0, 1]},
    ],
    "gpt_oss": [{"attention_bias": False}],
    "minimax_m2": [{"use_qk_norm": False, "num_local_experts": 9}],
    "glm4_moe": [
        {"use_qk_norm": True, "first_k_dense_replace": 0},
        {"first_k_dense_replace": 9},
        {"n_shared_experts": 2, "moe_intermediate_size": 10, "attention_bias": False},
        {"n_shared_experts": 0},
    ],
    "deepseek_v3": [
        {"q_lora_rank": None, "n_shared_experts": 3},
        {"attention_bias": True, "tie_word_embeddings": True},
        {"first_k_dense_replace": 2, "moe_layer_freq": 2},
        {"kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10},
    ],
    "deepseek_v32": [
        {"attention_bias": True, "mlp_bias": True, "index_n_heads": 3},
        {"mlp_layer_types": ["sparse", "dense", "dense", "sparse", "sparse"]},
    ],
    "glm_moe_dsa": [
        {"index_topk_freq": 2, "attention_bias": True},
        {"index_topk_freq": 3, "index_skip_topk_offset": 0},
        {"index_topk_pattern": "FSSFS"},
        {"indexer_types": ["full", "shared", "full", "full", "shared"]},
    ],
    "deepseek_v4": [
        {"mlp_bias": True, "n_shared_experts": 2},
        {"hc_mult": 2, "o_groups": 4, "o_lora_rank": 7, "compress_ratios": [0, 4, 128, 4, 0, 0]},
        {"compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}},
    ],
    "falcon": [
        {"multi_query": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        {"num_ln_in_parallel_attn": 2, "bias": True},
        {"parallel_attn": False, "ffn_hidden_size": 77, "tie_word_embeddings": False},
    ],
    "gpt2": [{"n_inner": 50}, {"n_positions": 77, "tie_word_embeddings": False}],
    "nemotron_h": [
        {"mlp_bias": True, "use_bias": True, "use_conv_bias": False},
        {"hybrid_override_pattern": "M-E*-", "tie_word_embeddings": True},
        {"hybrid_override_pattern": "ME*-E", "moe_latent_size": 24},
        {"layers_block_type": ["mamba", "attention", "moe", "mlp", "mamba"]},
    ],
}
ALL_LINEAR: Mapping[str, Any] = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
LISTS = ("layer_types", "indexer_types", "compress_ratios", "hybrid_override_pattern", "moe_layers", "no_rope_layers")


def small(model_type: str) -> dict[str, Any]:
    """The first known model of this architecture, made small."""
    known = next(record["config"] for record in models.known() if record["config"]["model_type"] == model_type)
    config = {key: SMALL.get(key, value) for key, value in known.items() if key not in LISTS}
    if model_type == "gpt2":
        return config | {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 90}
    if model_type == "nemotron_h":
        config["hybrid_override_pattern"] = "MEM*E"
    return config | {"pad_token_id": None}


def cases() -> Iterator[Any]:
    for model_type in FAMILIES:
        base = small(model_type)
        required = {"model_type", "pad_token_id", "hybrid_override_pattern", "n_embd", "n_layer", "n_head", *SMALL}
        least = {key: value for key, value in base.items() if key in required - {"num_key_value_heads"}}
        for changes in ({}, *ALTERED[model_type]):
            config = base | changes
            if "layers_block_type" in changes:
                del config["hybrid_override_pattern"]
            yield pytest.param(config, id=f"{model_type} {changes or ''}")
        yield pytest.param(least | {"num_attention_heads": 32, "hidden_size": 128}, id=f"{model_type}, the least")


def on_meta(config: Mapping[str, Any]) -> Any:
    """transformers' model of this config, its tensors without storage."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    left_out = ("architectures", "model_type")
    fields = json.loads(json.dumps({key: value for key, value in config.items() if key not in left_out}))
    family = family_of(config["model_type"])
    assert family
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family.model_type, **fields))


def listed(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every single tensor of `model`, layer by layer."""
    tensors = [(tensor.name, tensor.shape) for tensor in model.first]
    blocks = {layer: block for block in model.blocks for layer in block.layers}
    for layer in range(model.num_layers):
        tensors += [(t.name.replace("*", str(layer)), t.shape) for t in blocks[layer].tensors]
    return tensors + [(tensor.name, tensor.shape) for tensor in model.last]


def instantiated(meta: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The same of transformers' model; tensors without elements (no shared expert) do not count."""
    return [(name, tuple(p.shape)) for name, p in meta.named_parameters() if p.numel()]


@pytest.mark.quick
@pytest.mark.parametrize("model_id", KNOWN)
def test_a_known_model_has_transformers_tensors_in_their_order(model_id: str) -> None:
    record = next(record for record in models.known() if record["id"] == model_id)
    found = instantiated(on_meta(record["config"]))
    assert listed(models.load(model_id)) == found
    assert json.loads(RECORD.read_text("utf-8"))["models"][model_id]["num_tensors"] == len(found)


@pytest.mark.parametrize("config", list(cases()))
def test_an_altered_config_has_transformers_tensors(config: dict[str, Any]) -> None:
    assert sorted(listed(models.from_config(config, "altered"))) == sorted(instantiated(on_meta(config)))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_defaults_are_those_of_the_config_class(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family, config = FAMILIES[model_type], CONFIG_MAPPING[model_type]
    fields = {name: field.default for name, field in config.__dataclass_fields__.items()}
    mine = {name: value for name, value in family.defaults.items() if name in fields}
    assert mine == {name: fields[name] for name in mine}
    #: What the classes read from further keywords, or by `getattr` with a default.
    further = set(family.defaults) - set(mine) - set(config.attribute_map)
    assert further <= {
        *("head_dim", "full_attention_interval", "sliding_window_pattern", "global_head_dim", "num_key_value_heads"),
        *("num_global_key_value_heads", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"),
        *("hybrid_override_pattern", "compress_ratios", "compress_rate_csa", "compress_rate_hca"),
    }


@pytest.mark.parametrize("model_type", FAMILIES)
def test_lora_on_all_linear_layers_is_as_large_as_peft_makes_it(model_type: str) -> None:
    from peft import LoraConfig, get_peft_model

    config = small(model_type)
    lora = LoraConfig(r=4, **ALL_LINEAR)
    if FAMILIES[model_type].lora_refuses:
        with pytest.raises(ValueError, match="incompatible"):
            get_peft_model(on_meta(config), lora, low_cpu_mem_usage=True)
        with pytest.raises(InputError, match="peft refuses"):
            models.with_adapters(models.from_config(config, "small"), rank=4)
    else:
        trainable, _ = get_peft_model(on_meta(config), lora, low_cpu_mem_usage=True).get_nb_trainable_parameters()
        assert models.with_adapters(models.from_config(config, "small"), rank=4).num_trainable == trainable


@pytest.mark.parametrize("model_id", KNOWN)
def test_the_record_holds(model_id: str) -> None:
    config = next(record["config"] for record in models.known() if record["id"] == model_id)
    assert json.loads(RECORD.read_text("utf-8"))["models"][model_id] == measured(config)


def measured(config: Mapping[str, Any]) -> dict[str, int]:
    """What transformers and peft say of a config: no arithmetic of `calc` is in it."""
    from peft import LoraConfig, get_peft_model

    meta = on_meta(config)
    parameters = dict(meta.named_parameters())
    total = sum(p.numel() for p in parameters.values())
    fused = {name: p for name, p in parameters.items() if ".experts." in name}
    chosen = config.get("num_experts_per_tok") or config.get("top_k_experts") or 0
    unused = sum(p.numel() // p.shape[0] * (p.shape[0] - chosen) for p in fused.values())
    found = {"num_tensors": len(parameters), "params_total": total, "params_active": total - unused}
    if config["model_type"] != "nemotron_h":  # peft refuses it
        lora = get_peft_model(meta, LoraConfig(r=16, **ALL_LINEAR), low_cpu_mem_usage=True)
        found["lora_rank_16"] = lora.get_nb_trainable_parameters()[0]
    return found


def main() -> None:
    versions = {name: version(name) for name in ("torch", "transformers", "peft")}
    rows = ",\n".join(
        f"  {json.dumps(record['id'])}: {json.dumps(measured(record['config']))}" for record in models.known()
    )
    RECORD.write_text(f'{{\n "versions": {json.dumps(versions)},\n "models": {{\n{rows}\n }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
