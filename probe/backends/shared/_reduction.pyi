KINDS: dict[str, int]

def reduce(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: int, wide: bool, sketched: bool, /
) -> tuple[float, float, float, float, bytes | None]: ...
