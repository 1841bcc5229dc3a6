"""The backward of a call that returned a view which was written to afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from typing_extensions import Protocol, TypeAlias

if TYPE_CHECKING:
    from probe.common.gradient_flow import GradientFlow, Watch

Parts: TypeAlias = Callable[[], tuple[Any, Any]]
"""The gradient of what lay in a view before it was written to, and through the view alone that of the input it was made
of, ``None`` where it is of none. Made when they are reported: each can be as large as the tensor behind the view."""


class Later(Protocol):
    """What waits until the engine has come to some node."""

    def report(self) -> None:
        """It has."""

    def drop(self) -> None:
        """It will not, because the pass was cut short."""


class ViewBackward(Protocol):
    """The backward of a call that returned a view."""

    def written(self, number: int, parts: Parts, through: bool) -> None:
        """The view was written to, and the gradients `parts` do not arrive at its own node.

        Args:
            number: The sequence number of that node. The backward is not complete before the engine has come to it.
            parts: The gradients.
            through: The write went through the view. Else it is not known how often the view was used after a write to
                something else: if anything arrives at its own node, the gradient is not known.
        """


class WrittenLater:
    """Implements `ViewBackward` and `Later` for one output of a module."""

    __slots__ = ("_flow", "index", "parts", "place", "task", "through", "watch")

    def __init__(self, flow: GradientFlow, watch: Watch, index: int, place: int | None) -> None:
        self._flow = flow
        self.watch = watch
        self.index = index
        self.place = place
        """Of the input it was made of, among the inputs."""
        self.parts: Parts | None = None
        self.through = False
        self.task = -1

    def written(self, number: int, parts: Parts, through: bool) -> None:
        self.parts = parts
        self.through = through
        self.watch.written_later[self.index] = self
        self.task = self._flow.when_reached(self.watch.call, number, self)

    def report(self) -> None:
        self._flow.not_arrived(self.watch, self.index)

    def drop(self) -> None:
        self.parts = None
        self.watch.written_later.pop(self.index, None)
