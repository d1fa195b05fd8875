"""What layers and logits keep, in exact bytes per token, written out by hand where a pen reaches."""

from __future__ import annotations

import pytest

from calc.memory.layers import kept_bytes, recomputes
from calc.models import Block, Model, from_config, known, load, with_adapters
from calc.models.families import head_cost, operations, unsupported
from calc.precision import compute_dtype

LLAMA = load("llama-3.1-8b")
H, F, KV, HEADS, V = 4096, 14336, 1024, 32, 128256


def saved(model: Model, dtype: str = "bf16", attention: str = "sdpa", seq_len: int = 2048, kind: int = -1) -> int:
    return sum(op.saved for op in operations(model, model.blocks[kind], dtype, "same", attention, seq_len))


def results(model: Model, block: Block, attention: str = "sdpa") -> int:
    return sum(op.result for op in operations(model, block, "bf16", "same", attention, 2048))


def test_a_llama_layer_by_hand() -> None:
    # Two norms (fp32 input, normalised copy, one scale) and their outputs; q, k, v and attention's output with
    # an fp32 number per head; gate, its activation, up and their product.
    assert saved(LLAMA) == 2 * (4 * H + 2 * H + 4 + 2 * H) + 4 * H + 4 * KV + 4 * HEADS + 8 * F == 200_840
    # In fp32 a norm keeps its input itself; the rest is twice as wide.
    assert saved(LLAMA, "fp32") == 2 * (4 * H + 4 * H + 4 + 4 * H) + 8 * H + 8 * KV + 4 * HEADS + 16 * F
    # Autocast casts the norms' outputs once for each of q, k, v, and of gate and up.
    assert saved(LLAMA, "autocast") == 2 * (8 * H + 4) + 5 * 2 * H + 4 * H + 4 * KV + 4 * HEADS + 8 * F


def test_eager_attention_keeps_the_square_of_the_sequence() -> None:
    for seq_len in (1024, 4096):
        square = saved(LLAMA, attention="eager", seq_len=seq_len) - saved(LLAMA)
        # fp32 probabilities and their bf16 copy; k and v repeated for every head; no log-sum-exp.
        assert square == 6 * HEADS * seq_len + 4 * (H - KV) - 4 * HEADS


def test_norms_on_q_and_k_by_hand() -> None:
    qwen = load("qwen3-8b")
    q, kv, heads = 32 * 128, 8 * 128, 40  # 32 query and 8 key heads, a scale for each
    plain = 2 * (8 * H + 4) + 4 * q + 4 * kv + 4 * 32 + 8 * 12288
    assert saved(qwen) == plain + 6 * (q + kv) + 4 * heads


def test_experts_keep_a_copy_per_chosen_expert() -> None:
    mixtral = load("mixtral-8x7b-v0.1")
    inner, chosen = 14336, 2
    attention = 2 * (6 * H + 4) + 2 * H + 4 * H + 4 * KV + 4 * HEADS
    router = 2 * H + 4 * 8 + 26 * chosen
    assert saved(mixtral) == attention + router + chosen * (2 * H + 8 * inner + 2 * H)


def test_latent_attention_has_no_square_and_experts_cost_by_choice_not_by_number() -> None:
    deepseek = load("deepseek-v3")
    assert saved(deepseek) == saved(deepseek, seq_len=65536)
    config = {**deepseek.config, "n_routed_experts": 128, "n_group": 4}
    few = from_config(config, "half the experts")
    assert saved(deepseek) - saved(few) == 4 * 128  # the router's scores


@pytest.mark.parametrize("record", known(), ids=lambda record: record["name"])
def test_every_known_model_is_computed_or_refused_with_a_reason(record) -> None:  # type: ignore[no-untyped-def]
    model = load(record["name"])
    if reason := unsupported(model):
        assert model.model_type in reason
        return
    for block in model.blocks:
        for dtype in ("bf16", "fp32", "autocast"):
            found = operations(model, block, dtype, "same", "sdpa", 2048)
            # The gradients of all the layer's weights are there at the last instant of its backward.
            assert sum(op.numel for op in found) == block.numel
            assert all(0 <= op.largest_weight_gradient <= op.numel for op in found if op.largest_weight_gradient)
            stream = (2 if dtype == "bf16" else 4) * int(str(model.config["hidden_size"]))
            assert stream < stream + sum(op.result for op in found) < sum(op.saved for op in found)
            assert all(op.saved >= 0 for op in found)


