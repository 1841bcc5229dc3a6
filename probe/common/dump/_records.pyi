from collections.abc import Callable, Sequence

from typing_extensions import Buffer

Rows = tuple[list[str], list[bytes | None], list[int | str | None], list[int | None]]
Encode = Callable[[list[float]], bytes]

def laid_out(name: str, frames: Sequence[Buffer], rows: Rows, encode: Encode, as_python: Encode, /) -> bytes | None: ...
