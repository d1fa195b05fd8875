"""The command line's words: its commands, and the options of each."""

from __future__ import annotations

import argparse
from functools import cache
from typing import NoReturn, TypeAlias

from calc.optimizers import OPTIMIZERS
from calc.precision import RECIPES
from calc.settings import CHOICES, DEFAULTS, SETTINGS
from calc.stacks import STRATEGIES
from calc.units import InputError, records

_MODEL = "a Hugging Face id, its short name, a config.json or its folder, or a count such as 70B"


class _Parser(argparse.ArgumentParser):
    """argparse prints a usage block before its error; the contract is one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _int(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a whole number: {text[:40]!r}") from None


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"not true or false: {text[:40]!r}")
    return text == "true"


@cache
def parser() -> argparse.ArgumentParser:
    """The command line's parser; the reference page is built from its actions."""
    told = "Training memory per GPU, in exact bytes."
    top = _Parser(prog="sixteen-bytes", description=told, allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _params(commands)
    _estimate(commands)
    _fit(commands)
    _config(commands)
    _communication(commands)
    _oom(commands)
    _command(commands, "claims", "Published numbers, each with the verdict on it.")
    for name in ("models", "gpus", "optimizers", "recipes", "strategies"):
        _command(commands, name, f"The known {name.replace('gpus', 'GPUs')}.")
    _check(commands)
    return top


def _command(commands: _Commands, name: str, text: str) -> argparse.ArgumentParser:
    sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    sub.add_argument("--json", action="store_true", help="print the answer as JSON")
    return sub


def _of_a_run(
    commands: _Commands, name: str, text: str, required: bool = True
) -> argparse.ArgumentParser:
    sub = _command(commands, name, text)
    sub.add_argument("model", metavar="MODEL", help=_MODEL)
    told = "number of GPUs (world_size)"
    sub.add_argument("--gpus", type=_int, metavar="N", required=required, help=told)
    _run_options(sub)
    return sub


def _params(commands: _Commands) -> None:
    sub = _command(commands, "params", "Parameter tensors of a model.")
    sub.add_argument("model", metavar="MODEL", help=_MODEL)
    _lora_options(sub)


def _estimate(commands: _Commands) -> None:
    sub = _of_a_run(commands, "estimate", "What a run costs per GPU, line by line.")
    sub.add_argument("--gpu", metavar="G", help="a card: adds the verdict")
    told = "exit status 1 where the verdict is worse"
    sub.add_argument("--gate", choices=("fits", "tight"), help=told)
    told = "add the memory curve of the step: every allocation, and where it is highest"
    sub.add_argument("--timeline", action="store_true", help=told)
    _config_file(sub)


def _fit(commands: _Commands) -> None:
    told = "Which cards, and how many of them, hold a run."
    sub = _of_a_run(commands, "fit", told, required=False)
    sub.add_argument("--gpu", action="append", metavar="G", help="only this card; repeat")
    sub.add_argument("--vendor", metavar="V", help="only cards of NVIDIA, AMD or Intel")
    sub.add_argument("--max-gpus", type=_int, metavar="N", default=1024, help="climb no further")
    told = "add the sequence and micro-batch that still fit"
    sub.add_argument("--largest", action="store_true", help=told)


def _config(commands: _Commands) -> None:
    told = "The config file of a framework for a run, ready to copy."
    sub = _of_a_run(commands, "config", told)
    formats = ", ".join(record["format"] for record in records("configs"))
    sub.add_argument("--format", required=True, metavar="F", help=formats)
    _config_file(sub)
    told = "deepspeed: leave to Transformers what it fills in"
    sub.add_argument("--auto", action="store_true", help=told)


def _communication(commands: _Commands) -> None:
    told = "Bytes on the wire per optimizer step, and how long links need for them."
    sub = _of_a_run(commands, "communication", told)
    _config_file(sub)
    told = "the card, for its links and its speed"
    sub.add_argument("--gpu", default="h100-sxm5-80gb", metavar="G", help=told)
    told = "per cent of the card's bf16 peak that computing reaches"
    sub.add_argument("--mfu", type=_int, default=40, help=told)


def _oom(commands: _Commands) -> None:
    told = "An out-of-memory message: its figures, and the lines of a run as large as the request."
    sub = _command(commands, "oom", told)
    told = "the message itself, a file that holds it, or - for stdin"
    sub.add_argument("message", metavar="MESSAGE", help=told)
    sub.add_argument("model", metavar="MODEL", nargs="?", help=f"the run's model: {_MODEL}")
    told = "number of GPUs of the run (world_size)"
    sub.add_argument("--gpus", type=_int, metavar="N", default=1, help=told)
    _config_file(sub)
    _run_options(sub)


def _check(commands: _Commands) -> None:
    told = "Marked numbers in Markdown files and notebooks: are they still true?"
    sub = _command(commands, "check", told)
    sub.add_argument("files", nargs="+", metavar="FILE", help="a Markdown file or a notebook")
    told = "rewrite the stale numbers, and only them"
    sub.add_argument("--fix", action="store_true", help=told)
    told = "let quantities of bytes without a mark pass"
    sub.add_argument("--only-marked", action="store_true", help=told)


def _config_file(sub: argparse.ArgumentParser) -> None:
    told = "read the run from a DeepSpeed JSON or Accelerate YAML (all but fit)"
    sub.add_argument("--config-file", metavar="F", help=told)


def _run_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--strategy", default="", help=", ".join(STRATEGIES))
    sub.add_argument("--recipe", default="", help=", ".join(RECIPES))
    sub.add_argument("--optimizer", default="adamw", help=", ".join(OPTIMIZERS))
    sub.add_argument("--seq-len", type=_int, default=2048, help="tokens of one sequence")
    sub.add_argument("--micro-batch", type=_int, default=1, help="sequences per GPU at a time")
    told = "micro-batches between optimizer steps"
    sub.add_argument("--accumulation", type=_int, default=1, help=told)
    for name, told in (
        ("tp", "degree of tensor parallelism"),
        ("pp", "degree of pipeline parallelism, the stages"),
        ("cp", "degree of context parallelism, parts of a sequence"),
        ("ep", "degree of expert parallelism"),
    ):
        sub.add_argument(f"--{name}", type=_int, metavar="N", default=1, help=told)
    told = "hsdp: GPUs that shard; 0: 8"
    sub.add_argument("--shard-size", type=_int, metavar="N", default=0, help=told)
    _lora_options(sub)
    for name, allowed in CHOICES.items():
        told = ", ".join(allowed)
        sub.add_argument(f"--{name.replace('_', '-')}", default=DEFAULTS[name], help=told)
    for name, owner in SETTINGS.items():
        if name not in CHOICES:
            kind = _bool if isinstance(DEFAULTS[name], bool) else _int
            default = str(DEFAULTS[name]).lower()
            option, told = f"--{name.replace('_', '-')}", f"{owner}; {default}"
            sub.add_argument(option, type=kind, default=default, help=told)


def _lora_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--lora-rank", type=_int, default=0, help="rank of the adapters; 0: none")
    told = "all-linear or names, comma between"
    sub.add_argument("--lora-targets", default="all-linear", help=told)
