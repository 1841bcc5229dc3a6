"""Finding what is inside of containers, however they are nested.

Bounded in both directions: a list may hold itself, and thirty lists that hold the next one twice have a thousand
million places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

MAX_DEPTH = 400
"""The deepest level that is looked at."""
MOST_LEVELS = 100
"""Levels of settings and mappings that are read from a file, a guess: those of trainings have fewer than ten."""
MAX_CONTAINERS = 10_000
"""So many containers of one value are followed, and further ones are not."""

_Kind = TypeVar("_Kind")


def found_in(value: Any, kind: type[_Kind], in_fields: bool = True) -> Iterator[_Kind]:
    """Values of type `kind` in lists, tuples, mappings and, `in_fields`, the fields of dataclasses, in order."""
    ahead: list[Iterator[Any]] = [iter((value,))]
    left = MAX_CONTAINERS
    while ahead:
        for item in ahead[-1]:
            if isinstance(item, kind):
                yield item
                continue
            parts = _parts(item, in_fields)
            if parts is None or len(ahead) > MAX_DEPTH:
                continue
            left -= 1
            if left < 0:
                return
            ahead.append(iter(parts))
            break
        else:
            ahead.pop()


def _parts(value: Any, in_fields: bool) -> Iterable[Any] | None:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return value.values()
    if in_fields and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return None


def is_too_deep(value: Any) -> bool:
    """True if what was read from a file has containers in more than `MOST_LEVELS` levels, too many for recursion."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for each in level for inner in _parts(each, False) or ()]
    return bool(level)


def parts_of(value: Any) -> Sequence[tuple[Any, Any]] | None:
    """The members of one container, with names of fields, indices or keys; ``None`` for other values."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def by_prefix(models: Any) -> dict[str, Any]:
    """The models by what the names of their modules begin with.

    Args:
        models: One model, which needs no prefix; a list or tuple, whose indices are the prefixes; or a mapping of them.
    """
    if isinstance(models, Mapping):
        return dict(models)
    if isinstance(models, (list, tuple)):
        return {str(index): model for index, model in enumerate(models)}
    return {"": models}
