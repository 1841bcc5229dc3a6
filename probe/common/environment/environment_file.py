"""The file with the environment of a process: written next to the steps of a dump, found from a record, and read.

Python's json reads it and not msgspec, because a setting may be infinite.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from probe.common import files
from probe.common.dump.layout import MODES, environment_file, environments_in
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.numerics.formats import unit_roundoff

FORMAT = 1
"""The version of the file. 1: the first one (2026-11)."""
_LARGEST = 4 << 20
"""Bytes of a file that can be one of ours."""

Environment = Mapping[str, Any]
"""The content of the file; docs/reference/output.md describes the keys."""


def write(root: str, process: str, content: Environment) -> str:
    """Write the environment of `process` (``rank0``, ``proc123``) into the folder of the dump; gives the path.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(root, environment_file(process))
    with files.replacing(path) as stream:
        stream.write(json.dumps({"format": FORMAT, **content}, indent=1).encode())
    return path


def read(path: str) -> Environment:
    """The content of such a file.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    try:
        with files.open_for_reading(path) as stream:
            content = json.loads(stream.read(_LARGEST))
    except OSError as error:
        raise FileCheckException(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise MsprobeException(f"{path} is no environment of a dump: it is not valid JSON.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise MsprobeException(f'{path} is no environment of a dump: "format" is not {FORMAT}.')
    return content


def of_record_file(path: str) -> Environment | None:
    """The environment of the process that wrote a file of records; ``None`` if there is none, or none to be read."""
    folder = os.path.dirname(os.path.abspath(path))
    above = os.path.dirname(os.path.dirname(folder))
    if os.path.basename(above) in MODES:
        above = os.path.dirname(above)
    try:
        return read(os.path.join(above, environment_file(os.path.basename(folder))))
    except MsprobeException:
        return None  # an older dump, or one without: nothing is known of its run


def all_in(root: str) -> dict[str, Environment]:
    """The environments in the folder of a dump, by the names of their files; those that cannot be read raise.

    Raises:
        MsprobeException: there is none, or one cannot be read.
    """
    if not os.path.isdir(root):
        raise FileCheckException(f"{root} is not a folder; give the dump_path of a run.")
    names = environments_in(root)
    if not names:
        raise FileCheckException(
            f'{root} holds no environment_rank<R>.json; the run was collected with "environment": false, or before '
            "this file was written."
        )
    return {name: read(os.path.join(root, name)) for name in names}


# --- what an environment says of products

_TF32 = 2.0**-11
"""The unit roundoff of TF32, whose significand has 11 bits, as that of float16 has."""
_NAMED = {"high": _TF32, "medium": unit_roundoff("bfloat16")}
"""The unit roundoff of the values of `torch.set_float32_matmul_precision`, at worst; ``highest`` is float32."""


def product_roundoff(environments: Iterable[Environment | None]) -> float:
    """The coarsest unit roundoff of products of float32 in these runs; 0 if they are computed in float32.

    A switch that is on counts on any device: a device that does not obey it rounds less.
    """
    found = [0.0]
    for environment in environments:
        switches = (environment or {}).get("switches")
        if isinstance(switches, Mapping):
            found.append(_TF32 if switches.get("matmul_tf32") is True else 0.0)
            found.append(_NAMED.get(str(switches.get("float32_matmul_precision")), 0.0))
    return max(found)
