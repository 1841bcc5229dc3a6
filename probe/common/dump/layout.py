"""The names of the files and folders of a dump."""

from __future__ import annotations

import os

TENSOR_FOLDER = "dump_tensor_data"
ERROR_LOG = "dump_error_info.log"
DATA_FOLDER = "dump_tensor_data"
DATA_FILES = ("dump.json", "debug.json")


def folder_of(path: str) -> str:
    """The folder of a dump, given that or a file in it."""
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def has_real_data(path: str) -> bool:
    """Whether a dump, given its folder or a file in it, has tensors."""
    return os.path.isdir(os.path.join(folder_of(path), DATA_FOLDER))
