"""What one step needs beside the training state: activations, logits, and the optimizer's temporaries.

A decoder layer is written down as its operations in the order of the forward pass, each with the bytes
per token that PyTorch keeps for its backward and the bytes that are alive while that backward runs.
From this list follow what a layer keeps and when its own backward peaks.
The operations are those of transformers 5.24.0, checked against PyTorch's memory trackers (Verification page).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from types import MappingProxyType

from calc.models import Block, Model, Tensor
from calc.units import records, whole

#: Families whose operations are known here, each with what its layers do: `fp32_norms` multiply by their weight in
#: fp32 and keep that copy, `split_rope` concatenates what rotary embedding turns and what it leaves, which copies
#: attention's output once more, `fp32_router` casts the router's input, `fp32_weighing` the experts' outputs, and
#: `fp32_rope` keeps cosines and sines in fp32, `rope_by_kind` those of each kind of layer.
_TRAITS = MappingProxyType({record["family"]: tuple(record["traits"]) for record in records("activations")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a layer, in bytes per token: kept for its backward, and alive during it.

    `work` counts gradients and temporaries, the gradient of the residual stream among them.
    `numel` are the weight elements whose gradient it makes, `fresh` those of the largest weight, `cast` those of the
    weights, frozen or not, that autocast casts; `result` is what selective recomputation keeps of it (the outputs of
    matrix products and of attention); `summed` are the bytes of a weight to which adapters were added, kept whatever
    the tokens: its gradient is gone again at the next operation.
    """

    name: str
    saved: int = 0
    summed: int = 0
    work: int = 0
    numel: int = 0
    fresh: int = 0
    cast: int = 0
    result: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One instant of a layer's backward, that of `op`: bytes per token still saved, and elements with a gradient.

    `held` are bytes kept whatever the tokens; `numel` and `cast` count the weights from the layer's end to here.
    """

    op: Op
    saved: int
    held: int
    numel: int
    cast: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one layer costs, in bytes per token.

    `boundary` is its input, `again` what of that a recomputed layer does not share, `saved` what its backward
    needs, `frozen` what of it comes before the first weight that trains, `results` its matrix products and attention;
    `moments` are the instants at which its backward can peak. `held` are bytes kept whatever the number of tokens.
    """

    boundary: int
    again: int
    held: int
    saved: int
    frozen: int
    results: int
    moments: tuple[Moment, ...]

    def kept(self, checkpointing: str, layer: int) -> int:
        """Bytes per token that layer number `layer` keeps from forward to backward."""
        if checkpointing == "matmuls":
            return self.boundary + self.results
        return self.boundary if checkpointed(checkpointing, layer) else self.saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What follows the layers, in bytes per token: the final norm, and logits with their loss.

    `forward` and `backward` are the worst instants of the loss; `weight_work` is what is left of the
    logits while the head's own gradient is made.
    """

    norm: int
    forward: int
    backward: int
    weight_work: int
    inputs: int
    tables: int


def checkpointed(checkpointing: str, layer: int) -> bool:
    """Whether layer number `layer`, from 0, is recomputed; `selective` takes every second one."""
    return checkpointing in ("full", "matmuls") or (checkpointing == "selective" and layer % 2 == 1)


def windowed(config: Mapping[str, object], block: Block, seq_len: int) -> bool:
    """Whether a sliding window is shorter than the sequence, so that attention needs a mask."""
    window = config.get("sliding_window") if block.attention == "sliding" else None
    return bool(window) and seq_len > _int(config, "sliding_window")


def attention_of(model: Model, attention: str) -> str:
    """The attention that transformers runs: Gemma 2 has no SDPA and falls back to eager."""
    return "eager" if model.model_type == "gemma2" else attention


def unsupported(model: Model) -> str:
    """Why the activations of `model` are not computed; empty where they are.

    >>> from calc.models import load
    >>> unsupported(load("70B"))
    'a bare count has no architecture'
    >>> unsupported(load("llama-3.1-8b"))
    ''
    """
    if not model.has_architecture:
        return "a bare count has no architecture"
    if model.model_type not in _TRAITS:
        return f"the operations of a {model.model_type} layer are not written down"
    return ""


class _Layer:
    """The operations of one block; `b` is bytes of an activation, `s` of an element of the residual stream."""

    def __init__(self, model: Model, block: Block, dtype: str, adapters: str, attention: str, seq_len: int) -> None:
        self.block, self.config, self.family = block, model.config, model.model_type
        self.autocast, self.adapters = dtype == "autocast", adapters
        self.b = 4 if dtype == "fp32" else 2
        self.s = 2 if dtype == "bf16" else 4
        self.attention, self.seq_len = attention, seq_len
        self.hidden = _int(model.config, "hidden_size")
        self.by_name = {_short(t.name): t for t in block.tensors}

    def does(self, trait: str) -> bool:
        return trait in _TRAITS.get(self.family, ())

    def numel(self, *parts: str) -> int:
        """Trainable elements of the tensors whose module is one of `parts`."""
        return sum(_trainable(t) for part in parts for t in self.tensors_of(part))

    def width(self, name: str) -> int:
        """Outputs of a linear layer, 0 where there is none."""
        tensor = self.by_name.get(f"{name}.weight")
        return tensor.shape[0] if tensor else 0

    def norm(self, name: str, width: int, rows: int = 1, pending: int = 0, stream: bool = True) -> Op:
        """RMSNorm as transformers writes it, over `rows` rows of a token; `pending` gradients wait meanwhile.

        It keeps its input in fp32, a scale per row and the normalised copy that the weight multiplies.
        Backward peaks with five fp32 copies of its input beside the saved one, with four where the
        input is fp32 anyway (measured).
        """
        own = stream and self.s == 4  # the residual stream itself, in fp32
        product = 4 if self.does("fp32_norms") or own or self.b == 4 else 2
        saved = 4 * width + 4 * rows + (product * width if self.numel(name) else 0)
        total = (20 if own or self.b == 4 else 24) * width + 4 * rows + self.s * self.hidden + pending
        return Op(name=name, saved=saved, work=total - saved, numel=self.numel(name))

    def linear(self, name: str, into: int, out: int, *modules: str, shared: bool = False, work: int = 0) -> Op:
        """Linear layers that read one input; `shared` where another operation keeps that already.

        A weight that trains needs it, and so does an adapter: once for all of them, or once for each
        where the input is cast first (autocast, and PEFT before adapters of another dtype).
        """
        parts = modules or (name,)
        base = [p for p in parts if any(t.trainable for t in self.tensors_of(p) if t.kind != "adapter")]
        ranks = [t.shape[0] for p in parts for t in self.tensors_of(p) if ".lora_A." in t.name]
        casts = len(base) if self.autocast and not shared else 0
        wide = 4 if self.adapters == "fp32" else self.b
        if self.adapters != "same":
            casts += len(ranks)
        same = (base and not self.autocast) or (ranks and self.adapters == "same")
        saved = (wide if ranks else self.b) * into * casts + wide * sum(ranks)
        if same and not shared:
            saved += self.b * into
        fresh = max((_trainable(t) for p in parts for t in self.tensors_of(p)), default=0)
        cast = sum(t.numel for p in parts for t in self.tensors_of(p) if t.kind == "linear")
        numel = self.numel(*parts)
        return Op(name=name, saved=saved, work=work, numel=numel, fresh=fresh, cast=cast, result=self.b * out)

    def adapted(self, tensor: Tensor) -> bool:
        """Whether a weight that is a parameter of its module itself has adapters."""
        return any(t.name.startswith(f"{tensor.name}.lora_A.") for t in self.block.tensors)

    def tensors_of(self, module: str) -> list[Tensor]:
        """The tensors of one module and of its adapters."""
        return [t for t in self.block.tensors if f"{module}." in t.name]

    def ops(self) -> Iterator[Op]:
        h, names = self.hidden, self.by_name
        residual = self.s * h
        if "input_layernorm.weight" in names:
            yield self.norm("input_layernorm", h)
        yield from self.mla() if self.block.attention == "mla" else self.gqa()
        sandwich = "pre_feedforward_layernorm.weight" in names or "input_layernorm.weight" not in names
        yield self.norm("post_attention_layernorm", h)
        if "pre_feedforward_layernorm.weight" in names:
            yield self.norm("pre_feedforward_layernorm", h)
        if self.block.mlp == "moe":
            yield from self.moe()
        else:
            yield from self.mlp("mlp", residual)
        if sandwich:
            yield self.norm("post_feedforward_layernorm", h)

    def gqa(self) -> Iterator[Op]:
        """Grouped-query attention: q, k, v, their norms, rotary embedding, attention, output projection."""
        b, h = self.b, self.hidden
        num_heads, num_kv = _int(self.config, "num_attention_heads"), _int(self.config, "num_key_value_heads")
        query = self.by_name["self_attn.o_proj.weight"].shape[1]
        dim = query // num_heads
        keys = num_kv * dim
        fused = self.width("self_attn.qkv_proj")
        if "self_attn.q_norm.weight" in self.by_name:
            # Backward takes v first, then k, and q last; by then their gradients have become one of the layer's input.
            rows = 1 if self.by_name["self_attn.q_norm.weight"].shape[0] != dim else num_heads
            yield self.linear("q_proj", h, query)
            yield self.norm("q_norm", query, rows, pending=b * h, stream=False)
            yield self.linear("k_proj", h, keys, shared=not self.autocast)
            yield self.norm("k_norm", keys, min(rows, num_kv), pending=b * (query + h), stream=False)
            yield self.linear("v_proj", h, keys, shared=not self.autocast)
        else:
            parts = ("qkv_proj",) if fused else ("q_proj", "k_proj", "v_proj")
            yield self.linear("qkv", h, query + 2 * keys, *parts)
        # v is a slice of the fused projection, which stays whole.
        values = fused if fused else keys
        yield from self.core(query, query, keys, values, num_heads)
        yield self.linear("o_proj", query, h, shared=not self.does("split_rope"))

    def core(self, query: int, out: int, keys: int, values: int, num_heads: int) -> Iterator[Op]:
        """Attention itself: q, k, v, output and one fp32 number per head, or eager's squares of the sequence."""
        b, s = self.b, self.s * self.hidden
        if self.attention == "sdpa":
            bias = 0
            if windowed(self.config, self.block, self.seq_len):
                # A mask rules out grouped heads: keys and values are repeated (one head alone is a view of itself),
                # and the mask becomes a 16-bit bias.
                bias = self.seq_len
                if keys * num_heads > query:
                    keys = values = query
            saved = b * (query + out + keys + values + bias) + 4 * num_heads
            yield Op(name="attention", saved=saved, work=s + b * (2 * query + 2 * keys), result=b * out + 4 * num_heads)
            return
        # fp32 probabilities and, in 16 bit, their copy; keys and values repeated for every head.
        square = num_heads * self.seq_len
        copy = b * square if b == 2 else 0
        capped = b * square if _capped(self.config, self.family, "attn_logit_softcapping") else 0
        saved = b * (3 * query + out) + 4 * square + copy + capped
        yield Op(name="attention", saved=saved, work=s - b * query + 8 * square - copy, result=b * out)

    def mla(self) -> Iterator[Op]:
        """Multi-head latent attention: low-rank q and kv with a norm each, heads of two parts."""
        h, num_heads = self.hidden, _int(self.config, "num_attention_heads")
        nope, rope = _int(self.config, "qk_nope_head_dim"), _int(self.config, "qk_rope_head_dim")
        value, kv_rank = _int(self.config, "v_head_dim"), _int(self.config, "kv_lora_rank")
        q_rank, query, out = self.width("self_attn.q_a_proj"), num_heads * (nope + rope), num_heads * value
        first = "q_a_proj" if q_rank else "q_proj"
        yield self.linear("down", h, (q_rank or query) + kv_rank + rope, first, "kv_a_proj_with_mqa")
        if q_rank:
            yield self.norm("q_a_layernorm", q_rank, stream=False)
            yield self.linear("q_b_proj", q_rank, query)
        yield self.norm("kv_a_layernorm", kv_rank, stream=False)
        yield self.linear("kv_b_proj", kv_rank, num_heads * (nope + value))
        # The values are a slice of kv_b_proj's output, which stays whole.
        yield from self.core(query, out, query, num_heads * (nope + value), num_heads)
        yield self.linear("o_proj", out, h, shared=True)

    def mlp(self, module: str, residual: int, shared: bool = False) -> Iterator[Op]:
        """Gated MLP: gate, its activation, up and their product; `shared` where its input is kept already."""
        b, inner = self.b, self.by_name[f"{module}.down_proj.weight"].shape[1]
        fused = f"{module}.gate_up_proj.weight" in self.by_name
        parts = (f"{module}.gate_up_proj",) if fused else (f"{module}.gate_proj", f"{module}.up_proj")
        yield self.linear(f"{module}.up", self.hidden, 2 * inner, *parts, shared=shared)
        yield Op(name=f"{module}.product", saved=3 * b * inner, work=residual + 3 * b * inner)
        # An adapter that casts its input returns that gradient in fp32 before it becomes 16-bit (measured).
        cast = self.adapters != "same" and any(".lora_A." in t.name for t in self.tensors_of(f"{module}.down_proj"))
        work = residual + (4 * inner + 6 * self.hidden if cast else b * inner)
        yield self.linear(f"{module}.down_proj", inner, self.hidden, work=work)

    def moe(self) -> Iterator[Op]:
        """Routed experts as grouped products: every token's k copies are sorted by expert.

        The copies come back by an index whose backward makes three of their size (measured).
        """
        b, h, residual = self.b, self.hidden, self.s * self.hidden
        gate_up, down = self.by_name["mlp.experts.gate_up_proj"], self.by_name["mlp.experts.down_proj"]
        shared = [m for m in ("mlp.shared_experts", "mlp.shared_expert") if f"{m}.down_proj.weight" in self.by_name]
        total, inner = gate_up.shape[0], down.shape[2]
        chosen = int(gate_up.active * total)
        router = 4 * h if self.does("fp32_router") else 0
        trains = self.numel("mlp.gate") > 0
        saved = router * trains + b * h * (bool(shared) or (trains and not router)) + 4 * total + 26 * chosen
        yield Op(name="router", saved=saved, numel=self.numel("mlp.gate"), cast=self.by_name["mlp.gate.weight"].numel)
        # Autocast knows no grouped product: it runs in the dtype of its weights.
        b = 4 if self.autocast else b
        wide = 4 if self.does("fp32_weighing") else b
        copies, width = chosen * b * h, chosen * b * inner
        # peft adds the adapters of an expert to its weight, and that sum is kept and gets a gradient.
        up_sum, down_sum = (t.numel * self.adapted(t) for t in (gate_up, down))
        up, low = _trainable(gate_up), _trainable(down)
        back, keeps, holds = residual + copies, bool(up + up_sum), bool(low + down_sum)
        yield Op(name="experts.up", saved=copies * keeps, work=back + 2 * width, numel=up, fresh=up, summed=b * up_sum)
        yield Op(name="experts.product", saved=3 * width, work=residual + 3 * width)
        yield Op(name="experts.down", saved=width * holds, work=back + width, numel=low, fresh=low, summed=b * down_sum)
        yield Op(name="experts.back", saved=copies, work=residual + 3 * chosen * wide * h)
        for module in shared:
            yield from self.mlp(module, residual, shared=True)


