"""The backward of a call that returned a view which was written to afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

from typing_extensions import Protocol, TypeAlias

if TYPE_CHECKING:
    from probe.backends.shared.autograd.backward_tracker import GradientFlow
    from probe.backends.shared.autograd.watches import Watch

Parts: TypeAlias = Callable[[], Optional[tuple[Any, Any]]]
"""Gives the gradient of what lay in a view, besides what arrives at the view's own node, and through the view alone
that of the input it was made of, ``None`` where it is of none. Of a gradient that is not known it gives ``None``
instead. Made when they are reported: each can be as large as the tensor behind the view."""


class Later(Protocol):
    """What waits until the engine has come to some node."""

    def report(self) -> None:
        """It has."""

    def drop(self) -> None:
        """It will not, because the pass was cut short."""


class ViewBackward(Protocol):
    """The backward of a call that returned a view."""

    def written(self, number: int, parts: Parts) -> None:
        """Some of the gradient of the view does not arrive at its own node. Called once in a pass.

        Args:
            number: The sequence number of that node. The backward is not complete before the engine has come to it.
            parts: Asked then.
        """

    def unknown(self) -> None:
        """What arrives at its own node may be a part of the gradient, in every pass from now on."""


class WrittenLater:
    """Implements `ViewBackward` and `Later` for one output of a module."""

    __slots__ = ("_flow", "index", "known", "parts", "place", "task", "watch")

    def __init__(self, flow: GradientFlow, watch: Watch, index: int, place: int | None) -> None:
        self._flow = flow
        self.watch = watch
        self.index = index
        self.place = place
        """Of the input it was made of, among the inputs."""
        self.parts: Parts | None = None
        self.known = True
        """Whether what arrives at the node of the output, and `parts`, are all of it."""
        self.task = -1

    def written(self, number: int, parts: Parts) -> None:
        self.parts = parts
        self.watch.written_later[self.index] = self
        self.task = self._flow.when_reached(self.watch.call, number, self)

    def unknown(self) -> None:
        self.known = False
        self.watch.written_later[self.index] = self

    def report(self) -> None:
        self._flow.not_arrived(self.watch, self.index)

    def drop(self) -> None:
        self.parts = None
        self.watch.written_later.pop(self.index, None)