def test_checkpointing_keeps_less_the_more_it_recomputes() -> None:
    found, kept = operations(LLAMA, LLAMA.blocks[0]), {}
    for how in ("full", "selective", "matmuls", "none"):
        again = [recomputes(how, layer) for layer in range(32)]
        kept[how] = sum(kept_bytes(2 * H, found, recomputed=each, matmuls=how == "matmuls") for each in again)
    assert kept["full"] == 32 * 2 * H
    assert kept["selective"] == 16 * 2 * H + 16 * 200_840
    # Outputs of seven matrix products and of attention, with the layer's input.
    assert kept["matmuls"] == 32 * (2 * H + 2 * (H + 2 * KV) + 2 * H + 4 * HEADS + 2 * H + 4 * F + 2 * H)
    assert kept["none"] == 32 * 200_840
    assert [recomputes("selective", layer) for layer in range(4)] == [False, True, False, True]


def test_logits_peak_at_twelve_bytes_per_token_and_word() -> None:
    head = head_cost(LLAMA, "bf16", "full", "sdpa", "full", 2048)
    assert (head.forward, head.backward) == (10 * V, 12 * V)
    assert head.norm == 4 * H + 4 + 2 * H + 2 * H
    chunked = head_cost(LLAMA, "bf16", "chunked", "sdpa", "full", 2048)
    # Both gradients in the forward; then the final norm's backward, with 24 bytes for each of its inputs in all.
    assert (chunked.forward, chunked.backward) == (4 * H, 24 * H + 4 - head.norm)
    # Gemma 2 caps its logits by a tanh, which is kept.
    gemma = load("gemma-2-9b")
    assert head_cost(gemma, "bf16", "full", "eager", "full", 2048).backward == 14 * 256_000


def test_frozen_weights_need_no_input() -> None:
    lora = with_adapters(LLAMA, rank=16)
    block = lora.blocks[0]
    cost = {how: sum(op.saved for op in operations(lora, block, "bf16", how)) for how in ("same", "cast", "fp32")}
    # A norm keeps no normalised copy; what a linear layer reads is kept for its adapter, with 2·rank.
    assert cost["same"] == 200_840 - 2 * 2 * H + 7 * 2 * 16
    inputs = 3 * H + H + 2 * H + F  # q, k, v; o; gate, up; down
    once = 2 * (2 * H) + 2 * F  # two norms' outputs and the product; o reads what attention keeps
    assert cost["cast"] == cost["same"] - once + 2 * inputs
    assert cost["fp32"] == cost["same"] - once + 4 * inputs + 7 * 2 * 16
    only_q = with_adapters(LLAMA, rank=16, targets=("q_proj",))
    assert saved(only_q) < cost["same"]


@pytest.mark.parametrize(
    ("recipe", "base", "found"),
    [
        ("pure-bf16", "", ("bf16", "same")),
        ("fp32", "", ("fp32", "same")),
        ("fp32", "bf16", ("bf16", "fp32")),
        ("autocast", "", ("autocast", "cast")),
        ("autocast", "nf4", ("bf16", "cast")),
        ("fsdp2-mixed", "bf16", ("bf16", "same")),
    ],
)
def test_what_a_recipe_computes_in(recipe: str, base: str, found: tuple[str, str]) -> None:
    assert compute_dtype(recipe, base) == found


def test_which_layers_are_recomputed() -> None:
    found = {how: [recomputes(how, layer) for layer in range(3)] for how in ("full", "matmuls", "selective", "none")}
    assert found == {
        "full": [True, True, True],
        "matmuls": [True, True, True],
        "selective": [False, True, False],
        "none": [False, False, False],
    }


def test_what_selective_recomputation_keeps_of_latent_attention_and_of_eager() -> None:
    deepseek = load("deepseek-v3")
    dense = next(block for block in deepseek.blocks if block.mlp != "moe")
    down, q_b, kv_b, out = 1536 + 512 + 64, 128 * (128 + 64), 128 * (128 + 128), 128 * 128
    matrices = down + q_b + kv_b + 7168 + 2 * 18432 + 7168
    assert results(deepseek, dense) == 2 * matrices + 2 * out + 4 * 128
    found = {how: results(LLAMA, LLAMA.blocks[0], how) for how in ("sdpa", "eager")}
    assert found["sdpa"] - found["eager"] == 4 * 32  # the fused kernel's number for each head


def test_gemma_2_caps_its_logits_unless_the_config_says_null() -> None:
    config = next(record["config"] for record in known() if record["name"] == "gemma-2-9b")
    silent = {key: value for key, value in config.items() if not key.endswith("softcapping")}
    found = {}
    for word, told in {"silent": silent, "null": silent | {"final_logit_softcapping": None}}.items():
        model = from_config(told, "gemma")
        found[word] = head_cost(model, "bf16", "full", "eager", "full", 2048).backward
    assert found == {"silent": 14 * 256_000, "null": 12 * 256_000}


def test_every_layer_that_is_known_has_its_heads_width_where_the_config_leaves_it_out() -> None:
    for record in known():
        model = from_config({key: value for key, value in record["config"].items() if key != "head_dim"}, "m")
        if not unsupported(model):
            assert head_cost(model, "bf16", "full", "sdpa", "none", 2048).tables > 0
