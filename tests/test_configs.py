"""The config files without their frameworks: keys as recorded, what is read back, what is refused, what is published.

`python -m tests.test_configs` (`make golden`) rewrites the published files in `docs/configs`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from calc import cli, configs
from calc.configs import yaml as own
from calc.configs.formats import fitted, natural
from calc.estimate import estimate
from calc.job import Job
from calc.models import load
from calc.tables.configs import files, jobs
from calc.units import InputError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "configs"
LLAMA = load("llama-3.1-8b")


def every_run() -> Iterator[Job]:
    """Runs of every strategy and recipe, with and without adapters, offload and accumulation."""
    recipes = ("zero", "deepspeed", "autocast", "fsdp2-mixed", "pure-bf16", "fp32", "megatron")
    strategies = ("single", "ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp")
    options: tuple[dict[str, Any], ...] = (
        {},
        {"lora_rank": 8, "base_dtype": "nf4"},
        {"lora_rank": 8, "base_dtype": "nf4-double"},
        {"lora_rank": 8, "lora_targets": "q_proj,v_proj"},
        {"offload": "all"},
        {"offload": "optimizer"},
        {"offload": "nvme"},
        {"accumulation": 4, "micro_batch": 2, "checkpointing": "none", "save": "full", "step": "foreach"},
        {"optimizer": "adamw8bit-torchao", "reduce_bucket_size": 10**8, "overlap_comm": True},
        {"optimizer": "sgd-momentum", "reshard_after_forward": False},
    )
    for strategy, recipe, option in product(strategies, recipes, options):
        with contextlib.suppress(InputError):
            size = 1 if strategy == "single" else 16
            groups = {"shard_size": 8} if strategy == "hsdp" else {}
            yield Job.of(model=LLAMA, world_size=size, strategy=strategy, recipe=recipe, **option, **groups)


RUNS = tuple(every_run())


def written() -> Iterator[configs.File]:
    for run, name in product(RUNS, configs.FORMATS):
        with contextlib.suppress(InputError):
            yield configs.write(run, name)
            if name == "deepspeed":
                yield configs.write(run, name, auto=True)


FILES = tuple(written())


def sections(file: configs.File) -> Iterator[tuple[str, str, str]]:
    """Library, section and key of everything that a file says."""
    library = file.format.library
    if file.language == "python":
        for node in ast.walk(ast.parse(file.body)):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                owner = CALLS.get(name)
                for keyword in node.keywords if owner else ():
                    if keyword.arg:
                        yield owner or "", name, keyword.arg
                    if keyword.arg == "optim":
                        yield "transformers", "optim", ast.literal_eval(keyword.value)
        return
    found = json.loads(file.body) if file.language == "json" else yaml.safe_load(file.body)
    yield from walk(library, "", found)


CALLS = {
    "TrainingArguments": "transformers",
    "BitsAndBytesConfig": "transformers",
    "LoraConfig": "peft",
    "fully_shard": "torch",
    "MixedPrecisionPolicy": "torch",
    "CPUOffloadPolicy": "torch",
    "DistributedDataParallel": "torch",
}


def walk(library: str, section: str, found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, value in found.items():
        yield library, section, key
        if isinstance(value, Mapping) and key != "optimizer":
            yield from walk(library, f"{section}.{key}".lstrip("."), value)
        if key in ("optim", "optimizer") and library in ("axolotl", "llamafactory"):
            yield "transformers", "optim", value


def test_every_key_is_one_that_the_library_knows() -> None:
    said = {triple for file in FILES for triple in sections(file)}
    assert len(said) > 100
    assert {(lib, section, key) for lib, section, key in said if key not in configs.keys(lib, section)} == set()


def test_every_format_writes_some_run_and_every_refusal_says_what_would_do() -> None:
    assert {file.format.format for file in FILES} == configs.FORMATS.keys()
    refusals = set()
    for run, form in product(RUNS, configs.FORMATS.values()):
        try:
            fitted(run, form)
        except InputError as error:
            refusals.add(str(error))
    wanted = r"--strategy|--format|there it has: \w|allowed: \w|--lora-rank| here, not |adapters"
    assert [line for line in refusals if "\n" in line or not re.search(wanted, line)] == []


@pytest.mark.parametrize(
    ("form", "strategy", "equivalent"),
    [
        ("fsdp2", "zero3", "--strategy fsdp2 --recipe fsdp2-mixed"),
        ("fsdp2", "fsdp1", "--strategy fsdp2"),
        ("deepspeed", "fsdp2", "--strategy zero3"),
        ("llamafactory", "fsdp2", "--strategy zero3"),
        ("trainer", "fsdp1", "--strategy fsdp2"),
    ],
)
def test_a_framework_without_words_for_a_run_names_the_equivalent(form: str, strategy: str, equivalent: str) -> None:
    with pytest.raises(InputError, match=equivalent):
        configs.write(Job.of(model=LLAMA, world_size=8, strategy=strategy), form)


def test_a_recipe_that_nobody_asked_for_gives_way_to_one_that_the_file_can_say() -> None:
    run = Job.of(model=LLAMA)
    assert run.recipe == "zero"
    found = {name: natural(run, form).recipe for name, form in configs.FORMATS.items() if "single" in form.strategies}
    assert found["trainer"] == "pure-bf16"
    assert found["llamafactory"] == "autocast"
    assert natural(Job.of(model=LLAMA, lora_rank=8), configs.FORMATS["peft"]).recipe == "autocast"


def test_each_file_ends_in_what_its_run_costs() -> None:
    for file in FILES[::40]:
        kept = estimate(file.job).states
        assert file.foot[0].startswith(f"Keeps {kept.total:,} bytes per GPU")
        if file.language != "json":
            assert file.text.rstrip().endswith(f"# {file.foot[-1]}")


@pytest.mark.parametrize(
    ("form", "recipe", "said"),
    [
        ("trainer", "fp32", "bf16=False,"),
        ("trainer", "pure-bf16", "bf16=True,"),
        ("trainer", "autocast", "DTYPE = torch.float32  # the fp32 weight"),
        ("axolotl", "pure-bf16", "bf16: true"),
        ("axolotl", "fp32", "bf16: false"),
        ("llamafactory", "autocast", "bf16: true"),
        ("llamafactory", "pure-bf16", "pure_bf16: true"),
        ("accelerate", "autocast", "mixed_precision: bf16"),
        ("accelerate", "pure-bf16", "mixed_precision: 'no'"),
        ("fsdp2", "fp32", "DTYPE = torch.float32  # fp32 throughout"),
    ],
)
def test_the_precision_is_the_recipe_s(form: str, recipe: str, said: str) -> None:
    body = configs.write(Job.of(model=LLAMA, recipe=recipe), form).body
    assert said in body
    assert body.count("bf16") <= 1
    assert form not in ("fsdp2", "trainer") or body.count("DTYPE = ") == 1


@pytest.mark.parametrize("form", ["peft", "axolotl", "llamafactory"])
def test_quantising_once_or_twice_is_said(form: str) -> None:
    for base, said in (("nf4", "false"), ("nf4-double", "true")):
        body = configs.write(Job.of(model=LLAMA, recipe="autocast", lora_rank=8, base_dtype=base), form).body
        assert re.search(rf"double_quant\w*(=|: ){said}\b", body, re.IGNORECASE)


def test_what_the_library_decides_is_counted_and_said() -> None:
    file = configs.write(Job.of(model=LLAMA, world_size=8, strategy="fsdp2", accumulation=2), "trainer")
    assert (file.job.stack.reduce_dtype, file.job.stack.wrap, file.job.stack.no_sync) == ("bf16", "block+ends", True)
    assert len(file.notes) == 3
    assert all(note in file.text for note in file.notes)


SAYS = {
    "deepspeed": ("micro_batch", "accumulation", "offload", "reduce_bucket_size", "overlap_comm"),
    "accelerate": ("wrap", "offload", "reshard_after_forward"),
}


@pytest.mark.parametrize("form", ["deepspeed", "accelerate"])
def test_what_is_written_is_read_back(form: str, tmp_path: Path) -> None:
    count = 0
    for run in RUNS:
        try:
            file = configs.write(run, form)
        except InputError:
            continue
        if form == "accelerate" and run.strategy.startswith("zero"):
            (tmp_path / "ds_config.json").write_text(configs.write(run, "deepspeed").body)
        path = tmp_path / file.format.file
        path.write_text(file.body)
        found = configs.read(str(path), run.world_size, LLAMA)
        said = {key: value for key, value in found.says.items() if key not in ("recipe", "optimizer")}
        assert said == {key: file.job.settings[key] for key in said}
        assert set(SAYS["deepspeed" if run.strategy.startswith("zero") else form]) & {*said} or run.strategy in (
            *("single", "ddp"),
        )
        assert found.says.get("optimizer", run.optimizer) == run.optimizer
        if "recipe" in found.says:
            assert {found.says["recipe"], run.recipe} in ({run.recipe}, {"zero", "deepspeed"})
        count += 1
    assert count > 20


def test_an_auto_file_means_the_run_that_transformers_makes_of_it(tmp_path: Path) -> None:
    file = configs.write(Job.of(model=LLAMA, world_size=8, strategy="zero3"), "deepspeed", auto=True)
    path = tmp_path / "ds_config.json"
    path.write_text(file.text)
    found = configs.read(str(path), 8, LLAMA)
    assert found.says["reduce_bucket_size"] == file.job.stack.reduce_bucket_size == 4096 * 4096
    assert found.says["stage3_prefetch_bucket_size"] == 15_099_494
    assert "ds_config.json: reduce_bucket_size 16,777,216: auto" in found.notes


def test_the_defaults_of_a_library_are_filled_in_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    found = configs.read(str(path), 8, LLAMA)
    assert found.says["reduce_bucket_size"] == 500_000_000
    assert any("reduce_bucket_size 500,000,000: DeepSpeed default" in note for note in found.notes)
    answer = cli.answer(["estimate", "llama-3.1-8b", "--gpus", "8", "--config-file", str(path)])
    assert answer["run"]["strategy"] == "zero3"  # type: ignore[call-overload]
    assert any("DeepSpeed default" in line for line in answer["assumptions"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("said", "micro_batch", "accumulation"),
    [
        ({"train_batch_size": 64}, 8, 1),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 2, 4),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 2, 4),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, 2, 4),
    ],
)
def test_the_batch_that_a_file_leaves_out_is_worked_out_as_deepspeed_does(
    said: dict[str, int], micro_batch: int, accumulation: int, tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(zero3(**said))
    found = configs.read(str(path), 8, LLAMA)
    assert (found.says["micro_batch"], found.says["accumulation"]) == (micro_batch, accumulation)


def test_old_names_of_deepspeed_s_keys_mean_what_they_meant(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(zero3({"cpu_offload": True, "stage3_gather_fp16_weights_on_model_save": True}))
    found = configs.read(str(path), 8, LLAMA)
    assert found.says["offload"] == "optimizer"
    assert found.says["save"] == "full"


def test_deepspeed_takes_a_key_of_stage_3_without_its_prefix_too(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    short = {"max_live_parameters": 3_000, "prefetch_bucket_size": 2_000, "gather_16bit_weights_on_model_save": True}
    path.write_text(zero3({**short, "stage3_prefetch_bucket_size": 1_000}))
    found = configs.read(str(path), 8, LLAMA)
    assert found.says["stage3_max_live_parameters"] == 3_000
    assert found.says["stage3_prefetch_bucket_size"] == 1_000, "as in DeepSpeed the whole name is taken of two"
    assert found.says["save"] == "full"
    assert not any("max_live_parameters 3,000: DeepSpeed default" in note for note in found.notes)


def test_bfloat16_is_read_as_bf16_where_that_is_not_given(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"bfloat16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    assert configs.read(str(path), 8, LLAMA).says["strategy"] == "zero3"
    path.write_text(zero3(bfloat16={"enabled": False}))
    assert configs.read(str(path), 8, LLAMA).says["recipe"] == "zero"


def test_a_mapping_of_scalars_may_stand_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    given = "fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_offload_params: true"
    path.write_text(f"distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {{{given}}}  # on one line\n")
    says = configs.read(str(path), 8, LLAMA).says
    assert (says["strategy"], says["offload"]) == ("fsdp2", "all")
    for text in ("a: {b: 1, c: no }\n", "a: { }\n", "a: {b: , c: ~}\n", "a:\n  b: {c: 1e+5}\n"):
        assert own.load(text) == yaml.safe_load(text)
    for text in (
        "a: {b: {c: 1}}\n",
        "a: {b: [1]}\n",
        "a: {b: 1, b: 2}\n",
        "a: {b: 'x, y'}\n",
        "a: {b: 1}c\n",
        "a: {b: , - c}\n",
        "a: {b: *c}\n",
    ):
        with pytest.raises(InputError, match="line 1 has"):
            own.load(text)


def test_of_two_dtypes_left_open_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(zero3(bf16={"enabled": "auto"}, fp16={"enabled": "auto"}))
    notes = configs.read(str(path), 8, LLAMA).notes
    assert {"ds.json: bf16.enabled auto: taken as true", "ds.json: fp16.enabled auto: taken as false"} <= set(notes)


def test_the_command_line_and_the_file_must_not_contradict(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(configs.write(Job.of(model=LLAMA, world_size=8, strategy="fsdp2"), "accelerate").text)
    ask = ["estimate", "llama-3.1-8b", "--config-file", str(path)]
    with pytest.raises(InputError, match="--strategy zero3 contradicts the config file, which says strategy fsdp2"):
        cli.answer([*ask, "--gpus", "8", "--strategy", "zero3"])
    with pytest.raises(InputError, match="num_processes 8 contradicts --gpus 4"):
        cli.answer([*ask, "--gpus", "4"])
    found = cli.answer([*ask, "--gpus", "8", "--optimizer", "sgd"])
    assert found["run"]["optimizer"] == "sgd"  # type: ignore[call-overload]


def test_every_command_on_one_run_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(zero3({"stage": 2}))
    run = ["llama-3.1-8b", "--gpus", "8", "--config-file", str(path)]
    for argv in (["estimate"], ["communication"], ["config", "--format", "deepspeed"]):
        assert cli.answer([*argv, *run])["run"]["strategy"] == "zero2"  # type: ignore[call-overload]
    report = cli.answer(["oom", "MA 28.05 GB Max_MA 28.05 GB CA 28.05 GB", *run])
    assert report["candidates"][0]["line"] == "all states"  # type: ignore[call-overload]


def zero3(zero: object = None, **more: object) -> str:
    """A ZeRO-3 config with changes, in JSON."""
    found = {"stage": 3} | zero if isinstance(zero, dict) else {"stage": 3} if zero is None else zero
    return json.dumps({"bf16": {"enabled": True}, "zero_optimization": found} | more)


BATCH = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "train_batch_size": 9}
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n"
WRAP = "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
DEEPSPEED = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
LAUGHS = 'a: &a ["lol"]\nb: &b [*a, *a]\nc: &c [*b, *b]\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ds.json", zero3(fp16={"enabled": True}), "bf16.enabled and fp16.enabled are both true"),
        ("ds.json", zero3({"stage": 4}), "stage must be .* from 0 to 3, not 4"),
        ("ds.json", zero3(zero_optimisation={}), "did you mean 'zero_optimization'"),
        (
            "ds.json",
            zero3({"offload_optimizer": {"pin_memory": True}}),
            "offload_optimizer has no device; allowed: cpu",
        ),
        ("ds.json", zero3({"offload_optimizer": {"device": "disk"}}), "device 'disk', which is not counted"),
        ("ds.json", zero3({"offload_optimizer": {"device": "nvme"}}), "offload_optimizer nvme with offload_param none"),
        (
            "ds.json",
            zero3({"stage": 2, "offload_param": {"device": "cpu"}}),
            "offload_optimizer none with offload_param cpu is not counted in stage 2",
        ),
        ("ds.json", zero3(bf16={}), "neither bf16.enabled nor fp16.enabled"),
        ("ds.json", zero3(optimizer={"type": "AdamWW"}), "optimizer.type 'AdamWW'; did you mean 'adamw'"),
        ("ds.json", zero3(**BATCH), "train_batch_size 9 is not"),
        ("ds.json", zero3(train_batch_size=12), "train_batch_size 12 is not .* GPUs, 8"),
        ("ds.json", zero3(bf16={"enabled": "maybe"}), "bf16.enabled must be true or false, not 'maybe'"),
        ("ds.json", zero3({"overlap_comm": "x"}), "overlap_comm must be true or false, not 'x'"),
        ("ds.json", zero3({"cpu_offload": "cpu"}), "cpu_offload must be true or false"),
        ("ds.json", zero3(bf16={"enabled": True, "bf16_master_weights_and_grads": True}), "bf16_master.* not counted"),
        ("ds.json", zero3({"zero_quantized_weights": True}), "zero_quantized_weights changes what DeepSpeed keeps"),
        ("ds.json", zero3(5), "zero_optimization must be a JSON object, not int"),
        ("ds.json", '{"bf16": {}, "bf16": {}}', "key 'bf16' is given twice"),
        ("ds.json", '{"hidden_size": 4096}', "unknown DeepSpeed key 'hidden_size'"),
        ("ds.json", "[" * 100_000, "is not valid JSON"),
        ("ds.json", "[1]", "holds a JSON list"),
        ("ds.json", "x" * 1_000_001, "larger than 1 MB"),
        ("a.yaml", "- 1\n- 2\n", "not a DeepSpeed or Accelerate file: is no YAML mapping"),
        ("a.yaml", "datasets:\n  - path: x\n    type: y\n", "not a DeepSpeed or Accelerate file: line 2"),
        ("a.yaml", "debug: [1]\n", "^error: a.yaml: line 1 has what is not read here, inline lists"),
        (
            "a.yaml",
            FSDP + "  fsdp_version: 1\n  fsdp_sharding_strategy: HYBRID_SHARD\n" + WRAP,
            "it is --strategy hsdp",
        ),
        ("a.yaml", "just text", "is no YAML mapping"),
        ("a.yaml", "", "is no YAML mapping"),
        ("a.yaml", "\x00\xff", "is no YAML mapping"),
        ("a.yaml", LAUGHS, "line 1 has what is not read here, anchors"),
        ("a.yaml", "a: *b\n", "aliases"),
        ("a.yaml", "a: !!python/object:os.system x\n", "tags"),
        ("a.yaml", "<<: x\n", "'<<'"),
        ("a.yaml", "a: 1\na: 2\n", "'a', which is given twice"),
        ("a.yaml", "\n".join(" " * n + "k:" for n in range(60)), "nested too deep"),
        ("a.yaml", "base_model: x\nlora_r: 8\n", "unknown Accelerate key 'base_model'"),
        ("a.yaml", FSDP + "  fsdp_versions: 2\n", "unknown Accelerate key in fsdp_config 'fsdp_versions'"),
        ("a.yaml", FSDP + "  fsdp_version: 3\n", "fsdp_version must be"),
        ("a.yaml", FSDP + "  fsdp_offload_params: cpu\n", "fsdp_offload_params must be true or false, not 'cpu'"),
        ("a.yaml", FSDP + "  fsdp_version: 2\n", "fsdp_auto_wrap_policy left out is not counted"),
        ("a.yaml", "distributed_type: TPU\n", "unknown distributed_type 'TPU'"),
        ("a.yaml", "mixed_precision: bf16\n", "unknown distributed_type 'None'"),
        ("a.yaml", "distributed_type: MULTI_GPU\nmixed_precision: fp8\n", "unknown mixed_precision 'fp8'"),
        ("a.yaml", DEEPSPEED + "  deepspeed_config_file: no.json\n", "cannot be read"),
        ("a.yaml", "mixed_precision: bf16\n" + DEEPSPEED + "  zero_stage: 4\n", "stage must be"),
        ("a.yaml", DEEPSPEED + "  deepspeed_config_file: d.json\n  zero_stage: 3\n", "zero_stage belongs into d.json"),
    ],
)
def test_bad_files_are_one_line_that_names_the_key_or_the_limit(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert cli.main(["estimate", "llama-3.1-8b", "--gpus", "8", "--config-file", str(path)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"error: {name}: ")
    assert error.count("\n") == 1
    assert re.search(said, error)


def test_a_file_of_fifty_megabytes_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(50_000_000)
    with pytest.raises(InputError, match="larger than 1 MB"):
        configs.read(str(path), 8, LLAMA)


KEY = st.text(alphabet="abcdef_xyz", min_size=1, max_size=8)
SCALAR = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(10**9), 10**9),
    st.text(alphabet="abcXYZ019 :-#'\"{}[]&*!._/~%@,", max_size=12),
    st.sampled_from(["NO", "yes", "no", "1e5", "0.5", "-", "null", "a: b", "# x"]),
)
TREE = st.dictionaries(
    KEY,
    st.recursive(
        st.one_of(SCALAR, st.lists(SCALAR, max_size=3)),
        lambda inner: st.dictionaries(KEY, inner, max_size=3),
        max_leaves=8,
    ),
    min_size=1,
    max_size=5,
)


@given(TREE)
def test_yaml_that_a_yaml_library_writes_is_read_the_same(tree: dict[str, Any]) -> None:
    text = yaml.safe_dump(tree, default_flow_style=False, width=10_000)
    try:
        found = own.load(text)
    except InputError:
        return  # escapes and the like are refused
    assert found == yaml.safe_load(text)


PIECES = (
    "a:",
    " b: 1",
    "  - x",
    "- y",
    "\n",
    "\n  ",
    "c: 'q'",
    " # k",
    "true",
    "1.5e3",
    "~",
    "  d:",
    "''",
    "010",
    "1:30",
    "=",
    " {d: 1, e: x}",
)


@given(st.text(alphabet="ab:-#{}, \n'\"1.", max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_text_that_is_read_at_all_is_read_as_yaml(text: str) -> None:
    try:
        found = own.load(text)
    except InputError:
        return
    with contextlib.suppress(yaml.YAMLError):
        expected = yaml.safe_load(text)
        if all(isinstance(key, str) for key in expected):  # a bare number is a text here where it is a key
            assert found == expected


@pytest.mark.parametrize("path", files())
def test_the_published_file_is_what_calc_writes(path: str) -> None:
    assert (FOLDER / path).read_text() == files()[path].text, "run make golden"


def test_nothing_else_is_published() -> None:
    found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert found == files().keys() | {"text-c/fsdp1.py", "text-c/fsdp2.py"}


@pytest.mark.parametrize("name", jobs())
def test_all_files_of_a_run_mean_the_same(name: str) -> None:
    meant = {file.job for path, file in files().items() if path.startswith(f"{name}/")}
    assert meant == {jobs()[name][1]}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_published_scripts_compile(path: Path) -> None:
    compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_the_page_shows_the_repaired_snippet_as_published(name: str) -> None:
    page = (ROOT / "docs" / "how-to" / "configs.md").read_text()
    assert f"```python\n{(FOLDER / 'text-c' / f'{name}.py').read_text()}```" in page


def test_the_command_prints_the_file_and_beside_json_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["config", "llama-3.1-8b", "--gpus", "8", "--format"]
    assert cli.main([*ask, "deepspeed"]) == 0
    out, error = capsys.readouterr()
    assert json.loads(out)["zero_optimization"]["stage"] == 3
    assert "# Keeps 16,060,522,496 bytes per GPU" in error
    assert cli.main([*ask, "accelerate"]) == 0
    out, error = capsys.readouterr()
    assert (yaml.safe_load(out)["num_processes"], error) == (8, "")
    assert cli.main([*ask, "fsdp2"]) == 2
    assert cli.main([*ask, "toml"]) == 2


def rewrite() -> None:
    for path, file in files().items():
        target = FOLDER / path
        if not target.is_file() or target.read_text() != file.text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.text)
            print(f"docs/configs/{path}: rewritten")


if __name__ == "__main__":
    rewrite()