def _trainable(tensor: Tensor) -> int:
    return tensor.count * tensor.numel if tensor.trainable else 0


def _short(name: str) -> str:
    return name.rpartition("*.")[2]


def _capped(config: Mapping[str, object], family: str, field: str) -> bool:
    """Whether logits pass a tanh, which keeps its output; Gemma 2 does so unless its config says null."""
    return config.get(field, family == "gemma2") not in (None, False)


def _int(config: Mapping[str, object], field: str) -> int:
    return whole(field, config.get(field))


def operations(model: Model, block: Block, attention: str = "sdpa", seq_len: int = 1) -> tuple[Op, ...]:
    """The operations of one bf16 layer in the order of the forward pass, each in bytes per token.

    >>> from calc.models import load
    >>> llama = load("llama-3.1-8b")
    >>> [op.name for op in operations(llama, llama.blocks[0])][:3]
    ['input_layernorm', 'qkv', 'attention']
    """
    return tuple(_Layer(model, block, "bf16", "same", attention, seq_len).ops())


@lru_cache(maxsize=1024)
def block_cost(model: Model, block: Block, dtype: str, attention: str, seq_len: int, adapters: str = "same") -> Cost:
    """What one layer of `block` costs in bytes per token, computing in `dtype` (bf16, fp32 or autocast).

    Formula: saved = Σ of its operations; a moment per operation, seen from the end of the layer: what is
    still saved, what is alive, and the gradients of the weights so far. Dominated moments are left out.
    `seq_len` matters to eager attention alone.
    Source: the operations of transformers' layers, measured by PyTorch's trackers (Verification page).

    >>> from calc.models import load
    >>> llama = load("llama-3.1-8b")
    >>> block_cost(llama, llama.blocks[0], "bf16", "sdpa", 2048).saved
    200840
    """
    layer = _Layer(model, block, dtype, adapters, attention, seq_len)
    ops = tuple(layer.ops())
    moments: list[Moment] = []
    saved, held, numel, cast = sum(op.saved for op in ops), sum(op.summed for op in ops), 0, 0
    for op in reversed(ops):
        numel, cast = numel + op.numel, cast + op.cast
        moments.append(Moment(op=op, saved=saved, held=held, numel=numel, cast=cast))
        saved, held = saved - op.saved, held - op.summed
    best = tuple(m for m in moments if not any(_covers(other, m) for other in moments))
    boundary = layer.s * layer.hidden
    # An fp32 input is itself the copy that the first norm keeps.
    shared = layer.s == 4 and ops[0].name == "input_layernorm"
    return Cost(
        boundary=boundary,
        again=0 if shared else boundary,
        held=sum(op.summed for op in ops),
        saved=sum(op.saved for op in ops),
        frozen=sum(op.saved for op in takewhile(lambda op: not (op.numel or op.summed), ops)),
        results=sum(op.result for op in ops),
        moments=best,
    )


