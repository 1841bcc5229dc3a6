"""The backward of a call that returned a view which was written to afterwards."""

from __future__ import annotations

from typing import Any, Callable

from typing_extensions import Protocol, TypeAlias

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
