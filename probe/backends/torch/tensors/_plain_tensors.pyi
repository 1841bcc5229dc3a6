from collections.abc import Callable
from typing import Any

class Describer:
    def __new__(
        cls,
        exchange: Any,
        tensor: type,
        parameter: type,
        type_text: str,
        dtypes: dict[str, Any],
        strided: Any,
        is_wrapped: Any,
        threads: Callable[[], int],
        many: int,
        wide: bool,
        sketched: bool,
        ops: tuple[str, ...],
        limit: float,
        /,
    ) -> Describer: ...
    def __call__(self, value: Any, /) -> Any: ...
    def agreement(self, one: Any, other: Any, /) -> float | None: ...
