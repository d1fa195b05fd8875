"""What PyTorch's own memory trackers say of one training step, on fake tensors and fake collectives.

No memory is allocated and no GPU is asked: the trackers count the storages that the ops would make, and
when they would free them. Run as a program it reads one run per line of standard input, as JSON, and
prints what was found in the same form; with `record` it takes every run of `tracked` again and rewrites
`recorded/tracker.json`, but for the whole models. A run names a known model, or gives a config of its own.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import peft
import torch
import torch.distributed as dist
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import masking_utils

from tests.oracle.tracked import DEFAULTS, DRAWN, RECORDED, config_of, drawn, recorded, runs

BF16, FP32 = torch.bfloat16, torch.float32
DEVICE = torch.device("cpu")
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}


class Watch:
    """The instant that the step is in, and the largest total in each."""

    def __init__(self) -> None:
        self.instant, self.peaks = "", dict[str, int]()

    def see(self, snapshot: Mapping[torch.device, Mapping[str, int]]) -> None:
        if self.instant and DEVICE in snapshot:
            self.peaks[self.instant] = max(self.peaks.get(self.instant, 0), snapshot[DEVICE]["Total"])


def watched(base: type, watch: Watch) -> type:
    """The tracker `base`, telling `watch` its total after each op."""

    class Watched(base):  # type: ignore[misc]
        def _update_peak_stats(self, peak_state: Any) -> None:
            watch.see(self._curr_mem_snap)

        def _track_module_params_and_buffers(self, module: torch.nn.Module, install_grad_hooks: bool = True) -> Any:
            trains = all(p.requires_grad for p in module.parameters())  # a frozen parameter takes no hook
            return super()._track_module_params_and_buffers(module, install_grad_hooks and trains)

    return Watched


def replace_parameters(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
    """`Module._apply` without swapping tensors, which fake ones refuse."""
    for module in self.modules():
        for name, param in module._parameters.items():
            if param is not None:
                module._parameters[name] = torch.nn.Parameter(fn(param.detach()), param.requires_grad)
    return self


class Kernel(torch.autograd.Function):
    """A stand-in for CUDA's memory-efficient attention, for heads whose values are narrower than their keys.

    It allocates and keeps what that kernel does; the CPU has none and would build the whole square.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        batch, heads, length, _ = query.shape
        out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(query, key, value, out, query.new_empty(batch, heads, length, dtype=FP32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def attend(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    if query.shape[-1] != value.shape[-1]:
        return Kernel.apply(query, key, value)
    return ATTEND(query, key, value, *args, **kwargs)


ATTEND = torch.nn.functional.scaled_dot_product_attention


class FusedLoss(torch.autograd.Function):
    """A stand-in for the fused linear cross-entropy of Liger Kernel 0.8.5, whose Triton kernel no CPU runs.

    It allocates and keeps what that does: logits of a chunk of tokens, over which the kernel writes their
    gradient, and both gradients, made in the forward.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any) -> Any:
        tokens, per_chunk = hidden.shape[0], -(-weight.shape[0] // hidden.shape[1])
        chunk = 1 << (-(-tokens // per_chunk) - 1).bit_length()
        grad_hidden, grad_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        losses = hidden.new_zeros(tokens, dtype=FP32)
        for part, grad in zip(hidden.split(chunk), grad_hidden.split(chunk), strict=True):
            logits = part @ weight.t()
            torch.mm(logits, weight, out=grad)
            torch.addmm(grad_weight, logits.t(), part, out=grad_weight)
            del logits
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.saved_tensors


def grouped(mat_a: Any, mat_b: Any, *args: Any, **kwargs: Any) -> Any:
    """What a grouped product makes, in fp32 too: PyTorch's kernels take it, its check of fake tensors does not."""
    if mat_a.dtype == FP32:
        return GROUPED(mat_a.to(BF16), mat_b.to(BF16), *args, **kwargs).to(FP32)
    return GROUPED(mat_a, mat_b, *args, **kwargs)


GROUPED = torch._meta_registrations._meta_grouped_mm_common


def fuse(model: Any) -> None:
    """Let `model` compute its loss without its logits."""

    def forward(input_ids: Any, labels: Any, **_: Any) -> Any:
        hidden = model.model(input_ids=input_ids).last_hidden_state
        loss = FusedLoss.apply(hidden.view(-1, hidden.shape[-1]), model.lm_head.weight)
        return transformers.modeling_outputs.CausalLMOutput(loss=loss)

    model.forward = forward


def build(run: Mapping[str, Any], mesh: Any) -> tuple[Any, Any]:
    """The model, sharded where the run says so, and the module with its layers."""
    half = run["recipe"] == "pure-bf16" or run["base_dtype"] == "bf16"
    config = transformers.AutoConfig.for_model(**{"use_cache": False} | config_of(run))
    config._attn_implementation = run["attention"]
    torch.set_default_dtype(BF16 if half else FP32)  # a fake module cannot be converted later
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=BF16 if half else FP32)
    torch.set_default_dtype(FP32)
    model.train()
    whole = model
    if run["lora_rank"]:
        lora = peft.LoraConfig(r=run["lora_rank"], target_modules="all-linear", task_type="CAUSAL_LM")
        fp32 = run["recipe"] != "pure-bf16"
        whole = peft.get_peft_model(model.requires_grad_(False), lora, autocast_adapter_dtype=fp32)
        if run["checkpointing"] != "none":
            whole.enable_input_require_grads()
    if run["checkpointing"] != "none":
        whole.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in model.model.layers[::2] if run["checkpointing"] == "selective" else ():
        layer.gradient_checkpointing = False
    if run["loss"] == "chunked":
        fuse(model)
    if run["strategy"] == "fsdp2":
        mixed = run["recipe"] == "fsdp2-mixed"
        reduce = BF16 if run["reduce_dtype"] == "bf16" else FP32
        settings = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(BF16, reduce) if mixed else MixedPrecisionPolicy()}
        if not run["reshard_after_forward"]:
            settings["reshard_after_forward"] = False
        for layer in model.model.layers:
            fully_shard(layer, **settings)
        if run["wrap"] == "block+ends":  # as Accelerate does where the two matrices are not tied
            fully_shard(model.model.embed_tokens, **settings)
            fully_shard([model.model.norm, model.lm_head], **settings | {"reshard_after_forward": False})
        fully_shard(whole, **settings)
    return whole, model


def measure(given: Mapping[str, Any]) -> dict[str, Any]:
    """One optimizer step with warm states: the peak, the instant of it, and the peak of each instant, in bytes."""
    run = DEFAULTS | given
    torch.nn.functional.scaled_dot_product_attention = attend
    torch.nn.Module._apply = replace_parameters
    torch._meta_registrations._meta_grouped_mm_common = grouped
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # else a fake mask of s·s is built
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=run["world_size"])
    mesh = init_device_mesh("cpu", (run["world_size"],))
    watch = Watch()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, inner = build(run, mesh)
        trainable = [p for p in model.parameters() if p.requires_grad]
        step = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[run["step"]]
        optimizer = torch.optim.AdamW(trainable, lr=1e-3, **step)
        tokens = torch.zeros(run["micro_batch"], run["seq_len"], dtype=torch.long)
        if run["strategy"] == "fsdp2":
            tracker = watched(FSDPMemTracker, watch)(model, optimizer)
            tracker.track_inputs((tokens,))
        else:
            tracker = watched(MemTracker, watch)()
            tracker.track_external(model, optimizer, tokens)

        def at(instant: str, forward: str = "") -> Any:
            """A hook that starts `instant` when the gradient of a module's output is there."""

            def switch(_: Any) -> None:
                watch.instant = watch.instant and instant

            def hook(module: Any, args: Any, output: Any) -> None:
                out = output[0] if isinstance(output, tuple) else output
                if out.is_leaf and out.requires_grad:
                    leaves.append(out)
                if watch.instant in ("fwd_layers", "head_fwd"):
                    if out.requires_grad:
                        out.register_hook(switch)
                    watch.instant = forward or watch.instant

            return hook

        leaves: list[Any] = []  # peft makes the embedding's output one; the trackers' hooks keep the graph, and so it
        inner.model.layers[-1].register_forward_hook(at("layers_bwd", "head_fwd"))
        inner.get_input_embeddings().register_forward_hook(at("root_bwd"))
        with tracker:
            for warm in (False, True):
                for micro in range(run["accumulation"]):
                    if run["no_sync"]:
                        model.set_requires_gradient_sync(micro == run["accumulation"] - 1)
                    watch.instant = "fwd_layers" if warm else ""
                    with torch.autocast("cpu", BF16, enabled=run["recipe"] == "autocast"):
                        loss = model(input_ids=tokens, labels=tokens).loss
                    watch.instant = "head_bwd" if warm else ""
                    loss.backward()
                    del loss
                    while leaves:
                        leaf = leaves.pop()
                        leaf.grad, leaf.data = None, leaf.new_empty(0)
                    tracker.reset_mod_stats()
                watch.instant = "step" if warm else ""
                optimizer.step()
                optimizer.zero_grad()
                watch.instant = ""
                gc.collect()
    instant = max(watch.peaks, key=watch.peaks.__getitem__)
    return {
        "run": dict(given),
        "params": sum(p.numel() for p in model.parameters()),
        "peak_bytes": watch.peaks[instant],
        "peak_instant": instant,
        "peak_by_instant": watch.peaks,
    }


def record() -> None:
    """Rewrite the record, a line a run."""
    found = recorded("tracker") | {"others": [*map(measure, runs())], "drawn": [*map(measure, drawn(1, DRAWN))]}
    found["versions"] |= VERSIONS | {"date": time.strftime("%Y-%m-%d")}
    groups = (
        f" {json.dumps(group)}: [\n" + ",\n".join(f"  {json.dumps(row)}" for row in found[group]) + "\n ]"
        for group in ("llama", "others", "drawn")
    )
    text = ",\n".join((f' "versions": {json.dumps(found["versions"])}', *groups))
    (RECORDED / "tracker.json").write_text(f"{{\n{text}\n}}\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        record()
    else:
        for line in sys.stdin:
            print(json.dumps(measure(json.loads(line))), flush=True)
