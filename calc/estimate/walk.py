"""What is allocated at each instant of a step that can be the worst, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, starmap
from math import prod

from calc.activations import Moment, attention_of, block_cost, checkpointed, compute_dtype, head_cost, step_temporaries
from calc.estimate.run import FSDP, Run
from calc.models import Model, Tensor
from calc.sharding import Kept, edge_elements, get_strategy, largest_share, layout_of, packed, rows
from calc.states import get_recipe
from calc.units import DTYPE_BYTES, ceil_div

#: Lines that are no plain sum of shapes and dtypes: set by the user, or found by measuring.
_KINDS = {"reduce bucket": "config", "gathered parameters": "config", "gradients being reduced": "measured"}
_STATES = ("weights", "master", "optimizer")

#: Bytes by line.
Lines = dict[str, int]


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

    def __init__(self, run: Run, model: Model, states: Kept, waiting: int) -> None:
        """`waiting` is how many other micro-batches a pipeline stage has begun."""
        self.run, self.model, self.states, self.tokens = run, model, states, run.tokens
        recipe, strategy = get_recipe(run.held), get_strategy(run.strategy)
        self.recipe, self.stage = recipe, strategy.stage
        self.dtype, adapters = compute_dtype(recipe.name, run.base_dtype if run.lora_rank else "")
        self.unit = 4 if self.dtype == "fp32" else 2
        self.reduce = DTYPE_BYTES[run.reduce_dtype]
        self.fsdp, self.deepspeed = run.strategy in FSDP, run.held == "deepspeed"
        self.fsdp2, self.stays = self.fsdp and run.strategy != "fsdp1", not run.reshard_after_forward
        # Bytes of a gradient element between steps, and as the backward leaves it.
        self.grad = 2 if self.deepspeed else recipe.itemsize("gradients")
        self.made = self.unit if self.fsdp or self.deepspeed else self.grad
        # Without a sync each gradient waits whole; else earlier micro-batches, or a buffer, hold them already.
        self.whole = run.no_sync and run.accumulation > 1
        buffer = run.held == "megatron" or (self.deepspeed and self.stage == 3)
        self.present = buffer or (run.accumulation > 1 and not self.whole)
        # Whether a new gradient is added to it at once: one of the same dtype, of the same shape.
        self.added = (self.whole and self.reduce == self.unit) or (self.present and not (self.fsdp or self.deepspeed))
        self.layout, self.align = layout_of(strategy, recipe, run.world_size)
        attention = attention_of(model, run.attention)
        # What each kind of layer costs, and which kind each layer is.
        self.costs = [block_cost(model, b, self.dtype, attention, run.seq_len, adapters) for b in model.blocks]
        self.order, self.trains, self.head_trains = _shape(model)
        self.count = len(self.order)
        self.head = head_cost(model, self.dtype, run.loss, attention, run.checkpointing, run.seq_len)
        self.tables = self.head.tables * run.seq_len + self.head.inputs * run.tokens
        if not model.last:  # a pipeline stage before the last
            self.head = replace(self.head, norm=0, forward=0, backward=0, weight_work=0)
        self.size = [self.gather(b.tensors) for b in model.blocks]
        self.scatters = [self.scattered(b.tensors) for b in model.blocks]
        base = run.base_dtype
        self.unpacked = [max((2 * t.numel for t in b.tensors if packed(t, base)), default=0) for b in model.blocks]
        # Weights that autocast has cast and the backward still needs.
        self.autocast = self.dtype == "autocast"
        self.cast = [2 * _matrices(b.tensors) * self.autocast for b in model.blocks]
        self.head_cast = 2 * _matrices(model.first if model.tied else model.last) * self.autocast
        self.ends = run.wrap == "block+ends" and not model.tied
        both = (*model.first, *model.last)
        apart = (model.first * self.stays, model.first, model.last)
        self.root, self.first, self.last = apart if self.ends else (both, both, both)
        self.root_size, self.first_size, self.last_size = map(self.gather, (self.root, self.first, self.last))
        # Under a frozen embedding nothing is kept before the first adapter; but for checkpoints its output is made to
        # take a gradient, and stays.
        lora, first = bool(run.lora_rank and model.first), self.costs[self.order[0]]
        self.leaf = lora and run.checkpointing != "none"
        start = (first.again if self.leaf else -first.frozen) * (lora and not checkpointed(run.checkpointing, 0))

        def keeps(layer: int, kind: int) -> int:
            stays = 0 if checkpointed(run.checkpointing, layer) else self.cast[kind] + self.costs[kind].held
            return self.costs[kind].kept(run.checkpointing, layer) * self.tokens + stays

        # Running sums: what layers 0 to n keep, and what is kept of the gradients of the last n.
        self.kept = [*accumulate(starmap(keeps, enumerate(self.order)), initial=start * self.tokens)]
        self.kept = [waiting * self.kept[-1] + kept for kept in self.kept]
        share = [self.grad * self.share(b.tensors, 2) for b in model.blocks]
        self.done = [*accumulate((share[kind] for kind in reversed(self.order)), initial=0)]

    def gather(self, tensors: Iterable[Tensor], stored: bool = False) -> int:
        """Bytes of whole tensors in the compute dtype, or as they are stored; a frozen NF4 matrix is packed."""
        base, held = self.run.base_dtype, self.recipe.itemsize("weights")
        frozen, trained = (DTYPE_BYTES.get(base, 2), held) if stored else (self.unit, self.unit)
        sizes = ((t, t.numel if stored else self.numel(t), trained if t.trainable else frozen) for t in tensors)
        return sum(t.count * (ceil_div(t.numel, 2) if packed(t, base) else size * numel) for t, numel, size in sizes)

    def numel(self, tensor: Tensor) -> int:
        """Elements of a gathered tensor: FSDP2 fills dimension 0 up to a multiple of the ranks."""
        ranks = self.run.world_size // (self.run.ep if tensor.kind == "expert" else 1)
        return ranks * prod(rows(tensor.shape, ranks, 0)) if self.layout == "rows" else tensor.numel

    def scattered(self, tensors: Iterable[Tensor]) -> tuple[int, int]:
        """FSDP: bytes of a reduce-scatter's input, and of its output, with a copy for gradients of another dtype."""
        numel = sum(t.count * self.numel(t) for t in tensors if t.trainable)
        output = (self.reduce + self.grad * (self.reduce != self.grad)) * ceil_div(numel, self.run.world_size)
        return self.reduce * numel, output

    def share(self, tensors: Iterable[Tensor], stage: int) -> int:
        """Trainable elements that one rank has of `tensors` where they are divided from `stage` on."""
        cut = self.layout if self.stage >= stage else "whole"
        trained = [t for t in tensors if t.trainable]
        experts = [t for t in trained if t.kind == "expert" and self.run.ep > 1]
        others = [t for t in trained if t not in experts] if experts else trained
        found = largest_share(others, cut, self.run.world_size, self.align)
        return found + (largest_share(experts, cut, self.run.world_size // self.run.ep, self.align) if experts else 0)

    def edges(self) -> int:
        """Bytes of gradients that DeepSpeed's stages 1 and 2 keep whole because their partition cuts them."""
        return self.grad * edge_elements(self.model, self.run.world_size) if self.deepspeed and self.stage < 3 else 0

    def phase(self, instant: str, gradients: int, lines: Mapping[str, int]) -> Phase:
        """The states, the gradients that exist by then, and `lines`; empty lines are left out."""
        run, found = self.run, {name: getattr(self.states, name) for name in _STATES} | {"gradients": gradients}
        # torch's own ZeRO-1 wraps DDP, whose buckets live from the first step to the last; Megatron's hold gradients.
        if (run.strategy == "ddp" and run.held != "megatron") or self.layout == "greedy":
            found["gradient buckets"] = self.grad * self.model.num_trainable * (not run.gradient_as_bucket_view)
        if self.deepspeed and self.stage == 3:
            found["reduce bucket"] = self.unit * run.reduce_bucket_size
        elif self.deepspeed and run.offload != "none":  # where a gradient comes back to be added to
            found["offload buffer"] = self.unit * max(t.numel for t in self.model.tensors if t.trainable)
        some = ((name, size) for name, size in {**found, **lines}.items() if size)
        return Phase(instant=instant, lines=tuple(Line(line=n, bytes=b, kind=_KINDS.get(n, "exact")) for n, b in some))

    def instants(self) -> Iterator[Phase]:
        """The instants that can be the worst, each at its own worst: layers, loss, layers again, embedding."""
        tokens, head, gradients = self.tokens, self.head, self.gradients(self.count)
        saved = {"saved activations": self.kept[self.count] + self.tables + head.norm * tokens}
        before = saved | (self.gathered_parameters() if self.deepspeed else self.around(self.count))
        # The cast weights that train live until the forward leaves autocast, checkpointed or not.
        cached = [2 * _matrices(t for t in b.tensors if t.trainable) * self.autocast for b in self.model.blocks]
        again = sum(cached[k] for n, k in enumerate(self.order) if checkpointed(self.run.checkpointing, n))
        made, early = self.made * self.head_trains, self.run.loss == "chunked"  # then made with the loss
        forward = {"logits and loss": head.forward * tokens, "head gradient": made * early}
        # With no prefetch to take its place the last unit's buffer is still there.
        buffer = self.last_size if self.ends else self.size[self.order[-1]] * self.stays
        forward["all-gather buffer"] = buffer * self.fsdp2
        loss = {"logits and loss": head.backward * tokens, "head gradient": made * early * (not self.added)}
        weight = {"logits and loss": head.weight_work * tokens, "head gradient": made * (self.stage < 2 or self.fsdp)}
        cast = {"weights cast by autocast": self.head_cast}
        if self.fsdp2:
            yield self.forward()
        yield self.phase("head_fwd", gradients, before | forward | {"weights cast by autocast": self.head_cast + again})
        around = self.around(self.count)
        last = [(gradients, before | loss | cast), (gradients, saved | around | weight | cast)]
        if self.ends and self.fsdp2:  # the head alone is reduced, and then all is gathered once more for the norm
            tail = {
                "all-gather buffer": buffer * (not self.whole),
                "reduce-scatter input": self.scattered(self.last)[0],
            }
            last.append((self.gradients(self.count - 1), saved | around | tail))
        yield max((self.phase("head_bwd", *found) for found in last), key=lambda phase: phase.bytes)
        yield self.layers()
        yield self.root_phase()

    def gradients(self, layer: int) -> int:
        """Bytes of gradients kept while layer `layer` is in its backward (the count: the head; -1: the root)."""
        if "gradients" in self.run.offloaded:
            return 0
        if self.present:
            return self.states.gradients * self.grad // self.recipe.itemsize("gradients")
        if layer == self.count:
            return 0
        ends = 0
        if self.ends or not (self.fsdp or (self.deepspeed and self.stage > 1)):
            ends = self.grad * (self.head_trains if self.model.tied else self.share(self.model.last, 2))
        return ends + self.done[self.count - 1 - layer]

    def around(self, layer: int) -> Lines:
        """What the strategy holds around the backward of layer `layer` (the count: the head)."""
        if self.fsdp:
            return self.gathered(layer)
        tensors = self.model.last if layer == self.count else self.model.blocks[self.order[layer]].tensors
        return self.buckets(tensors) if self.deepspeed else {}

    def gathered(self, layer: int) -> Lines:
        """FSDP: gathered units, the one ahead, and gradients on their way to being reduced."""
        count, order, lines = self.count, self.order, Lines()
        if self.whole:
            left = self.model.num_trainable - sum(self.trains[kind] for kind in order[layer + 1 :])
            lines["gradients accumulated whole"] = self.reduce * left
        if self.stays:
            lines["gathered layers"] = sum(self.size[kind] for kind in order[: layer + 1])
        elif layer == count:
            lines["prefetched unit"] = self.size[order[-1]] * (not self.ends)
        else:
            lines["gathered layer"] = self.size[order[layer]]
            lines["prefetched unit"] = self.size[order[layer - 1]] if layer else self.first_size * self.ends
        lines["gathered root"] = self.root_size
        if layer == count:
            return lines | {"gathered head": self.last_size * self.ends}
        lines["head gradient"] = self.unit * self.head_trains * (not self.ends) * (self.model.tied or not self.added)
        if self.fsdp2:
            lines["reduce-scatter input"] = self.scatters[order[layer + 1]][0] if layer + 1 < count else 0
        return lines

    def gathered_parameters(self) -> Lines:
        """DeepSpeed's stage 3 keeps up to `stage3_max_live_parameters` gathered, and at least one tensor."""
        if self.stage < 3:
            return {}
        run, largest = self.run, max(t.numel for t in self.model.tensors)
        live = max(run.stage3_max_live_parameters, largest) + run.stage3_prefetch_bucket_size
        return {"gathered parameters": min(self.gather(self.model.tensors), self.unit * live)}

    def buckets(self, made: Iterable[Tensor]) -> Lines:
        """DeepSpeed's buckets, and the copies that reducing the gradients of the tensors `made` takes.

        A gradient that is larger than the bucket goes alone: itself and two copies in stage 3 (measured).
        """
        run, lines = self.run, self.gathered_parameters()
        largest = max((t.numel for t in made if t.trainable), default=0)
        if self.stage < 3:
            lines["reduce bucket"] = self.unit * run.reduce_bucket_size * (2 if run.overlap_comm else 1)
        copies = min(run.reduce_bucket_size, self.model.num_trainable)
        if self.stage == 3 and largest > run.reduce_bucket_size:
            copies = 3 * largest
        elif self.stage > 1:  # stage 1 still has all of them where the backward left them
            copies += largest
        return lines | {"gradients being reduced": self.unit * copies}

    def forward(self) -> Phase:
        """FSDP2 as it copies a layer out of its all-gather's buffer: the buffer before lives until then."""
        tried = []
        for layer in _ends(self.order, self.run.checkpointing):
            size = [self.size[kind] for kind in self.order[: layer + 1]]
            before = size[layer - 1] if layer else self.first_size
            boundary = self.costs[self.order[layer]].boundary * self.tokens
            tried.append(
                {
                    "gathered root": self.root_size,
                    "gathered layer": size[layer],
                    "gathered layers": sum(size[:layer]) * self.stays,
                    "all-gather buffer": before + size[layer],
                    "gradients accumulated whole": self.reduce * self.model.num_trainable * self.whole,
                    "saved activations": self.kept[layer] + self.tables + boundary,
                }
            )
        tried.append({"gathered layer": self.first_size, "all-gather buffer": self.first_size})
        gradients = self.gradients(self.count)
        return max((self.phase("fwd_layers", gradients, lines) for lines in tried), key=lambda phase: phase.bytes)

    def layers(self) -> Phase:
        """The worst layer and instant of the backward through the layers.

        Between two layers alike with alike neighbours every line changes evenly, so only the ends are tried.
        """
        found = []
        for layer in _ends(self.order, self.run.checkpointing):
            gradients, around = self.gradients(layer), self.around(layer)
            tried = [around | self.moment(layer, moment, around) for moment in self.costs[self.order[layer]].moments]
            if self.fsdp2:
                tried += self.unsharded(layer, around)
            found += [(gradients + sum(lines.values()), gradients, lines) for lines in tried]
        _, gradients, lines = max(found, key=lambda instant: instant[0])
        return self.phase("layers_bwd", gradients, lines)

    def unsharded(self, layer: int, around: Lines) -> Iterator[Lines]:
        """FSDP2 just before and just after the backward of a layer.

        Before: its unit in the all-gather's buffer and, copied out, as tensors. After: the reduce-scatter's input, and
        the gradients that are copied to it or, these freed, its output, which is larger on few ranks.
        """
        kind = self.order[layer]
        boundary = self.costs[kind].boundary * self.tokens
        if not self.stays:
            before = {"prefetched unit": 0, "all-gather buffer": self.size[kind], "activation gradients": boundary}
            yield around | before | {"saved activations": self.kept[layer + 1] + self.tables}
        gathered = sum(self.size[kind] for kind in self.order[:layer]) * self.stays
        around = around | {
            "gathered layer": 0,
            "gathered layers": gathered,
            "reduce-scatter input": self.scatters[kind][0],
        }
        around |= {"saved activations": self.kept[layer] + self.tables, "activation gradients": boundary}
        yield around | {"layer gradients": self.unit * self.trains[kind] * (not self.whole)}
        yield around | {"reduce-scatter output": self.scatters[kind][1] * (self.added or not self.whole)}

    def moment(self, layer: int, moment: Moment, around: Lines) -> Lines:
        """One instant of the backward of one layer."""
        kind = self.order[layer]
        again = checkpointed(self.run.checkpointing, layer)
        casts = self.cast[kind] - 2 * moment.cast * self.autocast
        saved = moment.saved * self.tokens + moment.held + casts
        before = self.kept[layer] + self.tables + self.costs[kind].again * again * self.tokens
        made = 0 if self.deepspeed and self.stage > 1 else moment.numel
        if self.added:
            made = moment.op.fresh
        # A tied head's gradient waits for the embedding's, to be added as one.
        waits = self.made * self.head_trains * (self.present and self.model.tied and not self.fsdp)
        whole = self.run.strategy == "fsdp1" and moment.numel == self.trains[kind]
        return {
            "saved activations": before + (0 if again else saved),
            "recomputed layer": saved * again,
            "dequantised matrix": self.unpacked[kind],
            "activation gradients": moment.op.work * self.tokens,
            "layer gradients": self.made * made
            + moment.op.summed
            + 2 * min(moment.op.fresh, moment.op.cast) * self.autocast,
            "head gradient": around.get("head gradient", 0) + waits,
            "flat gradient": self.unit * moment.numel * whole,
        }

    def root_phase(self) -> Phase:
        """The embedding's backward, where a tied matrix has two gradients, then their sum; the last reduction."""
        model, layer, unit = self.model, self.order[0], self.unit
        embedded = _trainable(model.first)
        tied = embedded * model.tied
        incoming = {"activation gradients": self.costs[layer].boundary * self.tokens * (1 + self.leaf)}
        if self.fsdp:
            trains, made = _trainable(self.first), unit * embedded * (not model.tied)
            new = made if self.added and made else unit * trains
            around = {"gathered root": self.first_size, "reduce-scatter input": self.scatters[layer][0]}
            around["gradients accumulated whole"] = self.reduce * trains * self.whole
            rounds = [(new, around)]
            # Micro-batches before the last reduce nothing, and the first has no gradient of the root yet.
            earlier = ((unit * trains, model.num_trainable - trains), (new, model.num_trainable))
            for own, numel in earlier[: self.run.accumulation - 1] if self.whole else ():
                alone = {"gradients": 0, "reduce-scatter input": 0, "gradients accumulated whole": self.reduce * numel}
                rounds.append((own, around | alone))
            tried = [lines | incoming | {"root gradients": own + unit * tied} for own, lines in rounds]
            tried += [lines | {"root gradients": own + 2 * unit * tied} for own, lines in rounds]
            flat, (into, output) = unit * trains * (not self.fsdp2), self.scattered(self.first)
            tried.append({"root gradients": unit * trains, "reduce-scatter input": into + flat})
            if self.fsdp2:
                last = {"root gradients": made, "reduce-scatter input": into}
                tried.append(last | {"reduce-scatter output": output})
                tried.append(last | {"gradients accumulated whole": self.reduce * trains * self.whole})
                whole = {"gradients": 0, "gradients accumulated whole": self.reduce * model.num_trainable}
                # An earlier micro-batch, as the root's gradients take the dtype of their sum.
                tried += [whole | {"root gradients": unit * embedded}] * self.whole
        elif not self.deepspeed:  # the head's gradient is among those kept
            made = self.made * embedded
            both = made + self.made * tied * (1 + self.present)
            tried = [incoming | {"root gradients": made}, {"root gradients": both}]
        elif self.stage == 1:
            part = self.grad * self.share(model.tensors, 1) + self.edges()
            tried = [self.buckets(model.first) | {"root gradients": unit * embedded, "averaged gradients": part}]
        else:
            tried = [self.buckets(model.first) | incoming | {"gradients beyond the partition": self.edges()}]
        found = (self.phase("root_bwd", self.gradients(-1), lines) for lines in tried)
        return max(found, key=lambda phase: phase.bytes)

    def step(self) -> Phase:
        """The optimizer's step: all the states, what DeepSpeed flattens, and the optimizer's temporaries."""
        run, model = self.run, self.model
        if "optimizer" in run.offloaded:
            return self.phase("step", self.gradients(-1), {})
        itemsize = self.recipe.itemsize("master") or self.recipe.itemsize("weights")
        numel, trained = self.share(model.tensors, 1), [replace(t, count=1) for t in model.tensors if t.trainable]
        if not self.deepspeed:
            # Each tensor is a parameter of the optimizer, or what a rank has of it.
            largest = max((self.share([t], 1) for t in trained), default=0)
            temporaries = step_temporaries(run.step, itemsize, numel, largest)
            return self.phase("step", self.states.gradients, {"step temporaries": temporaries})
        # One flat tensor, made fp32. Stage 3 takes a sub-group at a time and keeps its 16-bit gradients; the
        # others flatten theirs, and free them before the update.
        part, flat, gradients = numel, 2 * self.grad * numel + self.edges(), 0
        if self.stage == 3:
            largest = max((t.numel for t in trained), default=0)
            part = min(numel, run.sub_group_size + largest // run.world_size)
            flat, gradients = self.grad * part, self.grad * numel
        update = step_temporaries(run.step, itemsize, part, part)
        return self.phase("step", gradients, {"fp32 gradients": 4 * part, "step temporaries": max(update, flat)})

    def load(self) -> Phase:
        """Loading: what the rank keeps of the weights, or on the GPU the whole model before it is divided."""
        whole = self.run.load == "gpu" and self.stage == 3
        size = self.gather(self.model.tensors, stored=True) if whole else self.states.weights
        name = f"weights{' before sharding' * whole}"
        lines = (Line(line=name, bytes=size),) if size else ()
        return Phase(instant="whole model on the GPU" if whole else "weights on the GPU", lines=lines)

    def save(self) -> Phase:
        """Saving: the states, and for a full state dict one unit at a time gathered as it is stored."""
        full = self.run.save == "full" and self.stage == 3
        units = (self.first, self.last, *(block.tensors for block in self.model.blocks))
        gathered = full * max(self.gather(unit, stored=True) for unit in units)
        return self.phase("full state dict" if full else "shards", 0, {"gathered unit": gathered})


@lru_cache(maxsize=256)
def _shape(model: Model) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The kind of each layer, the elements that train in each kind, and those of the head."""
    kinds = sorted((layer, kind) for kind, block in enumerate(model.blocks) for layer in block.layers)
    head = model.first if model.tied else [t for t in model.last if t.name.startswith("lm_head")]
    trains = tuple(_trainable(block.tensors) for block in model.blocks)
    return tuple(kind for _, kind in kinds), trains, _trainable(head)


@lru_cache(maxsize=256)
def _ends(order: tuple[int, ...], checkpointing: str) -> tuple[int, ...]:
    """Layers of which one has the worst instant: the first and last of each kind with its neighbours."""
    keys = [None, *((kind, checkpointed(checkpointing, layer)) for layer, kind in enumerate(order)), None]
    ends: dict[object, list[int]] = {}
    for layer in range(len(order)):
        ends.setdefault(tuple(keys[layer : layer + 3]), []).append(layer)
    return tuple(sorted({layer for found in ends.values() for layer in (found[0], found[-1])}))


def _matrices(tensors: Iterable[Tensor]) -> int:
    """Elements of matrices, which autocast casts."""
    return sum(t.count * t.numel for t in tensors if t.kind in ("linear", "router", "embedding"))


def _trainable(tensors: Iterable[Tensor]) -> int:
    return sum(t.count * t.numel for t in tensors if t.trainable)
