"""What a family of layers is, and the register that the families' files fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from calc.models.families import attention, experts, mlp
from calc.models.families.fields import Fields
from calc.models.families.kinds import DENSE, FULL, Kinds
from calc.models.families.layer import Layer, Op
from calc.models.families.modules import Tensors, embedding, final_norm, norms
from calc.models.tensors import Model

__all__ = ["SLICES", "Family", "Fields", "Kinds", "Layer", "Ops", "Tensors", "register"]

Ops = Iterator[Op]
SLICES = attention.SLICES | mlp.SLICES | experts.SLICES


@dataclass(frozen=True, kw_only=True)
class Family:
    """The layers of one `model_type`: config, tensors, operations, how they are cut and adapted.

    What is not said is as in a Llama.
    """

    model_type: str
    #: Published under these names too, with the same layers.
    also: tuple[str, ...] = ()
    #: Multimodal configs whose text part is of this family without saying so.
    text_of: tuple[str, ...] = ()

    # The config, as transformers' config class has it.
    #: Of absent fields; `tie_word_embeddings` is false if it is not here.
    defaults: Mapping[str, object]
    #: Other names of a field.
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Fields that may be null though their default is not, and what a null stands for.
    nullable: tuple[str, ...] = ()
    computed: Mapping[str, Callable[[Fields], int]] = field(default_factory=dict)
    #: Fields of other families, by this one's.
    filled: Mapping[str, Callable[[Fields], int]] = field(default_factory=dict)
    #: Whether the hidden size must be a multiple of the number of heads.
    heads_divide: bool = False

    # The kind of attention and of MLP of each layer; what blocks call kinds that only this family
    # has, and its dense MLP.
    attentions: Callable[[Fields], Kinds] = FULL
    mlps: Callable[[Fields], Kinds] = DENSE
    attends: Mapping[str, str] = field(default_factory=dict)
    activation: str = "swiglu"

    # The tensors of a layer in their order, by its kinds, and those before and after the layers.
    attention: Callable[[Fields, str], Tensors] = attention.projections
    mlp: Callable[[Fields, str], Tensors] = mlp.dense
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    more: Callable[[Fields], Tensors] = lambda c: iter(())
    first: Callable[[Fields], Tensors] = embedding
    last: Callable[[Fields], Tensors] = final_norm
    prefix: str = "model.layers.*."
    #: False where the head is never the embedding, whatever the config says.
    ties: bool = True

    #: The operations of a layer in order of the forward pass; None where they are not written down.
    operations: Callable[[Layer], Ops] | None = None
    #: Norms multiply by their weight in fp32, and keep that copy.
    fp32_norms: bool = False
    #: Cosines and sines are kept in fp32; each kind of layer has its own.
    fp32_rope: bool = False
    rope_by_kind: bool = False
    #: Scores and logits pass a tanh if the config does not say, and there is no SDPA.
    softcaps: bool = False

    #: Tensor parallelism: modules cut by outputs (columns) or inputs (rows), or held whole.
    slices: Mapping[str, str] = field(default_factory=lambda: SLICES)

    # LoRA as peft does it: names that stand for a fused parameter of experts or router, a module
    # that it refuses, and whether matrices are stored as (in, out).
    fused: Mapping[str, str] = field(default_factory=dict)
    lora_refuses: str = ""
    transposed: bool = False

    def layer(self, c: Fields, attends: str, kind: str) -> Tensors:
        """The tensors of a layer of these kinds."""
        yield from self.attention(c, attends)
        yield from self.mlp(c, kind)
        yield from norms(c, *self.norms)
        yield from self.more(c)

    def caps(self, config: Mapping[str, object], name: str) -> bool:
        """Whether scores or logits pass a tanh, which keeps its output."""
        return config.get(name, self.softcaps) not in (None, False)


#: By `model_type`, in the order in which messages list them.
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """`family`, from now on known."""
    FAMILIES[family.model_type] = family
    return family


def model_types() -> tuple[str, ...]:
    """The values of `model_type` whose tensors are known."""
    return (*FAMILIES, *(name for family in FAMILIES.values() for name in family.also))


def family_of(model: Model | str) -> Family | None:
    """The family of a model or of a `model_type`; None where it is not known."""
    name = model if isinstance(model, str) else model.model_type
    also = (family for family in FAMILIES.values() if name in family.also)
    return FAMILIES.get(name) or next(also, None)
