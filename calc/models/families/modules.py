"""Single modules as tensors, and what stands before and after the layers of most families."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from calc.models.families.fields import Fields
from calc.models.tensors import Tensor
from calc.units import InputError

Tensors = Iterator[Tensor]


def linear(name: str, out: int, into: int, bias: bool = False) -> Tensors:
    """A linear layer: its weight, and its bias where it has one."""
    yield Tensor(name=f"{name}.weight", shape=(out, into))
    if bias:
        yield Tensor(name=f"{name}.bias", shape=(out,), kind="bias")


def norm(name: str, width: int) -> Tensor:
    """The weight of an RMSNorm."""
    return Tensor(name=f"{name}.weight", shape=(width,), kind="norm")


def norms(c: Fields, *names: str) -> Tensors:
    """RMSNorms of the residual stream."""
    for name in names:
        yield norm(name, c["hidden_size"])


def layernorm(name: str, width: int) -> Tensors:
    """The weight and the bias of a LayerNorm."""
    yield norm(name, width)
    yield Tensor(name=f"{name}.bias", shape=(width,), kind="norm")


def table(name: str, rows: int, width: int) -> Tensor:
    """An embedding: a row for each word or position."""
    return Tensor(name=f"{name}.weight", shape=(rows, width), kind="embedding")


def other(name: str, *shape: int) -> Tensor:
    """A parameter that is no matrix of a linear layer."""
    return Tensor(name=name, shape=shape, kind="other")


def router(name: str, *shape: int) -> Tensor:
    """A parameter of a router."""
    return Tensor(name=name, shape=shape, kind="router")


def expert(c: Fields, name: str, *shape: int, chosen: str = "num_experts_per_tok") -> Tensor:
    """A fused parameter of all experts; a token uses as many as the field `chosen` says."""
    if (used := c[chosen]) > shape[0]:
        limit = f"the number of experts, {shape[0]}"
        raise InputError(f"{chosen} {used} must not be larger than {limit}")
    return Tensor(name=name, shape=shape, kind="expert", active=Fraction(used, shape[0]))


def embedding(c: Fields) -> Tensors:
    """The embedding of most families."""
    yield table("model.embed_tokens", c["vocab_size"], c["hidden_size"])


def final_norm(c: Fields) -> Tensors:
    """The final norm of most families."""
    yield norm("model.norm", c["hidden_size"])