def _covers(one: Moment, other: Moment) -> bool:
    """Whether `one` needs at least as much as `other` for any number of tokens."""
    needs = [(m.saved + m.op.work, m.held + m.op.summed, m.numel, m.op.fresh, -m.cast) for m in (one, other)]
    return one != other and all(mine >= its for mine, its in zip(*needs, strict=True))


@lru_cache(maxsize=1024)
def head_cost(model: Model, dtype: str, loss: str, attention: str, checkpointing: str, seq_len: int) -> Head:
    """The final norm and the loss in bytes per token.

    Formula, V = vocabulary: forward 2V logits + 4V in fp32 + 4V log-softmax; backward 4V log-softmax,
    4V and 4V of gradients = 12V. `chunked` is a fused linear cross-entropy: it makes the logits of h/V of
    the tokens at a time, so 2h or up to twice that, and makes both gradients in the forward, the head's in place.
    `inputs` are token ids and labels; `tables` are per position whatever the batch: cosines and sines. Checkpoints hold
    masks: eager attention's for each sequence and kind of layer, that of a sliding window once.
    Source: `ForCausalLMLoss` in transformers; the fused linear cross-entropy of Liger Kernel 0.8.5.

    >>> from calc.models import load
    >>> head_cost(load("llama-3.1-8b"), "bf16", "full", "sdpa", "full", 2048).backward
    1539072
    """
    config = model.config
    h, vocab = _int(config, "hidden_size"), _int(config, "vocab_size")
    b, own = 4 if dtype == "fp32" else 2, dtype != "bf16"  # own: the residual stream itself, in fp32
    train = any(t.trainable for t in model.last)
    traits = _TRAITS[model.model_type]
    wide = 4 if "fp32_norms" in traits or own else 2
    head = [t for t in (model.first if model.tied else model.last) if t.kind in ("linear", "embedding")]
    norm = 4 * h + 4 + (wide * h if train else 0) + (b * h if any(t.trainable for t in head) else 0)
    dim = _int(config, "qk_rope_head_dim" if config.get("qk_rope_head_dim") else "head_dim")
    inputs, kinds = 16, len({block.attention for block in model.blocks})
    tables = 2 * dim * (4 if "fp32_rope" in traits or own else 2) * (kinds if "rope_by_kind" in traits else 1)
    if checkpointing != "none":
        inputs += kinds * b * seq_len * (attention == "eager")
        tables += seq_len * any(windowed(config, block, seq_len) for block in model.blocks) * (attention == "sdpa")
    if loss == "chunked":
        # Then the norm's own backward is the worst.
        back = (20 if own else 24) * h + 4 - norm
        return Head(norm=norm, forward=2 * b * h, backward=back, weight_work=b * h, inputs=inputs, tables=tables)
    capped = b * vocab if _capped(config, model.model_type, "final_logit_softcapping") else 0
    output = 4 * h if dtype == "autocast" else 0  # the norm's output, which nobody saves but the caller holds
    return Head(
        norm=norm,
        forward=capped + (10 if b == 2 else 8) * vocab + output,
        backward=capped + 12 * vocab,
        weight_work=b * vocab * (dtype != "autocast") + b * h,
        inputs=inputs,
        tables=tables,
    )


