"""Tensors described: group `Tensors` of an adapter, which everything that collects needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import Protocol

from probe.common.interfaces import Entry, StatisticsMode, TensorFile


class Tensors(Protocol):
    """The tensors of a framework, their statistics, and its other values, as a dump has them."""

    several_outputs: tuple[type, ...]
    """The containers whose items are a call's outputs; any other container is one output."""

    def is_tensor(self, value: Any) -> bool:
        """True if `value` is a tensor of this framework."""

    def describe_tensor(self, tensor: Any, summary: StatisticsMode) -> Entry:
        """The dump.json entry of `tensor`. Statistics may be filled in later, by `resolve`."""

    def direct_describer(self, summary: StatisticsMode) -> Callable[[Any], Entry | None] | None:
        """A faster `describe_tensor` for most tensors, if there is one, which answers ``None`` for any other value.

        It raises nothing, and what it answers is complete.
        """

    def content_mark(self, tensor: Any) -> Any:
        """A mark of the contents of `tensor`, the same object: equal marks mean equal contents.

        ``None`` where that cannot be known. It raises nothing.
        """

    def memory(self, tensor: Any) -> tuple[Any, Any, Any] | None:
        """The memory of `tensor`, `tensor` itself, and a mark of the writes to it.

        The memory is an object that lives as long as it does: the same one for each tensor there, as far as the
        framework tells. It and the tensor itself are referred to weakly; a tensor to which nobody may refer so is
        ``None``, and a stand-in is the tensor of the program. The mark is ``None`` where writes are not counted; all is
        ``None`` where the tensor has no memory of its own.
        """

    counted_memory: Any
    """`memory` in parts: the type of tensors for which these are enough, a function that gives the memory, one that is
    true of a tensor whose writes are not counted, and the attribute with their number. ``None`` where it has none."""

    def base(self, tensor: Any) -> Any:
        """The tensor that `tensor` is a view of; ``None`` for none, or where the framework does not tell."""

    def part(self, tensor: Any) -> tuple[int, int, bool] | None:
        """The first byte of `tensor` in its memory, the byte behind the last one, and if there are no gaps between.

        ``None`` of a tensor that fills its memory, or where the framework does not tell.
        """

    def describe_value(self, value: Any, key: str | None) -> Entry | None:
        """A framework value that is no tensor (dtype, device, process group …), or ``None`` if it is none.

        `key` is the last dictionary key on the way to the value. A tensor under ``tensor`` of the entry is described in
        its turn.
        """

    def tensor_file(self, tensor: Any, copied: bool) -> TensorFile | None:
        """The file contents of `tensor`, or of a numpy array among the values; ``None`` if it has no data.

        Args:
            tensor: of any device and layout.
            copied: later writes to `tensor` must not reach the result. Without it the result may be the tensor's own
                memory, and is used before the program goes on.
        """

    def pending(self) -> int:
        """The number of described tensors that still wait for `resolve`."""

    def resolve(self) -> None:
        """Fill in every pending entry, with one transfer from each device."""
