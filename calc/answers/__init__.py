"""The JSON value of each command, from the arguments that its parser read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from calc.answers import lists, runs
from calc.optimizers import OPTIMIZERS
from calc.precision import RECIPES
from calc.stacks import STRATEGIES

Json = Mapping[str, object] | list[object]
ANSWERS: Mapping[str, Callable[[argparse.Namespace], Json]] = {
    "params": runs.params,
    "estimate": runs.estimated,
    "config": runs.config,
    "fit": runs.fitted,
    "communication": runs.communicated,
    "oom": runs.out_of_memory,
    "claims": lists.claims,
    "models": lists.known_models,
    "gpus": lists.known_gpus,
    "optimizers": lists.registry(OPTIMIZERS),
    "recipes": lists.registry(RECIPES),
    "strategies": lists.registry(STRATEGIES),
}
