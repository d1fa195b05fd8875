"""What a model is made of: `Tensor`, the `Block`s of its layers, the `Model` of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import prod


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One parameter tensor, or `count` alike; the layer index in its name is written `*`.

    >>> Tensor(name="lm_head.weight", shape=(128256, 4096)).numel
    525336576
    """

    name: str
    shape: tuple[int, ...]
    count: int = 1
    trainable: bool = True
    #: embedding | linear | expert | router | norm | bias | other | adapter
    kind: str = "linear"
    #: The share of its elements that one token uses: k/E for routed experts, all of them elsewhere.
    active: Fraction = field(default=Fraction(1), hash=False)  # slow to hash, and equality sees it

    @property
    def numel(self) -> int:
        """Elements of one such tensor: the product of its shape."""
        return prod(self.shape)

    @property
    def of_experts(self) -> bool:
        """Whether it is the routed experts', or their adapters', and so divided by `ep`."""
        return self.kind == "expert" or (self.kind == "adapter" and ".experts." in self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of decoder layer: which layers are of it, and the tensors of one of them."""

    name: str
    layers: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    #: full | sliding | mla | linear | none
    attention: str
    #: swiglu | geglu | gelu | relu2 | moe | none
    mlp: str
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = hash((self.name, self.layers, self.tensors, self.attention, self.mlp))
        object.__setattr__(self, "_hash", found)

    def __hash__(self) -> int:
        return self._hash

    @property
    def numel(self) -> int:
        """Elements of one layer of this kind."""
        return _sum(self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A causal language model as its parameter tensors; made by `load` or `from_config`."""

    name: str
    model_type: str
    #: The text config's fields by their Hugging Face names, defaults filled in; read-only.
    config: Mapping[str, object]
    #: What precedes the blocks: the embeddings.
    first: tuple[Tensor, ...]
    blocks: tuple[Block, ...] = ()
    #: What follows them: the final norm, and `lm_head` where it is not tied to the embedding.
    last: tuple[Tensor, ...] = ()
    tied: bool = False
    assumptions: tuple[str, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Models are keys of caches: their hash is computed once, without the config."""
        ends = (self.first, self.blocks, self.last)
        found = hash((self.name, self.model_type, *ends, self.tied, self.assumptions))
        object.__setattr__(self, "_hash", found)

    def __hash__(self) -> int:
        return self._hash

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors in model order, each counted over the layers that have it."""
        return _merged(self)

    @property
    def num_params(self) -> int:
        """Parameters, tied matrices once; no buffers, vision towers or prediction heads."""
        inside = sum(len(b.layers) * b.numel for b in self.blocks)
        return _sum(self.first) + inside + _sum(self.last)

    @property
    def num_active(self) -> int:
        """Parameters that one token uses, embedding and head too: all but unchosen experts."""
        return sum(
            t.count * t.numel * t.active.numerator // t.active.denominator for t in self.tensors
        )

    @property
    def num_trainable(self) -> int:
        """Parameters that get a gradient."""
        return _sum(t for t in self.tensors if t.trainable)

    @property
    def num_layers(self) -> int:
        """Decoder layers; 0 for a bare count."""
        return sum(len(block.layers) for block in self.blocks)

    @property
    def largest_block(self) -> Block:
        """The kind of layer with the most parameters; a bare count has none (`ValueError`)."""
        return max(self.blocks, key=lambda block: block.numel)

    @property
    def has_architecture(self) -> bool:
        """False for a bare count, of which nothing but the number of parameters is known."""
        return bool(self.blocks)


@lru_cache(maxsize=256)
def _merged(model: Model) -> tuple[Tensor, ...]:
    found: dict[Tensor, int] = {}
    for section, layers in (
        (model.first, 1),
        *((b.tensors, len(b.layers)) for b in model.blocks),
        (model.last, 1),
    ):
        for tensor in section:
            one = replace(tensor, count=1)
            found[one] = found.get(one, 0) + tensor.count * layers
    return tuple(replace(tensor, count=count) for tensor, count in found.items())


def _sum(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.count * tensor.numel for tensor in tensors)
