"""The gated MLP: its tensors, its operations, and how tensor parallelism cuts it."""

from __future__ import annotations

from collections.abc import Iterator

from calc.models.families.fields import Fields
from calc.models.families.layer import Layer, Op
from calc.models.families.modules import Tensors, linear

SLICES = {"gate_proj": "columns", "up_proj": "columns", "down_proj": "rows"}


def gated(c: Fields, module: str, inner: int, bias: str = "mlp_bias") -> Tensors:
    """Gate, up and down with `inner` elements between; a bias where the field `bias` says so."""
    hidden_size = c["hidden_size"]
    yield from linear(f"{module}.gate_proj", inner, hidden_size, c.bias(bias))
    yield from linear(f"{module}.up_proj", inner, hidden_size, c.bias(bias))
    yield from linear(f"{module}.down_proj", hidden_size, inner, c.bias(bias))


def dense(c: Fields, kind: str = "") -> Tensors:
    """The MLP of most families."""
    yield from gated(c, "mlp", c["intermediate_size"])


def gated_mlp(layer: Layer, module: str = "mlp", *, kept: bool = False) -> Iterator[Op]:
    """Gate, its activation, up, their product, down; `kept` where its input is kept already."""
    itemsize, hidden_size = layer.compute_itemsize, layer.hidden_size
    inner = layer.by_name[f"{module}.down_proj.weight"].shape[1]
    modules = [f"{module}.gate_proj", f"{module}.up_proj"]
    if f"{module}.gate_up_proj.weight" in layer.by_name:
        modules = [f"{module}.gate_up_proj"]
    yield layer.linear(f"{module}.up", hidden_size, 2 * inner, *modules, kept=kept)
    product = 3 * itemsize * inner
    yield Op(name=f"{module}.product", saved=product, work=layer.residual + product)
    work = layer.residual + itemsize * inner
    if layer.adapters != "same" and layer.ranks(f"{module}.down_proj"):
        # An adapter that casts its input returns that gradient in fp32 first (measured).
        work = layer.residual + 4 * inner + 6 * hidden_size
    yield layer.linear(f"{module}.down_proj", inner, hidden_size, work=work)
