"""Each published config file handed to the framework it is for, and the snippets run for one step."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from calc import configs
from calc.estimate import estimate
from calc.job import Job
from calc.models import load
from calc.tables.configs import files
from calc.units import InputError
from tests.oracle.cases import CONFIGS

pytestmark = pytest.mark.oracle
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "configs"
PUBLISHED = files()
LIBRARIES = ("deepspeed", "accelerate", "torch", "transformers", "peft", "axolotl", "llamafactory")


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed here")


def ask(*arguments: object) -> dict[str, Any]:
    """The last line that a module of this folder prints, as JSON, in a process of its own."""
    command = [sys.executable, "-m", *map(str, arguments)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": ""})
    assert found.returncode == 0, found.stderr[-3000:]
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


@cache
def understood(form: str) -> dict[str, Any]:
    """What the framework read from every published file of this format, by path."""
    paths = [str(FOLDER / path) for path, file in PUBLISHED.items() if file.format.format == form]
    return ask("tests.oracle.config_loaders", form, *paths)


def told(form: str, path: str) -> dict[str, Any]:
    needs(configs.FORMATS[form].library)
    found: dict[str, Any] = understood(form)[str(FOLDER / path)]
    assert "refused" not in found, found["refused"]
    return found


def paths(form: str) -> list[str]:
    return [path for path, file in PUBLISHED.items() if file.format.format == form]


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_recorded_keys_are_those_of_the_library(library: str) -> None:
    needs(library)
    from tests.oracle import config_keys

    source = {"torch": "python_calls", "transformers": "python_calls", "peft": "python_calls"}.get(library, library)
    fresh = [record for record in getattr(config_keys, source)() if record["library"] == library]
    kept = [record for record in json.loads(config_keys.FILE.read_text()) if record["library"] == library]
    assert kept == fresh


@pytest.mark.quick
@pytest.mark.parametrize("path", paths("deepspeed"))
def test_deepspeed_reads_the_run(path: str) -> None:
    found, run = told("deepspeed", path), PUBLISHED[path].job
    assert found["stage"] == int(run.strategy[-1])
    assert found["bf16"] is True
    assert (found["micro_batch"], found["accumulation"]) == (run.micro_batch, run.accumulation)
    assert found["train_batch"] == run.micro_batch * run.accumulation * run.world_size
    assert found["reduce_bucket_size"] == run.stack.reduce_bucket_size
    assert found["overlap_comm"] == run.stack.overlap_comm
    offload = run.stack.offload
    assert (found["offload_optimizer"], found["offload_param"]) == (offload != "none", offload == "all")
    if run.strategy == "zero3":
        assert found["prefetch"] == run.stack.stage3_prefetch_bucket_size
        assert found["live"] == run.stack.stage3_max_live_parameters


@pytest.mark.quick
@pytest.mark.parametrize("path", paths("accelerate"))
def test_accelerate_reads_the_run(path: str) -> None:
    found, run = told("accelerate", path), PUBLISHED[path].job
    assert found["processes"] == run.world_size
    if run.strategy.startswith("zero"):
        assert (found["kind"], found["stage"]) == ("DEEPSPEED", int(run.strategy[-1]))
        assert found["config"]["zero_optimization"]["reduce_bucket_size"] == run.stack.reduce_bucket_size
        return
    assert found["kind"] == "FSDP"
    assert found["version"] == (1 if run.strategy == "fsdp1" else 2)
    assert found["groups"] == ([run.stack.groups, run.stack.ranks] if run.strategy == "hsdp" else [1, 1])
    assert found["reshard"] in ("True", "FULL_SHARD")
    assert found["wrap"] == "transformer_auto_wrap_policy"
    assert found["checkpointing"] == (run.checkpointing == "full")
    assert found["offload"] == (run.stack.offload == "all")
    assert found["reduce"] == ("torch.bfloat16" if run.recipe == "fsdp2-mixed" else None)
    assert found["state_dict"].startswith(run.save.upper())


@pytest.mark.parametrize("path", paths("trainer"))
def test_the_trainer_reads_the_run(path: str) -> None:
    found, run = told("trainer", path), PUBLISHED[path].job
    assert found["optim"] == configs.FORMATS["trainer"].optimizers[run.optimizer]  # type: ignore[index]
    assert (found["micro_batch"], found["accumulation"]) == (run.micro_batch, run.accumulation)
    assert found["checkpointing"] == (run.checkpointing == "full")
    if run.strategy == "fsdp2":
        assert (found["fsdp_version"], found["reshard_after_forward"]) == (2, True)
    else:
        assert found["stage"] == int(run.strategy[-1])


@pytest.mark.parametrize("path", paths("axolotl"))
def test_axolotl_reads_the_run(path: str) -> None:
    found, run = told("axolotl", path), PUBLISHED[path].job
    assert (found["sequence_len"], found["micro_batch_size"]) == (run.seq_len, run.micro_batch)
    assert found["optimizer"] == "adamw_torch_fused"
    assert found["adapter"] == (("qlora" if run.base_dtype.startswith("nf4") else "lora") if run.lora_rank else None)
    assert (found["lora_r"] or 0) == run.lora_rank
    assert bool(found["deepspeed"]) == run.strategy.startswith("zero")
    assert (found["fsdp_version"] == 2) == (run.strategy == "fsdp2")


@pytest.mark.parametrize("path", paths("llamafactory"))
def test_llamafactory_reads_the_run(path: str) -> None:
    found, run = told("llamafactory", path), PUBLISHED[path].job
    assert (found["cutoff_len"], found["micro_batch"]) == (run.seq_len, run.micro_batch)
    assert found["type"] == ("lora" if run.lora_rank else "full")
    assert not run.lora_rank or found["rank"] == run.lora_rank
    assert found["bits"] == (4 if run.base_dtype.startswith("nf4") else None)
    assert found["deepspeed"] == run.strategy.startswith("zero")
    assert (found["bf16"], found["pure_bf16"]) == (True, False)


REFUSED: dict[str, dict[str, Any]] = {
    "stage": {"zero_optimization": {"stage": 4}},
    "reduce_bucket": {"zero_optimization": {"stage": 3, "reduce_bucket": 1}},
    "fp16": {"fp16": {"enabled": True}},
    "train_batch_size": {"train_batch_size": 7},
}


@pytest.mark.quick
def test_what_deepspeed_refuses_is_refused_here_too(tmp_path: Path) -> None:
    needs("deepspeed")
    good = json.loads((FOLDER / "8b-zero3" / "ds_config.json").read_text())
    paths = [tmp_path / f"{named}.json" for named in REFUSED]
    for path, change in zip(paths, REFUSED.values(), strict=True):
        path.write_text(json.dumps(good | change))
    found = ask("tests.oracle.config_loaders", "deepspeed", *paths)
    assert ["refused" in found[str(path)] for path in paths] == [True] * len(paths)
    for path in paths:
        with pytest.raises(InputError, match=path.stem):
            configs.read(str(path), 8, load("llama-3.1-8b"))


SNIPPETS: dict[str, dict[str, Any]] = {
    "fsdp2": {"strategy": "fsdp2", "reduce_dtype": "bf16", "wrap": "block+ends"},
    "fsdp2-bf16": {"strategy": "fsdp2", "recipe": "pure-bf16"},
    "fsdp2-keep": {"strategy": "fsdp2", "reshard_after_forward": False},
    "hsdp": {"strategy": "hsdp", "shard_size": 2},
    "ddp": {"strategy": "ddp", "recipe": "autocast"},
    "ddp-view": {"strategy": "ddp", "recipe": "autocast", "gradient_as_bucket_view": True},
}


@pytest.mark.parametrize(
    ("model", "world_size"), [("even", 2), ("even", 4), pytest.param("odd", 2, marks=pytest.mark.quick), ("odd", 4)]
)
def test_what_the_snippets_keep_is_what_they_say(model: str, world_size: int, tmp_path: Path) -> None:
    needs("torch")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIGS[model]))
    loaded, expected = load(str(config)), {}
    for name, settings in SNIPPETS.items():
        if name == "hsdp" and world_size == 2:
            continue
        file = configs.write(Job.of(model=loaded, world_size=world_size, **settings), "fsdp2")
        (tmp_path / f"{name}.py").write_text(file.text)
        dtype = "bfloat16" if file.job.recipe == "pure-bf16" else "float32"
        expected[f"{tmp_path / name}.py:{dtype}"] = int(file.foot[0].split()[1].replace(",", ""))
    for strategy in ("fsdp1", "fsdp2"):
        for dtype, recipe in (("float32", "fsdp2-mixed"), ("bfloat16", "pure-bf16")):
            run = Job.of(model=loaded, world_size=world_size, strategy=strategy, recipe=recipe)
            expected[f"{FOLDER / 'text-c' / strategy}.py:{dtype}"] = estimate(run).states.total
    found = ask("tests.oracle.config_ranks", config, world_size, *expected)
    if model == "odd":  # calc counts FSDP1 with use_orig_params, which starts each tensor on 16 bytes
        for name in [name for name in expected if "fsdp1" in name]:
            assert 0 <= expected.pop(name) - found.pop(name) < 1024
    assert found == expected


@pytest.mark.quick
def test_text_c_fails_as_printed_and_once_more_when_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    import torch

    page = (ROOT / "docs" / "how-to" / "configs.md").read_text()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    snippet = page.partition("```python\nfrom")[2].partition("```")[0]
    snippet = f"from{snippet}"
    with pytest.raises(NameError) as missing:
        exec(snippet, {"base_model": None})
    imported = "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n" + snippet
    with pytest.raises(TypeError) as called:
        exec(imported, {"base_model": None})
    assert f"NameError: {missing.value}\n" in page
    assert f"TypeError: {called.value}\n" in page.replace("\n  ", " ")


@pytest.mark.parametrize(
    "settings",
    [
        {"lora_rank": 16},
        {"lora_rank": 64, "base_dtype": "nf4"},
        {"lora_rank": 8, "lora_targets": "q_proj,v_proj"},
        {"lora_rank": 16, "recipe": "pure-bf16"},
    ],
)
def test_peft_trains_as_many_parameters_as_calc_counts(settings: dict[str, Any], tmp_path: Path) -> None:
    needs("peft")
    import runpy

    import torch
    import transformers

    model = load("llama-3.1-8b")
    file = configs.write(Job.of(model=model, **{"recipe": "autocast", **settings}), "peft")
    (tmp_path / "lora.py").write_text(file.text)
    code = runpy.run_path(str(tmp_path / "lora.py"))
    with torch.device("meta"):
        base = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**model.config), dtype=torch.bfloat16
        )
    adapted = code["adapt"](base)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == file.job.trained.num_trainable
    assert {p.dtype for p in trained} == {torch.bfloat16 if file.job.recipe == "pure-bf16" else torch.float32}
    assert {p.dtype for p in adapted.parameters() if not p.requires_grad} == {torch.bfloat16}
