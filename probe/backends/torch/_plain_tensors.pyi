from typing import Any

import torch

class Describer:
    def __new__(
        cls,
        exchange: Any,
        tensor: type,
        parameter: type,
        type_text: str,
        dtypes: dict[str, str],
        fewer_than: int,
        /,
    ) -> Describer: ...
    def __call__(self, tensor: torch.Tensor, wide: bool, /) -> dict[str, Any] | None: ...