def step_temporaries(step: str, itemsize: int, numel: int, largest: int) -> int:
    """Bytes that AdamW allocates at the step on one rank beside its states.

    Formula: fused 0; foreach itemsize·n over all n elements; for-loop 2·itemsize on the largest tensor.
    Source: torch.optim, measured (Verification page).

    >>> step_temporaries("foreach", 4, 1000, 10), step_temporaries("for-loop", 4, 1000, 10)
    (4000, 80)
    """
    if step == "fused":
        return 0
    return itemsize * numel if step == "foreach" else 2 * itemsize * largest


def compute_dtype(recipe: str, lora_base: str = "") -> tuple[str, str]:
    """What a recipe computes in (bf16, fp32 or autocast), and what its adapters do with their input.

    With LoRA on a 16-bit or NF4 base the base computes in bf16. Adapters of that dtype read the `same` input as the
    base, fp32 ones beside it (`fp32`) an fp32 copy each, and under autocast (`cast`) a bf16 copy each.
    Source: `_cast_input_dtype` in peft 0.21.2, measured.

    >>> compute_dtype("autocast"), compute_dtype("autocast", "nf4"), compute_dtype("fp32", "bf16")
    (('autocast', 'cast'), ('bf16', 'cast'), ('bf16', 'fp32'))
    """
    own = recipe if recipe in ("fp32", "autocast") and lora_base in ("", "fp32") else "bf16"
    return own, "cast" if recipe == "autocast" else "fp32" if recipe == "fp32" != own else "same"
