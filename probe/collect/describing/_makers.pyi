import weakref
from collections.abc import Callable, Iterator
from typing import Any

class Memory:
    ref: weakref.ref[Any]
    writer: int
    mark: Any
    made: dict[int, tuple[weakref.ref[Any], int, Any]]
    written: Any
    def __new__(cls, storage: Any, mark: Any, number: int, /) -> Memory: ...

class Noter:
    def __new__(
        cls,
        kind: int,
        describe: Callable[[Any], dict[str, Any] | None],
        slow: Callable[[Any, dict[str, Any]], None],
        tensor: type,
        storage: Callable[[Any], Any],
        is_uncounted: Callable[[Any], bool],
        count: str,
        held: dict[int, Any],
        gradients: dict[int, Any],
        memories: dict[int, Memory],
        numbers: Iterator[int],
        state: list[Any],
        /,
    ) -> Noter: ...
    def __call__(self, value: Any, /) -> dict[str, Any] | None: ...
