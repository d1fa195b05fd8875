"""What is allocated at each instant of a step that can be the worst, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from calc.activations import Moment, attention_of, block_cost, checkpointed, compute_dtype, head_cost, step_temporaries
from calc.estimate.run import FSDP, Run
from calc.models import Model, Tensor
from calc.sharding import Kept, edge_elements, get_strategy, largest_share, layout_of
from calc.states import get_recipe
from calc.units import DTYPE_BYTES, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item of a phase. `kind`: exact (shapes, dtypes), config (a size the user sets), measured or allowance."""

    line: str
    bytes: int
    kind: str = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is allocated at one instant of a run, line by line, on the largest rank."""

    instant: str
    lines: tuple[Line, ...]

    @property
    def bytes(self) -> int:
        """Sum of the lines."""
        return sum(line.bytes for line in self.lines)


class Walk:
    """One forward and backward, layer by layer: what is allocated at each instant that can be the worst."""

    def __init__(self, run: Run, model: Model, states: Kept, waiting: int = 0) -> None:
        """`waiting` is how many other micro-batches a pipeline stage has begun."""
        self.run, self.model, self.states, self.tokens = run, model, states, run.tokens
        recipe, self.strategy = get_recipe(run.held), get_strategy(run.strategy)
        self.dtype, adapters = compute_dtype(recipe.name, run.base_dtype if run.lora_rank else "")
        self.unit = 4 if self.dtype == "fp32" else 2
        self.reduce = DTYPE_BYTES[run.reduce_dtype]
        self.fsdp, self.deepspeed = run.strategy in FSDP, run.held == "deepspeed"
        #: Bytes of a gradient element between steps, and as the backward leaves it.
        self.grad = 2 if self.deepspeed else recipe.itemsize("gradients")
        self.made = self.unit if self.fsdp or self.deepspeed else self.grad
        #: Without a sync each gradient waits whole; else earlier micro-batches, or a buffer, hold them already.
        self.whole = run.no_sync and run.accumulation > 1
        buffer = run.held == "megatron" or (self.deepspeed and self.strategy.stage == 3)
        self.present = buffer or (run.accumulation > 1 and not self.whole)
        self.layout, self.align = layout_of(self.strategy, recipe, run.world_size)
        shape = _shape(model)
        attention = attention_of(model, run.attention)
        #: What each kind of layer costs, and which kind each layer is.
        self.costs = [block_cost(model, b, self.dtype, attention, run.seq_len, adapters) for b in model.blocks]
        self.order, self.count = shape.order, len(shape.order)
        self.head = head_cost(model, self.dtype, run.loss, attention, run.checkpointing, run.seq_len)
        if not model.last:  # a pipeline stage before the last
            self.head = replace(self.head, norm=0, forward=0, backward=0, weight_work=0)
        self.trains, self.head_trains = shape.trains, shape.head_trains
        self.size = [self.gather(b.tensors) for b in model.blocks]
        self.unpacked = [self.unpack(b.tensors) for b in model.blocks]
        #: Weights that autocast has cast and the backward still needs.
        autocast = self.dtype == "autocast"
        self.cast = [2 * _linear(b.tensors) * autocast for b in model.blocks]
        self.head_cast = 2 * _linear(model.first if model.tied else model.last) * autocast
        self.ends = run.wrap == "block+ends" and not model.tied
        self.root = () if self.ends else (*model.first, *model.last)
        self.first = model.first if self.ends else (*model.first, *model.last)
        self.last = model.last if self.ends else (*model.first, *model.last)
        # Running sums: what layers 0 to n keep, and what is kept of the gradients of the last n.
        self.kept, self.done = [0], [0]
        for layer, kind in enumerate(self.order):
            kept = self.costs[kind].kept(run.checkpointing, layer) * self.tokens
            again = checkpointed(run.checkpointing, layer)
            self.kept.append(self.kept[-1] + kept + (0 if again else self.cast[kind] + self.costs[kind].held))
        self.kept = [waiting * self.kept[-1] + kept for kept in self.kept]
        self.flat = self.shared(model.tensors, 1)
        share = [self.grad * self.share(b.tensors) for b in model.blocks]
        for kind in reversed(self.order):
            self.done.append(self.done[-1] + share[kind])

    def gather(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of a gathered unit: in the compute dtype, a frozen NF4 matrix packed."""
        return sum(t.count * (ceil_div(t.numel, 2) if self.packed(t) else self.unit * t.numel) for t in tensors)

    def unpack(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of the largest NF4 matrix, which is dequantised for each use."""
        return max((2 * t.numel for t in tensors if self.packed(t)), default=0)

    def packed(self, tensor: Tensor) -> bool:
        """Whether bitsandbytes packs this tensor: linear layers of the blocks, not the head."""
        nf4 = self.run.base_dtype == "nf4" and not tensor.trainable
        return nf4 and tensor.kind == "linear" and "*" in tensor.name

    def share(self, tensors: Iterable[Tensor]) -> int:
        """Trainable elements of which one rank keeps the gradient between backward and step."""
        return self.shared(tensors, 2)

    def shared(self, tensors: Iterable[Tensor], stage: int) -> int:
        """Trainable elements that one rank has of `tensors` where they are divided from `stage` on."""
        cut = self.layout if self.strategy.stage >= stage and self.layout != "greedy" else "whole"
        trained = [t for t in tensors if t.trainable]
        experts = [t for t in trained if t.kind == "expert" and self.run.ep > 1]
        others = [t for t in trained if t not in experts] if experts else trained
        found = largest_share(others, cut, self.run.world_size, self.align)
        return found + (largest_share(experts, cut, self.run.world_size // self.run.ep, self.align) if experts else 0)

    def edges(self) -> int:
        """Bytes of gradients that DeepSpeed's stages 1 and 2 keep whole because their partition cuts them."""
        if not self.deepspeed or self.strategy.stage == 3:
            return 0
        return self.grad * _edges(self.model, self.run.world_size)

    def phase(self, instant: str, gradients: int, *lines: Line) -> Phase:
        """The states, the gradients that exist by then, and `lines`; empty lines are left out."""
        base = [Line(line=name, bytes=getattr(self.states, name)) for name in ("weights", "master", "optimizer")]
        base.append(Line(line="gradients", bytes=gradients))
        return Phase(instant=instant, lines=tuple(line for line in (*base, *self.always(), *lines) if line.bytes))

    def always(self) -> list[Line]:
        """Buffers that live from the first step to the last."""
        run, trains = self.run, self.model.num_trainable
        lines = []
        if self.deepspeed and self.strategy.stage == 3:
            lines.append(Line(line="reduce bucket", bytes=self.unit * run.reduce_bucket_size, kind="config"))
        torch_zero1 = run.strategy == "zero1" and self.layout == "greedy"  # it wraps DDP
        if (run.strategy == "ddp" or torch_zero1) and run.held != "megatron" and not run.gradient_as_bucket_view:
            lines.append(Line(line="gradient buckets", bytes=self.grad * trains))
        return lines

    def instants(self) -> Iterator[Phase]:
        """The instants that can be the worst, each at its own worst: loss, layers, embedding."""
        tokens, head, kept = self.tokens, self.head, self.kept[self.count]
        around = self.gathered_parameters() if self.deepspeed else self.around(self.count)
        saved = Line(line="saved activations", bytes=kept + (head.norm + head.tables) * tokens)
        # The cast weights live until the forward leaves autocast, checkpointed or not.
        again = [kind for layer, kind in enumerate(self.order) if checkpointed(self.run.checkpointing, layer)]
        casts = self.head_cast + sum(self.cast[kind] for kind in again)
        early = head.gradient_early * self.unit * self.head_trains  # made with the loss
        yield self.phase(
            "head_fwd",
            self.gradients(self.count),
            *around,
            saved,
            Line(line="logits and loss", bytes=head.forward * tokens),
            Line(line="weights cast by autocast", bytes=casts),
            Line(line="head gradient", bytes=2 * early),
        )
        loss = self.phase(
            "head_bwd",
            self.gradients(self.count),
            *around,
            saved,
            Line(line="logits and loss", bytes=head.backward * tokens),
            Line(line="weights cast by autocast", bytes=self.head_cast),
            Line(line="head gradient", bytes=early),
        )
        weight = self.phase(
            "head_bwd",
            self.gradients(self.count),
            *self.around(self.count),
            saved,
            Line(line="logits and loss", bytes=head.weight_work * tokens),
            Line(line="weights cast by autocast", bytes=self.head_cast),
            Line(line="head gradient", bytes=self.made * self.head_trains * (self.strategy.stage < 2 or self.fsdp)),
        )
        yield max(loss, weight, key=lambda phase: phase.bytes)
        yield self.layers()
        yield self.root_phase()

    def gradients(self, layer: int) -> int:
        """Bytes of gradients kept while layer `layer` is in its backward (the count: the head; -1: the root)."""
        if "gradients" in self.run.offloaded:
            return 0
        if self.present:
            return self.states.gradients * self.grad // max(get_recipe(self.run.held).itemsize("gradients"), 1)
        if layer == self.count:
            return 0
        ends = 0
        if self.ends or not (self.fsdp or (self.deepspeed and self.strategy.stage > 1)):
            ends = self.grad * self.share(self.model.last)
            if self.model.tied:
                ends = self.grad * self.head_trains
        return ends + self.done[self.count - 1 - layer]

    def around(self, layer: int) -> list[Line]:
        """What the strategy holds around the backward of layer `layer` (the count: the head)."""
        if self.fsdp:
            return self.gathered(layer)
        if not self.deepspeed:
            return []
        return self.buckets(self.model.last if layer == self.count else self.model.blocks[self.order[layer]].tensors)

    def gathered(self, layer: int) -> list[Line]:
        """FSDP: gathered units, the one ahead, and gradients on their way to being reduced."""
        run, unit, count = self.run, self.unit, self.count
        lines = []
        if self.whole:
            left = self.model.num_trainable - sum(self.trains[b] for b in self.order[layer + 1 :])
            lines.append(Line(line="gradients accumulated whole", bytes=self.reduce * left))
        if not run.reshard_after_forward:
            sizes = sum(self.size[b] for b in self.order[: layer + 1])
            lines.append(Line(line="gathered layers", bytes=sizes))
        elif layer == count:
            lines.append(Line(line="prefetched unit", bytes=self.size[self.order[-1]] * (not self.ends)))
        else:
            lines.append(Line(line="gathered layer", bytes=self.size[self.order[layer]]))
            ahead = self.size[self.order[layer - 1]] if layer else self.gather(self.first) * self.ends
            lines.append(Line(line="prefetched unit", bytes=ahead))
        if layer == count:
            return [Line(line="gathered head", bytes=self.gather(self.last)), *lines]
        lines.append(Line(line="gathered root", bytes=self.gather(self.root)))
        if not self.ends:
            lines.append(Line(line="head gradient", bytes=unit * self.head_trains))
        behind = _trainable(self.last) * self.ends if layer + 1 == count else self.trains[self.order[layer + 1]]
        if run.strategy != "fsdp1":
            lines.append(Line(line="reduce-scatter input", bytes=self.reduce * behind))
        return lines

    def gathered_parameters(self) -> list[Line]:
        """DeepSpeed's stage 3 keeps up to `stage3_max_live_parameters` gathered, and at least one tensor."""
        if self.strategy.stage < 3:
            return []
        run, largest = self.run, max(t.numel for t in self.model.tensors)
        live = max(run.stage3_max_live_parameters, largest) + run.stage3_prefetch_bucket_size
        gathered = min(self.gather(self.model.tensors), self.unit * live)
        return [Line(line="gathered parameters", bytes=gathered, kind="config")]

    def buckets(self, made: Iterable[Tensor]) -> list[Line]:
        """DeepSpeed's buckets, and the copies that reducing the gradients of the tensors `made` takes.

        A gradient that is larger than the bucket goes alone: itself and two copies in stage 3 (measured).
        """
        run, unit, stage = self.run, self.unit, self.strategy.stage
        largest = max((t.numel for t in made if t.trainable), default=0)
        lines = self.gathered_parameters()
        if stage < 3:
            bucket = unit * run.reduce_bucket_size * (2 if run.overlap_comm else 1)
            lines.append(Line(line="reduce bucket", bytes=bucket, kind="config"))
        copies = min(run.reduce_bucket_size, self.model.num_trainable)
        if stage == 3 and largest > run.reduce_bucket_size:
            copies = 3 * largest
        elif stage > 1:  # stage 1 still has all of them where the backward left them
            copies += largest
        return [*lines, Line(line="gradients being reduced", bytes=unit * copies, kind="config")]

    def layers(self) -> Phase:
        """The worst layer and instant of the backward through the layers.

        Between two layers alike with alike neighbours every line changes evenly, so only the ends are tried.
        """
        best: tuple[int, tuple[int, list[Line], list[Line]]] | None = None
        for layer in _ends(self.order, self.run.checkpointing):
            gradients, around = self.gradients(layer), self.around(layer)
            tried = [(around, self.moment(layer, moment)) for moment in self.costs[self.order[layer]].moments]
            if self.fsdp and self.run.strategy != "fsdp1" and self.run.reshard_after_forward:
                tried += [self.copied(layer, around), self.reduced(layer, around)]
            for around, lines in tried:
                total = gradients + sum(line.bytes for line in (*around, *lines))
                if best is None or total > best[0]:
                    best = (total, (gradients, around, lines))
        assert best is not None
        gradients, around, lines = best[1]
        return self.phase("layers_bwd", gradients, *around, *lines)

    def copied(self, layer: int, around: list[Line]) -> tuple[list[Line], list[Line]]:
        """FSDP2 before the backward of a layer: its unit in the all-gather's buffer and, copied out, as tensors."""
        others = [line for line in around if line.line != "prefetched unit"]
        before = self.kept[layer + 1] + self.head.tables * self.tokens
        buffer = Line(line="all-gather buffer", bytes=self.size[self.order[layer]])
        return others, [buffer, Line(line="saved activations", bytes=before)]

    def reduced(self, layer: int, around: list[Line]) -> tuple[list[Line], list[Line]]:
        """FSDP2 after the backward of a layer: its gradients, copied as the reduce-scatter's input, and the output."""
        kind = self.order[layer]
        others = [line for line in around if line.line not in ("gathered layer", "reduce-scatter input")]
        before = self.kept[layer] + (self.head.tables + self.costs[kind].boundary) * self.tokens
        trains = self.trains[kind]
        return others, [
            Line(line="layer gradients", bytes=0 if self.whole else self.unit * trains),
            Line(line="reduce-scatter input", bytes=self.reduce * trains),
            Line(line="reduce-scatter output", bytes=self.reduce * ceil_div(trains, self.run.world_size)),
            Line(line="saved activations", bytes=before),
        ]

    def moment(self, layer: int, moment: Moment) -> list[Line]:
        """One instant of the backward of one layer."""
        kind = self.order[layer]
        again = checkpointed(self.run.checkpointing, layer)
        casts = self.cast[kind] - self.cast[kind] * moment.numel // max(self.trains[kind], 1)
        saved = moment.saved * self.tokens + moment.held + casts
        before = self.kept[layer] + (self.head.tables + self.costs[kind].again * again) * self.tokens
        made = 0 if self.deepspeed and self.strategy.stage > 1 else moment.numel
        # Where an earlier micro-batch left a gradient of the same dtype, the new one is added to it at once.
        if (self.present and not self.fsdp and not self.deepspeed) or (self.whole and self.reduce == self.unit):
            made = moment.fresh
        waits = self.present and self.model.tied and not self.fsdp  # for the embedding's, to be added as one
        whole = self.run.strategy == "fsdp1" and moment.numel == self.trains[kind]
        return [
            Line(line="saved activations", bytes=before + (0 if again else saved)),
            Line(line="recomputed layer", bytes=saved * again),
            Line(line="dequantised matrix", bytes=self.unpacked[kind]),
            Line(line="activation gradients", bytes=moment.work * self.tokens),
            Line(line="layer gradients", bytes=self.made * made),
            Line(line="head gradient", bytes=self.made * self.head_trains * waits),
            Line(line="flat gradient", bytes=self.unit * moment.numel * whole),
        ]

    def step(self) -> Phase:
        """The optimizer's step: all the states, what DeepSpeed flattens, and the optimizer's temporaries."""
        run, recipe = self.run, get_recipe(self.run.held)
        if "optimizer" in run.offloaded:
            return self.phase("step", self.gradients(-1))
        itemsize, numel = recipe.itemsize("master") or recipe.itemsize("weights"), self.flat
        if not self.deepspeed:
            # Each tensor is a parameter of the optimizer, or what a rank has of it.
            cut = "whole" if self.layout in ("whole", "greedy") else self.layout
            tensors = [replace(t, count=1) for t in self.model.tensors if t.trainable]
            largest = max((largest_share([t], cut, run.world_size, self.align) for t in tensors), default=0)
            temporaries = step_temporaries(run.step, itemsize, numel, largest)
            return self.phase("step", self.states.gradients, Line(line="step temporaries", bytes=temporaries))
        # One flat tensor, made fp32; stage 3 takes a sub-group at a time and keeps its 16-bit gradients, the others
        # free theirs before the update.
        stage3, part = self.strategy.stage == 3, numel
        if stage3:
            largest = max((t.numel for t in self.model.tensors if t.trainable), default=0)
            part = min(numel, run.sub_group_size + largest // run.world_size)
        update = step_temporaries(run.step, itemsize, part, part)
        flat = self.grad * part + (0 if stage3 else self.grad * numel + self.edges())
        wide = Line(line="fp32 gradients", bytes=4 * part, kind="config" if part < numel else "exact")
        beside = Line(line="step temporaries", bytes=max(update, flat), kind=wide.kind)
        return self.phase("step", self.grad * numel * stage3, wide, beside)

    def load(self) -> Phase:
        """Loading: what the rank keeps of the weights, or on the GPU the whole model before it is divided."""
        run, kept = self.run, Line(line="weights", bytes=self.states.weights)
        whole = self.gather_stored(self.model.tensors)
        if run.load == "cpu" or self.strategy.stage < 3:
            return Phase(instant="weights on the GPU", lines=(kept,))
        return Phase(instant="whole model on the GPU", lines=(Line(line="weights before sharding", bytes=whole),))

    def save(self) -> Phase:
        """Saving: the states, and for a full state dict one unit at a time gathered as it is stored."""
        full = self.run.save == "full" and self.strategy.stage == 3
        units = (
            (self.model.tensors,) if not full else (self.root or self.first, *(b.tensors for b in self.model.blocks))
        )
        unit = Line(line="gathered unit", bytes=max(map(self.gather_stored, units)) * full)
        return self.phase("full state dict" if full else "shards", 0, unit)

    def gather_stored(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of whole tensors as they are stored."""
        run, stored = self.run, get_recipe(self.run.held).itemsize("weights")
        base = DTYPE_BYTES.get(run.base_dtype, 2)
        sizes = ((t, stored if t.trainable else base) for t in tensors)
        return sum(t.count * (ceil_div(t.numel, 2) if self.packed(t) else size * t.numel) for t, size in sizes)

    def root_phase(self) -> Phase:
        """The embedding's backward, where a tied matrix has two gradients, then their sum; the last reduction."""
        model, layer = self.model, self.order[0]
        incoming = Line(line="activation gradients", bytes=self.costs[layer].boundary * self.tokens)
        embedded = _trainable(model.first)
        tied = embedded * model.tied
        if not self.fsdp:
            # The head's gradient is among those kept; a tied one is then summed with the embedding's.
            around = self.buckets(model.first) if self.deepspeed else []
            first = Line(line="root gradients", bytes=self.made * embedded)
            both = Line(line="root gradients", bytes=self.made * (embedded + tied * (1 + self.present)))
            instants: tuple[tuple[Line, ...], ...] = ((*around, first, incoming), (*around, both))
            if self.deepspeed and self.strategy.stage == 1:
                part = Line(line="averaged gradients", bytes=self.grad * self.flat + self.edges())
                instants = ((*around, first, part),)
            elif self.deepspeed:
                instants = ((*around, incoming, Line(line="gradients beyond the partition", bytes=self.edges())),)
        else:
            unit, trains = self.unit, _trainable(self.first)
            gathered = Line(line="gathered root", bytes=self.gather(self.first))
            behind = Line(line="reduce-scatter input", bytes=self.reduce * self.trains[layer])
            made = Line(line="root gradients", bytes=unit * (trains + tied))
            summed = Line(line="root gradients", bytes=unit * (trains + 2 * tied))
            flat = unit * trains * (self.run.strategy == "fsdp1")
            last = Line(line="reduce-scatter input", bytes=self.reduce * trains + flat)
            whole = Line(line="gradients accumulated whole", bytes=self.reduce * trains * self.whole)
            instants = (
                (gathered, behind, made, incoming, whole),
                (gathered, behind, summed, whole),
                (Line(line="root gradients", bytes=unit * trains), last),
            )
        found = (self.phase("root_bwd", self.gradients(-1), *lines) for lines in instants)
        return max(found, key=lambda phase: phase.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What of a model every run asks for: the kind of each layer, and what trains."""

    order: tuple[int, ...]
    trains: tuple[int, ...]
    head_trains: int


@lru_cache(maxsize=256)
def _shape(model: Model) -> _Shape:
    kinds = sorted((layer, kind) for kind, block in enumerate(model.blocks) for layer in block.layers)
    head = model.first if model.tied else [t for t in model.last if t.name.startswith("lm_head")]
    return _Shape(
        order=tuple(kind for _, kind in kinds),
        trains=tuple(_trainable(block.tensors) for block in model.blocks),
        head_trains=_trainable(head),
    )


@lru_cache(maxsize=256)
def _ends(order: tuple[int, ...], checkpointing: str) -> tuple[int, ...]:
    """Layers of which one has the worst instant: the first and last of each kind with its neighbours."""
    keys = [None, *((kind, checkpointed(checkpointing, layer)) for layer, kind in enumerate(order)), None]
    ends: dict[object, list[int]] = {}
    for layer in range(len(order)):
        ends.setdefault(tuple(keys[layer : layer + 3]), []).append(layer)
    return tuple(sorted({layer for found in ends.values() for layer in (found[0], found[-1])}))


@lru_cache(maxsize=256)
def _edges(model: Model, world_size: int) -> int:
    return edge_elements(model, world_size) if world_size > 1 else 0


def _linear(tensors: Iterable[Tensor]) -> int:
    """Elements of matrices, which autocast casts."""
    return sum(t.count * t.numel for t in tensors if t.kind in ("linear", "expert", "router", "embedding"))


def _trainable(tensors: Iterable[Tensor]) -> int:
    return sum(t.count * t.numel for t in tensors if t.trainable)
