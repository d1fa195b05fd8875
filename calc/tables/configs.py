"""Published config files and their runs, each library's names, and what a key costs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from calc import configs
from calc.estimate import estimate
from calc.job import Job
from calc.models import Model, load
from calc.tables.text import markdown, size
from calc.units import InputError, records

#: From the page of the files to the folder that they are published in.
_FOLDER = "../../configs"


def jobs() -> dict[str, tuple[str, Job, tuple[str, ...]]]:
    """Each published run by name: its title, the run, and the formats that it is written in.

    >>> jobs()["8b-zero2"][1].strategy
    'zero2'
    """
    found = {}
    for record in records("config-files"):
        job = Job.of(**{**record["run"], "model": load(record["run"]["model"])})
        found[record["name"]] = (record["title"], job, tuple(record["formats"]))
    return found


def files() -> dict[str, configs.File]:
    """Every published file by its path under `/configs/`."""
    found = {}
    for name, (_, job, formats) in jobs().items():
        for form in formats:
            file = configs.write(job, form.removesuffix(" auto"), auto=form.endswith("auto"))
            found[f"{name}/{file.name}"] = file
    return found


def tabs(name: str) -> str:
    """A tab for each framework: its file of that run, or why it has no words for it."""
    (_, job, order), published = jobs()[name], files()
    shown = {
        key: [
            file
            for path, file in published.items()
            if path.startswith(f"{name}/") and file.format == form
        ]
        for key, form in configs.FORMATS.items()
    }
    found = [*next(found[0] for found in shown.values() if found).head[:2], ""]
    for key in sorted(shown, key=lambda key: order.index(key) if key in order else len(order)):
        form = configs.FORMATS[key]
        found += [f'=== "{form.title.removeprefix("Transformers ")}"', ""]
        for file in shown[key]:
            link = f"[`{file.name}`]({_FOLDER}/{name}/{file.name})"
            link += " for Transformers" if file.auto else ""
            found += [
                f"    {link}, accepted by {form.library} {configs.version(form.library)}.",
                f"    {form.change}.",
                "",
            ]
            found += [
                "    " + line if line else ""
                for line in f"```{file.language}\n{file.text}```".split("\n")
            ]
            found += ["", f"    {' '.join(file.foot)}", ""] if file.language == "json" else [""]
        if not shown[key]:
            found += [f"    {_refusal(job, key)}.", ""]
    return "\n".join(found)


def _refusal(job: Job, form: str) -> str:
    try:
        configs.write(job, form)
    except InputError as error:
        return re.sub(r"--[a-z-]+( [\w-]+(, [\w-]+)*)?", r"`\g<0>`", str(error))
    return f"Not published; `python -m calc config … --format {form}` writes it"


def every_file() -> str:
    """The published files, by run, with what one GPU keeps."""
    published, rows = files(), []
    for name, (title, job, _) in jobs().items():
        named = {file.name: file for path, file in published.items() if path.startswith(f"{name}/")}
        links = " · ".join(f"[`{file}`]({_FOLDER}/{name}/{file})" for file in named)
        found = estimate(job)
        peak = found.peak.bytes if found.peak else None
        rows.append([title, links, size(found.states.total), size(peak)])
    return markdown(["Run", "Files", ">States per GPU", ">Peak"], rows)


def sharding_names() -> str:
    """What each library calls the same division, with the key that asks for it."""
    heads = ["Name", "Divided", "PyTorch", "Accelerate", "DeepSpeed `zero_optimization`"]
    return markdown(heads, [list(record.values()) for record in records("sharding-names")])


def traps() -> str:
    """Keys that cost more, or less, than they seem to, with the arithmetic for Llama 3.1 8B."""
    llama = load("llama-3.1-8b")
    cells = [(key, how, f"**{size(amount, 'GB', 2)}**") for key, how, amount in _costs(llama)]
    return markdown(["Key", "Arithmetic", ">Costs"], cells)


_Cost = tuple[str, str, int]


def _costs(llama: Model) -> Iterator[_Cost]:
    params, layer = llama.num_params, llama.blocks[0].numel
    yield from _of_deepspeed()
    how = f"host memory: 8 copies × {params:,} × 2 B"
    yield "`fsdp_cpu_ram_efficient_loading: false`", how, 16 * params
    bare = estimate(Job.of(model=llama, recipe="pure-bf16")).states.total
    how = "Trainer and Axolotl keep 8 B per parameter of a bf16 checkpoint"
    yield "`bf16: true` is no master copy", how, bare
    how = "casts what it trains to fp32: 16 B per parameter"
    yield "`bf16: true` in LLaMA-Factory", how, 16 * params
    yield from _of_8_bit(llama)
    how = f"the gradients once more: {params:,} × 2 B"
    yield "DDP `gradient_as_bucket_view=False`", how, 2 * params
    how = f"a layer on its way: {layer:,} × (4 − 2) B"
    yield "FSDP `reduce_dtype` fp32, not bf16", how, 2 * layer
    how = f"casts a frozen bf16 base to fp32: {params:,} × (4 − 2) B"
    yield "`prepare_model_for_kbit_training`", how, 2 * params
    ours, trainers = (
        estimate(Job.of(model=llama, optimizer=name)).states.optimizer
        for name in ("adamw8bit", "adamw8bit-trainer")
    )
    how = f"embedding states stay in 32 bit: {trainers:,} − {ours:,} B"
    yield "Trainer `adamw_bnb_8bit`", how, trainers - ours


def _of_deepspeed() -> Iterator[_Cost]:
    zero = configs.keys("deepspeed", "zero_optimization")
    names = ("reduce_bucket_size", "stage3_max_live_parameters")
    bucket, live = (int(str(zero[name])) for name in names)
    how = f"the default, {bucket:,} elements, × 2 B"
    yield "DeepSpeed `reduce_bucket_size`", how, 2 * bucket
    how = f"the default, {live:,}, × 2 B: stays gathered"
    yield "DeepSpeed `stage3_max_live_parameters`", how, 2 * live
    how = f"a second bucket: 2 × {bucket:,} × 2 B"
    yield "DeepSpeed `overlap_comm`, stages 1 and 2", how, 4 * bucket


def _of_8_bit(llama: Model) -> Iterator[_Cost]:
    torchao = Job.of(model=llama, world_size=8, strategy="fsdp2", optimizer="adamw8bit-torchao")
    bitsandbytes = torchao.but(strategy="fsdp1", recipe="pure-bf16", optimizer="adamw8bit")
    params = f"{llama.num_params:,}"
    how = f"bitsandbytes fails; torchao wants fp32 shards: {params} × (4 + 4 + 2.03) ÷ 8 B"
    yield "8-bit Adam under FSDP2", how, estimate(torchao).states.total
    how = f"bitsandbytes on bf16 shards: {params} × (2 + 2 + 2.03) ÷ 8 B"
    yield "8-bit Adam under FSDP1", how, estimate(bitsandbytes).states.total
