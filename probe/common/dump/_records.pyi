from typing import Callable, Optional, Union

from typing_extensions import Buffer

Rows = tuple[list[str], list[Optional[bytes]], list[Union[int, str, None]], list[Optional[int]]]
Encode = Callable[[list[float]], bytes]

def laid_out(
    name: str, frames: list[Buffer], rows: Rows, encode: Encode, encode_others: Encode, /
) -> bytes | None: ...
