"""A saver of numpy arrays and plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.rollout.saved_folders import PROBE_SAVING
from probe.rollout.saver import Saver


class NoTensors:
    """A framework without a tensor."""

    def is_tensor(self, value: Any) -> bool:
        return False

    def values(self, tensor: Any) -> Any:
        raise AssertionError

    def dtype_name(self, tensor: Any) -> str:
        raise AssertionError


def saver_to(folder: Path) -> Saver:
    return Saver(str(folder), NoTensors(), lambda: None, PROBE_SAVING)
