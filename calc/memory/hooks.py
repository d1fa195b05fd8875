"""What a stack does around a module of the model: the hooks that `train_step` calls, and nothing else of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from calc.memory.timeline import Timeline
from calc.memory.training import Training
from calc.models import Tensor

if TYPE_CHECKING:
    from calc.memory.train_step import Step


class Stack(Protocol):
    """A framework's hooks; each takes the timeline, and the unit (its own view of a module) or the whole step."""

    def unit(self, training: Training, tensors: Iterable[Tensor]) -> Any:
        """What the stack has to know of the module that has `tensors`."""

    def weight_gradients(self, training: Training, numel: int, largest: int) -> tuple[int, int]:
        """Bytes that an operation's weight gradients take: those that stay, and those gone with the next one.

        `numel` elements are made, the largest single weight has `largest`.
        """

    def start(self, memory: Timeline, step: Step) -> None:
        """Before the step: what is kept between steps, with the gradients of micro-batches that are not played."""

    def begin_forward(self, memory: Timeline, step: Step) -> None:
        """Before a micro-batch's forward."""

    def pre_forward(self, memory: Timeline, unit: Any) -> None:
        """Before a layer's forward."""

    def post_forward(self, memory: Timeline, unit: Any) -> None:
        """After a layer's forward."""

    def pre_head(self, memory: Timeline, step: Step) -> None:
        """Before the forward of final norm, head and loss."""

    def end_forward(self, memory: Timeline, step: Step) -> None:
        """When the loss is there."""

    def pre_head_backward(self, memory: Timeline, step: Step) -> None:
        """Before the gradient of the head's weight is made."""

    def post_head_backward(self, memory: Timeline, step: Step) -> None:
        """When the gradients of head and final norm are there."""

    def pre_backward(self, memory: Timeline, unit: Any, following: Any) -> None:
        """Before a layer's backward; `following` is the unit whose backward comes next."""

    def gradients_complete(self, memory: Timeline, unit: Any) -> None:
        """When the last of a layer's weight gradients is made, while its operation still runs."""

    def post_backward(self, memory: Timeline, unit: Any) -> None:
        """After a layer's backward: what becomes of its `layer gradients`."""

    def pre_embedding_backward(self, memory: Timeline, step: Step) -> None:
        """Before the embedding's backward."""

    def end_backward(self, memory: Timeline, step: Step) -> None:
        """When all gradients are there."""
