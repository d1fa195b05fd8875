"""The operations of one layer, and the two of which every layer is full: norms and linear layers.

Each operation says, in bytes per token, what PyTorch keeps for its backward and what is alive while
that backward runs. They are those of transformers 5.24.0, checked against PyTorch's memory
trackers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from calc.models.tensors import Block, Model, Tensor
from calc.units import whole

if TYPE_CHECKING:
    from calc.models.families.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a layer, in bytes per token: kept for its backward, and alive during it.

    `work` counts gradients and temporaries, the gradient of the residual stream among them. `numel`
    are the weight elements whose gradient it makes, `largest_weight_gradient` those of the largest
    weight, `cast` those of the weights, frozen or not, that autocast casts; `result` is what
    selective recomputation keeps of it (the outputs of matrix products and of attention); `summed`
    are the bytes of a weight to which adapters were added, kept whatever the tokens: its gradient
    is gone again at the next operation.
    """

    name: str
    saved: int = 0
    summed: int = 0
    work: int = 0
    numel: int = 0
    largest_weight_gradient: int = 0
    cast: int = 0
    result: int = 0


class Layer:
    """One layer as a run computes it: tensors by name, sizes of the config, bytes of an element.

    `compute_itemsize` is of an activation, `residual_itemsize` of an element of the residual
    stream, which stays in fp32 under autocast. `adapters` says what adapters do with their input.
    """

    def __init__(
        self,
        family: Family,
        model: Model,
        block: Block,
        dtype: str,
        adapters: str,
        attention: str,
        seq_len: int,
    ) -> None:
        self.family, self.block, self.config = family, block, model.config
        self.autocast, self.adapters = dtype == "autocast", adapters
        self.compute_itemsize = 4 if dtype == "fp32" else 2
        self.residual_itemsize = 2 if dtype == "bf16" else 4
        self.attention, self.seq_len = attention, seq_len
        self.hidden_size = self.size("hidden_size")
        #: The gradient of the residual stream, which waits during every operation.
        self.residual = self.residual_itemsize * self.hidden_size
        self.by_name = {tensor.name.rpartition("*.")[2]: tensor for tensor in block.tensors}

    @cached_property
    def operations(self) -> tuple[Op, ...]:
        """The operations that the family writes down."""
        operations = self.family.operations
        return tuple(operations(self)) if operations else ()

    def size(self, field: str) -> int:
        """A size that the config says."""
        return whole(field, self.config.get(field))

    def width(self, name: str) -> int:
        """Outputs of a linear layer, 0 where there is none."""
        tensor = self.by_name.get(f"{name}.weight")
        return tensor.shape[0] if tensor else 0

    def tensors_of(self, *modules: str) -> list[Tensor]:
        """The tensors of these modules and of their adapters."""
        return [t for module in modules for t in self.block.tensors if f"{module}." in t.name]

    def numel(self, *modules: str) -> int:
        """Trainable elements of these modules."""
        return sum(map(trainable, self.tensors_of(*modules)))

    def ranks(self, *modules: str) -> list[int]:
        """The rank of each adapter of these modules."""
        return [t.shape[0] for t in self.tensors_of(*modules) if ".lora_A." in t.name]

    def norm(self, name: str, width: int = 0, *, rows: int = 1, pending: int = 0) -> Op:
        """RMSNorm as transformers writes it, of the residual stream, or of `width` in `rows` rows.

        It keeps its input in fp32, a scale per row and the normalised copy that the weight
        multiplies. Backward peaks with five fp32 copies of its input beside the saved one, with
        four where the input is fp32 anyway (measured); `pending` gradients wait meanwhile.
        """
        # An fp32 residual stream is itself that copy; q, k and latents are 16-bit under autocast.
        stream = not width and self.residual_itemsize == 4
        width = width or self.hidden_size
        wide = stream or self.compute_itemsize == 4
        product = 4 if wide or self.family.fp32_norms else 2
        numel = self.numel(name)
        saved = (4 + (product if numel else 0)) * width + 4 * rows
        total = (20 if wide else 24) * width + 4 * rows + self.residual + pending
        return Op(name=name, saved=saved, work=total - saved, numel=numel)

    def linear(
        self,
        name: str,
        into: int,
        out: int,
        *modules: str,
        kept: bool = False,
        work: int = 0,
    ) -> Op:
        """Linear layers that read one input; `kept` where another operation keeps that already."""
        parts = modules or (name,)
        tensors = self.tensors_of(*parts)
        return Op(
            name=name,
            saved=self._inputs(into, parts, kept),
            work=work,
            numel=sum(map(trainable, tensors)),
            largest_weight_gradient=max(map(trainable, tensors), default=0),
            cast=sum(t.numel for t in tensors if t.kind == "linear"),
            result=self.compute_itemsize * out,
        )

    def _inputs(self, into: int, modules: tuple[str, ...], kept: bool) -> int:
        """What linear layers keep of their input, and what their adapters keep.

        A weight that trains needs it, and so does an adapter: once for all of them, or once for
        each where the input is cast first (autocast, and PEFT before adapters of another dtype).
        """
        ranks = self.ranks(*modules)
        base = [m for m in modules if any(_trains(t) for t in self.tensors_of(m))]
        adapter_itemsize = 4 if self.adapters == "fp32" else self.compute_itemsize
        copies = len(base) if self.autocast and not kept else 0
        copies += len(ranks) if self.adapters != "same" else 0
        copy = (adapter_itemsize if ranks else self.compute_itemsize) * into
        saved = copy * copies + adapter_itemsize * sum(ranks)
        shared = (base and not self.autocast) or (ranks and self.adapters == "same")
        return saved + (self.compute_itemsize * into if shared and not kept else 0)


def trainable(tensor: Tensor) -> int:
    """Elements that get a gradient."""
    return tensor.count * tensor.numel if tensor.trainable else 0


def _trains(tensor: Tensor) -> bool:
    return tensor.trainable and tensor.kind != "adapter"


def windowed(config: Mapping[str, object], block: Block, seq_len: int) -> bool:
    """Whether a sliding window is shorter than the sequence, so that attention needs a mask."""
    window = config.get("sliding_window") if block.attention == "sliding" else None
    return bool(window) and seq_len > whole("sliding_window", window)
