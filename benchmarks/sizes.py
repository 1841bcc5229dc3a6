"""What the models of all frameworks share: their sizes, and what a benchmark gets of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, NamedTuple


@dataclass(frozen=True)
class Size:
    """Dimensions of one model and of the batch it is trained on."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    batch: int
    length: int


# With PyTorch a bare step takes about 2 ms, 20 ms and 0.9 s of one core of a busy server of 2025, a quarter less of an
# idle one. MindSpore needs about 1 ms more for each operation, so that its small step is no shorter than 20 ms.
SIZES = {
    "small": Size(width=64, layers=2, heads=4, vocabulary=256, batch=2, length=40),
    "medium": Size(width=128, layers=4, heads=4, vocabulary=512, batch=4, length=56),
    "large": Size(width=512, layers=4, heads=8, vocabulary=2048, batch=8, length=112),
}


class Training(NamedTuple):
    """A model and the function that trains it by one step, the same step each time."""

    model: Any
    step: Callable[[], None]
    optimizer: Any = None
