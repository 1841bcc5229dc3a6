"""The way in which a program trains: group `Training` of an adapter, with the steps, optimizers, gradient scalers and
ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.interfaces import Handle


class TrainingListener(Protocol):
    """The callbacks of `Training`. No method raises."""

    def enter_forward(self, module: Any, recording: bool) -> None:
        """A module is called that no other module's call is around; `recording` is whether gradients are recorded."""

    def leave_forward(self) -> None:
        """A forward returned or raised."""

    def enter_backward(self, mark: Callable[[Any], object]) -> None:
        """Gradients are about to be computed.

        What `mark` returns for an optimizer differs from what the `mark` of `leave_backward` returns if gradients of
        its parameters are computed in between.
        """

    def leave_backward(self, mark: Callable[[Any], object] | None) -> None:
        """Gradients were computed; ``None``: computing them raised."""

    def return_gradients(self, *kept: object) -> None:
        """Gradients were computed and returned to the program.

        If one of `kept` is true, something else may be computed of them or of their graph with gradients.
        """

    def new_optimizer(self) -> None:
        """An optimizer was made, or one that was saved was loaded."""

    def leave_optimizer(self, optimizer: Any) -> None:
        """An optimizer has updated its parameters, or its gradient scaler has passed it over."""


class ScaledUpdate(NamedTuple):
    """The result of a gradient scaler for one optimizer's step. Both fields are read from the device, if there."""

    was_skipped: Callable[[], bool]
    scale: Callable[[], float]


class Training(Protocol):
    """The way in which a program trains, seen from outside of its script."""

    def attach_training(self, listener: TrainingListener) -> Handle:
        """Report to `listener` until the handle is removed."""

    def attach_gradients(self, listener: TrainingListener) -> Handle:
        """Call `return_gradients` of `listener` until the handle is removed."""

    def outermost(self, module: Any) -> Any:
        """The module that holds `module`, directly or not, and is held by none: the model it is a part of."""

    def inside(self, module: Any) -> Sequence[Any]:
        """The modules inside of `module`, itself not among them."""

    def has_parameters(self, module: Any) -> bool:
        """True if `module` or a module inside of it has a parameter."""

    def trainable(self, module: Any) -> frozenset[int]:
        """The identities of the parameters of `module` that get gradients now."""

    def optimizers(self) -> Sequence[Any]:
        """Every optimizer that there is."""

    def parameters(self, optimizer: Any) -> frozenset[int]:
        """The identities of the parameters that `optimizer` updates."""

    def attach_scalers(self, note: Callable[[ScaledUpdate], None]) -> Handle:
        """Tell `note` of every optimizer's step that goes through a gradient scaler."""

    def largest_over_ranks(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each of `numbers` over all ranks of the default process group, in one communication.

        Every rank calls it as often as the others; without a group it gives the numbers back.
        """
