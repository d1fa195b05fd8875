"""What one rank keeps: how a stack cuts tensors, and what follows for states, step, load and save.

Nothing here allocates: it says how many bytes there are. `cut` counts the elements of a rank,
`pieces` are the shapes that its optimizer is handed, `undivided` what a line has that is not cut.
What a stack does not say of its own is as
on one GPU, or the same on every GPU: nothing is divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from math import prod
from typing import ClassVar

from calc.memory.layers import numel_of
from calc.memory.training import Training, packed
from calc.models import Model, Tensor
from calc.models.parts import only
from calc.optimizers import DTENSOR, WHOLE, Piece, state_bytes, step_temporaries
from calc.precision import Recipe
from calc.stacks.shards import ModelStates, scales, stored, trainable
from calc.units import DTYPE_BYTES, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a stack divides what trains; `ranks` hold the model together, or each a copy of it.

    `stage` is ZeRO's: 0 divides nothing, 1 optimizer and master copy, 2 gradients too, 3 weights
    too.
    """

    ranks: int = 1
    offload: str = "none"

    #: The command line's word for it, the recipes that it holds, and whose settings it has.
    strategy: ClassVar[str]
    recipes: ClassVar[tuple[str, ...]]
    owner: ClassVar[str] = ""
    #: Whether it is made for one rank.
    alone: ClassVar[bool] = False
    #: GPUs where the command line names none: with fewer it is one GPU, or has no group.
    fewest: ClassVar[int] = 1
    stage: ClassVar[int] = 0
    #: What an optimizer is handed: whole tensors, DTensor shards, or flat ones.
    shards: ClassVar[str] = WHOLE
    #: Whether each rank holds all, and the one-line formula adds one live copy of the gradients.
    live_bucket: ClassVar[bool] = False
    #: What `offload` may be.
    offloads: ClassVar[tuple[str, ...]] = ("none",)

    @property
    def world_size(self) -> int:
        """Ranks that hold the same slice of a model before anything is divided."""
        return self.ranks

    @property
    def shard_size(self) -> int:
        """Ranks of one shard group, 0 where there are no groups."""
        return 0

    @classmethod
    def spread(cls, replicas: int, shard_size: int) -> dict[str, int]:
        """How `replicas` ranks are the stack's, by its fields; `InputError` for a number that it
        cannot be.
        """
        return {"ranks": replicas}

    @property
    def offloaded(self) -> tuple[str, ...]:
        """The ledger lines that live in host memory, or on NVMe."""
        return ()

    def held(self, recipe: Recipe) -> Recipe:
        """The recipe that the stack holds through its step where it is told `recipe`."""
        return recipe

    def accounting(self, recipe: str) -> tuple[str, ...]:
        """What must be said of how the stack is counted under `recipe`, one line each."""
        replicated = "DDP holds everything on every GPU: more GPUs add throughput, not capacity"
        return (replicated,) if self.live_bucket else ()

    def remarks(self, model: Model, ep: int) -> tuple[str, ...]:
        """What must be said of this model on this stack, one line each."""
        return ()

    # What one rank keeps.

    def cut(self, tensors: Iterable[Tensor], ranks: int, recipe: Recipe) -> int:
        """Elements of `tensors` that the fullest of `ranks` stores where they are divided."""
        return numel_of(tensors)

    def sections(self, model: Model) -> Iterable[tuple[tuple[Tensor, ...], int]]:
        """The groups of tensors that are cut together, each with how many there are."""
        return ((model.tensors, 1),)

    def pieces(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        """What each rank hands its optimizer; ranks like another are left out."""
        yield [(t.shape, t.kind, t.count) for t in trainable(training.model.tensors)]

    def handed(self, training: Training, ranks: int) -> Iterator[list[Piece]]:
        """What each of `ranks` hands its optimizer: pieces, but for one rank whole tensors."""
        return self.pieces(training, ranks) if ranks > 1 else Sharding.pieces(self, training, ranks)

    def undivided(self, line: str, tensors: Iterable[Tensor], ranks: int) -> int:
        """Elements of a copy that is not divided."""
        return numel_of(tensors)

    def share(self, training: Training, tensors: Iterable[Tensor], stage: int) -> int:
        """Trainable elements that a rank has of `tensors`, divided from `stage` on."""
        trained = trainable(tensors)
        if self.stage < stage or self.ranks == 1:
            return numel_of(trained)
        experts = [t for t in trained if t.of_experts and training.ep > 1]
        if not experts:
            return self.cut(trained, self.ranks, training.recipe)
        others = [t for t in trained if t not in experts]
        inside = self._of_experts(training, experts)
        return self.cut(others, self.ranks, training.recipe) + inside

    def _of_experts(self, training: Training, experts: Iterable[Tensor]) -> int:
        ranks = self.ranks // training.ep
        return numel_of(experts) if ranks == 1 else self.cut(experts, ranks, training.recipe)

    def states(self, training: Training) -> ModelStates:
        """Bytes of weights, master copy, gradients and optimizer state on the largest rank,
        offloaded or not.

        Formula: each copy's elements (whole below its stage, the largest share from it) × its
        dtype; the optimizer's own rule on what it is handed. Frozen tensors have weights only, in
        `base_dtype`. Experts are divided among the ranks that hold the same ones. Source:
        measurements on the Verification page.
        """
        if training.ep == 1:
            return self._states(training, self.ranks)
        parts = [
            self._states(replace(training, model=only(training.model, experts=experts)), ranks)
            for experts, ranks in ((False, self.ranks), (True, self.ranks // training.ep))
        ]
        return ModelStates(
            **{f.name: sum(getattr(part, f.name) for part in parts) for f in fields(ModelStates)}
        )

    def _states(self, training: Training, ranks: int) -> ModelStates:
        recipe, base = training.recipe, training.base_dtype
        lines = {"weights": 0, "master": 0, "gradients": 0}
        for tensors, count in self.sections(training.model):
            trained, frozen = trainable(tensors), tuple(t for t in tensors if not t.trainable)
            for copy in recipe.copies:
                divided = ranks > 1 and self.stage >= copy.stage
                elements = (
                    self.cut(trained, ranks, recipe)
                    if divided
                    else self.undivided(copy.line, trained, ranks)
                )
                lines[copy.line] += count * copy.itemsize * elements
            small = stored(frozen, base)
            elements = (
                self.cut(small, ranks, recipe) if self.stage == 3 and ranks > 1 else numel_of(small)
            )
            lines["weights"] += count * (DTYPE_BYTES.get(base, 2) * elements + scales(frozen, base))
        optimizer, found = training.optimizer, [0]
        for held in self.handed(training, ranks):
            once = any(prod(shape) >= 4096 for shape, _, _ in held)
            each = (
                n * state_bytes(optimizer, shape, recipe.state_dtype, kind=kind)
                for shape, kind, n in held
            )
            found.append(sum(each) + (optimizer.once_bytes if once else 0))
        return ModelStates(**lines, optimizer=max(found))

    def resident(self, training: Training) -> ModelStates:
        """What of the states stays on the GPU; of an offloaded NF4 base its scales do."""
        gone = dict.fromkeys(self.offloaded, 0)
        if "weights" in gone:
            gone["weights"] = scales(training.model.tensors, training.base_dtype)
        return replace(self.states(training), **gone)

    # Itemsizes of gradients.

    def gradient_itemsize(self, training: Training) -> int:
        """Bytes of a gradient element as the backward makes it."""
        return training.recipe.itemsize("gradients")

    def kept_itemsize(self, training: Training) -> int:
        """Bytes of a gradient element as it is kept to the step."""
        return training.recipe.itemsize("gradients")

    # The optimizer's step.

    def update(
        self, training: Training, states: ModelStates, implementation: str
    ) -> dict[str, int] | None:
        """What the optimizer's step takes, in bytes by line: gradients and temporaries; None for
        one on the host.

        `implementation` is how the step is written: fused, foreach or for-loop.
        """
        if "optimizer" in self.offloaded:
            return None
        return {
            "gradients": states.gradients,
            "step temporaries": self.temporaries(training, implementation),
        }

    def temporaries(self, training: Training, implementation: str) -> int:
        """Bytes of the optimizer's temporaries on the rank where they are most."""
        ranks = self.ranks if self.shards == DTENSOR else 1
        return max(
            (
                self.step_bytes(training, implementation, held, ranks)
                for held in self.on_each_rank(training)
            ),
            default=0,
        )

    def on_each_rank(self, training: Training) -> Iterator[list[Piece]]:
        """What each rank hands its optimizer; of experts the fullest rank's, beside all else."""
        if training.ep == 1:
            yield from self.handed(training, self.ranks)
            return
        parts = [
            replace(training, model=only(training.model, experts=experts))
            for experts in (False, True)
        ]
        fullest = max(self.handed(parts[1], self.ranks // training.ep), key=_elements, default=[])
        for held in self.handed(parts[0], self.ranks):
            yield [*held, *fullest]

    def step_bytes(
        self, training: Training, implementation: str, held: list[Piece], ranks: int = 1
    ) -> int:
        """Bytes of the optimizer's temporaries over one rank's pieces, DTensors over `ranks`.

        States that are wider than the weights are bitsandbytes', whose kernels need none.
        """
        itemsize = training.recipe.stepped_itemsize
        if DTYPE_BYTES[training.recipe.state_dtype] > itemsize:
            return 0
        return step_temporaries(training.optimizer, implementation, itemsize, held, ranks)

    # Loading and saving.

    def load(self, training: Training, weights: int, where: str) -> tuple[str, str, int]:
        """The instant of loading, its line and its bytes: what the rank keeps of the weights.

        Loading to the GPU `where` weights are divided has the whole model there first.
        """
        if where == "gpu" and self.stage == 3:
            return (
                "whole model on the GPU",
                "weights before sharding",
                as_stored(training, training.model.tensors),
            )
        return "weights on the GPU", "weights", weights

    def save(self, training: Training, what: str) -> tuple[str, int]:
        """The instant of saving, and the stored bytes of the largest unit that it gathers."""
        if what == "full" and self.stage == 3:
            return "full state dict", max(
                as_stored(training, unit) for unit in self.saved_units(training.model)
            )
        return "shards", 0

    def saved_units(self, model: Model) -> Iterator[tuple[Tensor, ...]]:
        """The groups of tensors that a full state dict gathers one after the other."""
        both = (*model.first, *model.last)
        yield both
        yield from (block.tensors for block in model.blocks)

    # Host memory.

    def host_bytes(self, training: Training, states: ModelStates, largest: int) -> int:
        """Bytes of host memory for one rank while it trains: its `states` off the GPU.

        `largest` are the elements of the largest tensor that trains.
        """
        away = {*self.offloaded, *(["optimizer"] if training.optimizer.paged else [])}
        return sum(getattr(states, line) for line in away)


def _elements(held: list[Piece]) -> int:
    return sum(prod(shape) * count for shape, _, count in held)


def as_stored(training: Training, tensors: Iterable[Tensor]) -> int:
    """Bytes of whole tensors in the dtype in which they are kept."""
    base, found = training.base_dtype, 0
    for tensor in tensors:
        itemsize = (
            training.recipe.itemsize("weights") if tensor.trainable else DTYPE_BYTES.get(base, 2)
        )
        found += tensor.count * (
            ceil_div(tensor.numel, 2) if packed(tensor, base) else itemsize * tensor.numel
        )
    return found
