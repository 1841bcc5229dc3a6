"""Keeping hooks of the tool out of copies of a module, and out of the files that it is saved in.

All frameworks keep the hooks of a module in dictionaries of type `OrderedDict`. `copy.deepcopy` and `pickle`, and so
`torch.save`, look in `copyreg.dispatch_table` for how a value of a type is taken apart. While hooks of the tool are in
place, what stands there for `OrderedDict` does that as the dictionary itself would, and leaves these hooks out.
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict
from types import MethodType
from typing import Any, ClassVar


class NotCopied:
    """A value that copies of an `OrderedDict` are made without; so is a method of it.

    Where one is copied all the same, by a class with a way to copy of its own, it is not made twice.
    """

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class HooksStayOut:
    """Copies have no hooks of the tool until `remove`. Where somebody takes `OrderedDict` apart already, they stay."""

    _in_place: ClassVar[set[HooksStayOut]] = set()

    def __init__(self) -> None:
        self._in_place.add(self)
        copyreg.dispatch_table.setdefault(OrderedDict, _take_apart)

    def remove(self) -> None:
        self._in_place.discard(self)
        if not self._in_place and copyreg.dispatch_table.get(OrderedDict) is _take_apart:
            del copyreg.dispatch_table[OrderedDict]


def _take_apart(dictionary: OrderedDict[Any, Any]) -> Any:
    """Class, arguments, state, list items, and the items, as `OrderedDict.__reduce__` gives them."""
    parts: Any = dictionary.__reduce__()
    if any(map(_is_left_out, dictionary.values())):
        parts = (*parts[:4], iter([item for item in dictionary.items() if not _is_left_out(item[1])]))
    return parts


def _is_left_out(value: Any) -> bool:
    # By the type, since `isinstance` asks the value too, which may be of any class of the user's.
    kind = type(value)
    return issubclass(type(value.__self__) if kind is MethodType else kind, NotCopied)
