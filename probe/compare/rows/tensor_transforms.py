"""Transforms of tensors before their comparison: a matrix product undoes the rotation of a quantised model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common import log
from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import MsprobeException
from probe.common.show import show
from probe.common.yaml_file import load_yaml

Array = NDArray[Any]
_MOST_KEYS_SHOWN = 10
LEFT, RIGHT = "left", "right"
# Section of the file -> the key of each map, which side of the product its matrix stands on, which dump it is for.
_MAPS = {
    "right_matmul": (("target_tensor_map", RIGHT, "target"), ("golden_tensor_map", RIGHT, "golden")),
    "left_matmul": (("target_tensor_map", LEFT, "target"), ("golden_tensor_map", LEFT, "golden")),
    "left_right_matmul": tuple(
        (f"{side}_{dump}_tensor_map", side, dump) for dump in ("target", "golden") for side in (LEFT, RIGHT)
    ),
}


@dataclass
class PostProcessing:
    """Matrices by dump and tensor.

    Args:
        products: for ``target`` and ``golden``, from the name of a tensor's file to sides and matrix files.
    """

    products: dict[str, dict[str, list[tuple[str, str]]]] = field(default_factory=lambda: {"target": {}, "golden": {}})
    _matrices: dict[str, Array] = field(default_factory=dict)

    def apply(self, values: Array, dump: str, data_name: str) -> Array:
        """`values` multiplied as the file says; where that fails they are left as they are, and a line says why."""
        of_dump = self.products[dump]
        products = of_dump.get(data_name) or of_dump.get(os.path.splitext(data_name)[0])
        if not products:
            return values
        result = np.squeeze(values)
        try:
            for side, path in products:
                matrix = self._matrix(path)
                result = matrix @ result if side == LEFT else result @ matrix
        except (MsprobeException, ValueError, TypeError) as error:
            log.warning(f"{data_name} of the {dump} dump is compared as it is: {error}")
            return values
        return result

    def _matrix(self, path: str) -> Array:
        if path not in self._matrices:
            self._matrices[path] = read_tensor(path)
        return self._matrices[path]


def load_post_processing(path: str) -> PostProcessing:
    """Read the file of ``--config``; matrices are looked for where it lies, unless their paths are absolute.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_yaml(path)
    if not isinstance(content, dict) or not content.keys() <= _MAPS.keys():
        raise MsprobeException(f"{path}: expected {', '.join(_MAPS)}.")
    found = PostProcessing()
    for section, maps in content.items():
        if not isinstance(maps, dict):
            raise MsprobeException(f"{path}: {section} is {show(maps)}; expected {_keys(section)}.")
        unknown = maps.keys() - {key for key, _, _ in _MAPS[section]}
        if unknown:
            some = ", ".join(sorted(map(show, unknown))[:_MOST_KEYS_SHOWN])
            raise MsprobeException(f"{path}: {section} has {some}; expected {_keys(section)}.")
        for key, side, dump in _MAPS[section]:
            for matrix, names in _tensor_map(path, section, key, maps.get(key)).items():
                file = matrix if os.path.exists(matrix) else os.path.join(os.path.dirname(path), matrix)
                for name in names:
                    found.products[dump].setdefault(name, []).append((side, file))
    return found


def _keys(section: str) -> str:
    return ", ".join(key for key, _, _ in _MAPS[section])


def _tensor_map(path: str, section: str, key: str, value: Any) -> dict[str, list[str]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(
        isinstance(matrix, str) and isinstance(names, list) and all(isinstance(name, str) for name in names)
        for matrix, names in value.items()
    ):
        raise MsprobeException(f"{path}: {section}.{key}: expected files of matrices, each with a list of tensors.")
    return value
