from collections.abc import Callable
from types import CodeType, FrameType

def walk(
    frame: FrameType,
    own: dict[int, bool],
    see: Callable[[CodeType], bool],
    outer: FrameType | None,
    rest: bytes,
    /,
) -> bytes: ...
