"""Routed experts: their tensors, their operations, how they are cut, what LoRA adapts."""

from __future__ import annotations

from collections.abc import Iterator

from calc.models.families import mlp
from calc.models.families.fields import Fields
from calc.models.families.layer import Layer, Op, trainable
from calc.models.families.modules import Tensors, expert, router
from calc.models.tensors import Tensor

#: The fused parameters of the experts; expert parallelism divides these by experts.
SLICES = {"gate_up_proj": "columns", "down_proj": "rows"}
#: The names by which peft 0.21.2 takes the fused parameters and the router, here and in Mixtral.
FUSED = {
    "gate_proj": "experts.gate_up_proj",
    "up_proj": "experts.gate_up_proj",
    "down_proj": "experts.down_proj",
    "gate": "gate.weight",
}
FUSED_W = {
    "w1": "experts.gate_up_proj",
    "w3": "experts.gate_up_proj",
    "w2": "experts.down_proj",
    "gate": "gate.weight",
}


def fused(
    c: Fields,
    module: str,
    experts: int,
    inner: int,
    chosen: str = "num_experts_per_tok",
) -> Tensors:
    """All experts' gates and ups in one parameter, their downs in another.

    `chosen` names the field that says how many of them a token uses.
    """
    hidden_size = c["hidden_size"]
    yield expert(c, f"{module}.gate_up_proj", experts, 2 * inner, hidden_size, chosen=chosen)
    yield expert(c, f"{module}.down_proj", experts, hidden_size, inner, chosen=chosen)


def gate(c: Fields, experts: int) -> Tensor:
    """The router's weight."""
    return router("mlp.gate.weight", experts, c["hidden_size"])


def after_dense(c: Fields, kind: str) -> Tensors:
    """DeepSeek's: an MLP, or routed experts, their router, and shared experts as one MLP."""
    if kind == "dense":
        yield from mlp.dense(c)
        return
    experts, inner = c["n_routed_experts"], c["moe_intermediate_size"]
    yield from fused(c, "mlp.experts", experts, inner)
    yield gate(c, experts)
    yield from mlp.gated(c, "mlp.shared_experts", c.size("n_shared_experts", 0) * inner, bias="")


def local(c: Fields, kind: str) -> Tensors:
    """Mixtral's: the router, and experts as wide as `intermediate_size`."""
    experts = c["num_local_experts"]
    yield gate(c, experts)
    yield from fused(c, "mlp.experts", experts, c["intermediate_size"])


def routed(
    layer: Layer,
    *,
    fp32_router: bool = False,
    fp32_weighing: bool = False,
) -> Iterator[Op]:
    """Router, experts as grouped products of every token's k copies, and the shared experts.

    `fp32_router` where the router casts its input, `fp32_weighing` where outputs are cast to be
    weighed. A layer without experts does what its MLP does.
    """
    if layer.block.mlp != "moe":
        yield from mlp.gated_mlp(layer)
        return
    modules = ("mlp.shared_experts", "mlp.shared_expert")
    shared = [module for module in modules if layer.width(f"{module}.down_proj")]
    yield _router(layer, bool(shared), fp32_router)
    yield from _grouped(layer, fp32_weighing)
    for module in shared:
        yield from mlp.gated_mlp(layer, module, kept=True)


def _router(layer: Layer, shared: bool, fp32_router: bool) -> Op:
    """Scores of all experts, the sorting of the chosen ones, and its input where it is needed."""
    experts = layer.by_name["mlp.experts.gate_up_proj"]
    total, hidden_size = experts.shape[0], layer.hidden_size
    numel, saved = layer.numel("mlp.gate"), 4 * total + 26 * int(experts.active * total)
    if numel and fp32_router:
        saved += 4 * hidden_size
    if shared or (numel and not fp32_router):
        saved += layer.compute_itemsize * hidden_size
    cast = layer.by_name["mlp.gate.weight"].numel
    return Op(name="router", saved=saved, numel=numel, cast=cast)


def _grouped(layer: Layer, fp32_weighing: bool) -> Iterator[Op]:
    """Grouped products over the copies, sorted by expert.

    Autocast knows no grouped product: it runs in the dtype of its weights. The copies come back by
    an index whose backward makes three of their size (measured).
    """
    gate_up, down = (
        layer.by_name["mlp.experts.gate_up_proj"],
        layer.by_name["mlp.experts.down_proj"],
    )
    chosen, inner = int(gate_up.active * gate_up.shape[0]), down.shape[2]
    itemsize = 4 if layer.autocast else layer.compute_itemsize
    weighing = 4 if fp32_weighing else itemsize
    copies, width = chosen * itemsize * layer.hidden_size, chosen * itemsize * inner
    residual = layer.residual
    yield _product(layer, "experts.up", gate_up, copies, residual + copies + 2 * width, itemsize)
    yield Op(name="experts.product", saved=3 * width, work=residual + 3 * width)
    yield _product(layer, "experts.down", down, width, residual + copies + width, itemsize)
    back = residual + 3 * chosen * weighing * layer.hidden_size
    yield Op(name="experts.back", saved=copies, work=back)


def _product(layer: Layer, name: str, weight: Tensor, inputs: int, work: int, itemsize: int) -> Op:
    """A grouped product, which keeps its `inputs` where its weight trains or has adapters.

    peft adds the adapters of an expert to its weight, and that sum is kept and gets a gradient.
    """
    adapted = any(t.name.startswith(f"{weight.name}.lora_A.") for t in layer.block.tensors)
    summed, numel = weight.numel if adapted else 0, trainable(weight)
    return Op(
        name=name,
        saved=inputs if numel or summed else 0,
        work=work,
        numel=numel,
        largest_weight_gradient=numel,
        summed=itemsize * summed,
    )
