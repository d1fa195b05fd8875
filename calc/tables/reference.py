"""Tables of the registries: models, GPUs, optimizers, recipes, strategies, sources."""

from __future__ import annotations

from calc import gpus, models
from calc.optimizers import OPTIMIZERS
from calc.precision import RECIPES
from calc.stacks import STRATEGIES
from calc.tables.text import markdown, number, size
from calc.units import InputError, records


def models_table() -> str:
    """Every known model: type, parameters, active, tied, largest block, bf16 bytes."""
    rows = []
    for record in models.known():
        name = f"{record['id'].partition('/')[2]}<br>`{record['name']}`"
        try:
            model = models.load(record["id"])
        except InputError:
            rows.append(
                [name, record["config"]["model_type"], "not counted yet", *("–" for _ in range(4))]
            )
            continue
        total, active = model.num_params, model.num_active
        shown = "all" if active == total else number(active)
        tied, block = "yes" if model.tied else "no", number(model.largest_block.numel)
        rows.append([name, model.model_type, number(total), shown, tied, block, size(2 * total)])
    heads = (">Parameters", ">Active per token", "Tied", ">Largest block", ">bf16")
    return markdown(["Model", "Type", *heads], rows)


def hub_table() -> str:
    """Known models whose Hub total is not the number of trainable parameters, and why."""
    rows = []
    for record in models.known():
        hub = record.get("hub") or {}
        if parts := hub.get("difference"):
            why = "; ".join(f"{what}: {number(count)}" for what, count in parts.items())
            rows.append([record["id"].partition("/")[2], number(hub["total"]), why])
    return markdown(["Model", ">Hub total", "What it counts beside the trainable parameters"], rows)


def gpus_table() -> str:
    """Every known GPU: label, what the driver reports, what a process sees, topology."""
    rows = []
    for slug, gpu in gpus.known().items():
        about = "" if gpu.visible_exact or not gpu.visible_bytes else " ≈"
        sizes = (
            f"{gpu.label_gb} GB",
            size(gpu.driver_bytes, "GB", 2),
            size(gpu.visible_bytes, "GB", 2) + about,
        )
        told = (number(gpu.node_gpus), gpu.topology, gpu.confidence["framework"])
        rows.append([f"{gpu.name}<br>`{slug}`", *sizes, *told])
    heads = (
        ">Label",
        ">Driver",
        ">Visible to a process",
        ">GPUs per node",
        "Topology",
        "Visible: source",
    )
    return markdown(["GPU", *heads], rows)


def optimizers_table() -> str:
    """Every optimizer: states, nominal bytes per parameter in fp32 and bf16, library."""
    rows = []
    for name, item in OPTIMIZERS.items():
        states = ", ".join(f"`{state}`" for state in item.states) or "none"
        library = "; ".join(filter(None, (item.library, item.note)))
        rows.append(
            [f"`{name}`", states, item.nominal_bytes("fp32"), item.nominal_bytes("bf16"), library]
        )
    return markdown(["Name", "States", ">fp32 states", ">bf16 states", "Library"], rows)


def recipes_table() -> str:
    """Every recipe: bytes per parameter of each line, AdamW's total, who holds it."""
    rows = []
    for name, recipe in RECIPES.items():
        lines = [recipe.itemsize(line) for line in ("weights", "gradients", "master")]
        state = OPTIMIZERS["adamw"].nominal_bytes(recipe.state_dtype)
        rows.append(
            [f"`{name}`", *(line or "–" for line in lines), sum(lines) + state, recipe.held_by]
        )
    return markdown(
        ["Name", ">Weights", ">Gradients", ">Master", ">With AdamW", "Stack that holds it"], rows
    )


def strategies_table() -> str:
    """Every strategy: what it divides and its other names."""
    divided = ("nothing", "master, optimizer", "master, optimizer, gradients", "everything")
    rows = [
        [f"`{name}`", item.title, divided[item.stage], item.also_called]
        for name, item in STRATEGIES.items()
    ]
    return markdown(["Name", "Title", "Divides by N", "Also called"], rows)


def pairs_table() -> str:
    """Which recipe runs under which strategy."""
    rows = [
        [f"`{name}`", *("yes" if strategy in recipe.strategies else "–" for strategy in STRATEGIES)]
        for name, recipe in RECIPES.items()
    ]
    return markdown(["Recipe", *(f"`{name}`" for name in STRATEGIES)], rows)


def sources_table() -> str:
    """Every source by id, with its address and confidence."""
    rows = []
    for source in records("sources"):
        title = f"[{source['title']}]({source['url']})" if source["url"] else source["title"]
        rows.append([f"`{source['id']}`", title, source["note"], source["confidence"]])
    return markdown(["Id", "Source", "Note", "Confidence"], rows)
