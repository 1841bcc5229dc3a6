"""The smallest real backend: numpy arrays as tensors, statistics at once or, like those of a device, later."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.backends.shared.choices import choices_of
from probe.backends.shared.tensors import npy_file
from probe.common.dump.choices import CHOICES
from probe.common.interfaces import Entry, StatisticsMode, TensorFile


class NumpyTensors:
    """Implements `probe.backends.protocol.Tensors`; arrays of float32 are its tensors, all others are plain values.

    Args:
        delayed: Leave the statistics to `resolve`.
    """

    several_outputs: tuple[type, ...] = (tuple, list)

    def __init__(self, delayed: bool = False) -> None:
        self._delayed = delayed
        self._waiting: list[tuple[Entry, np.ndarray]] = []
        self.resolved: list[int] = []
        """How many entries each call of `resolve` filled in."""
        self.broken = False
        """Makes `resolve` fail, as a lost device does."""

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.dtype == np.float32

    def content_mark(self, tensor: Any) -> None:
        return None

    def memory(self, tensor: Any) -> tuple[Any, Any, None]:
        return tensor, tensor, None

    counted_memory = None

    def base(self, tensor: Any) -> None:
        return None

    def part(self, tensor: Any) -> None:
        return None

    def direct_describer(self, summary: StatisticsMode) -> None:
        return None

    def describe_tensor(self, tensor: Any, summary: StatisticsMode) -> Entry:
        if tensor.size == 0:
            raise ValueError("this tensor cannot be described")
        entry: Entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(tensor.shape)}
        entry.update(Max=None, Min=None, Mean=None, Norm=None, requires_grad=False)
        if summary.mode == "md5":
            entry["md5"] = f"{zlib.crc32(tensor.tobytes()):08x}"
        self._waiting.append((entry, tensor.copy()))
        if not self._delayed:
            self.resolve()
        return entry

    def note_choices(self, entry: Entry, indices: Any, source: Any) -> None:
        entry[CHOICES] = choices_of(indices, source, lambda values: values).packed()

    def describe_value(self, value: Any, key: str | None) -> Entry | None:
        if key == "device" or isinstance(value, np.dtype):
            return {"type": "text", "value": f"<{value}>"}
        return None

    def tensor_file(self, tensor: Any, copied: bool) -> TensorFile | None:
        if tensor.dtype != np.float32:
            return npy_file(tensor.copy())
        # The elements alone, so that the shared code has to ask for the framework's own file form.
        data = tensor.tobytes()
        return TensorFile(".bin", b"", memoryview(data), b"", zlib.crc32(data))

    def pending(self) -> int:
        return len(self._waiting)

    def resolve(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.resolved.append(len(waiting))
        if self.broken:
            raise RuntimeError("the device is gone")
        for entry, array in waiting:
            entry.update(Max=float(array.max()), Min=float(array.min()), Mean=float(array.mean()))
            entry.update(Norm=float(np.linalg.norm(array.astype(np.float64))))


class NumpyHooks:
    """What a collector asks of `probe.backends.protocol.Hooks`."""

    def held_tensors(self, models: Any) -> tuple[()]:
        return ()

    def risk_class(self, base: str) -> str:
        return {"Torch.matmul": "core", "Torch.relu": "middle"}.get(base, "low")


class NumpyRandomness:
    """What a collector asks of `probe.backends.protocol.Randomness`."""

    def random_state(self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any | None:
        return None


class NumpyAdapter:
    """The parts of `probe.backends.protocol.FrameworkAdapter` that a collector needs."""

    framework = "pytorch"  # the schema allows no name of its own

    def __init__(self, delayed: bool = False) -> None:
        self.tensors, self.hooks, self.randomness = NumpyTensors(delayed), NumpyHooks(), NumpyRandomness()
