from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

_Node = TypeVar("_Node", bound=tuple[Any, ...])

Rows = tuple[list[str], list[bytes | None], list[int | str | None], list[int | None]]
Encode = Callable[[list[float]], bytes]

def indexed(
    journal: Buffer, at: int, node: type[_Node], nodes: dict[str, _Node], records: dict[str, list[Any]], /
) -> list[tuple[int, bytes]] | None: ...
def laid_out(name: str, frames: Sequence[Buffer], rows: Rows, encode: Encode, as_python: Encode, /) -> bytes | None: ...
