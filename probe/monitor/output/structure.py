"""The files of the first step: the structure of the model, and the call stacks of its modules."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from typing import Any

from probe.common.files import make_folder, replacing
from probe.common.report.cells import harmless


def write_structure(above: str, rank: int, structure: Mapping[str, Any]) -> str:
    """Write ``module_struct/rank<R>/module_struct.json`` below `above`; its path.

    Raises:
        OSError: it cannot be written.
    """
    folder = os.path.join(above, "module_struct", f"rank{rank}")
    make_folder(folder)
    path = os.path.join(folder, "module_struct.json")
    with replacing(path) as stream:
        stream.write(json.dumps(structure, indent=2).encode())
    return path


def write_stacks(folder: str, stacks: Mapping[str, str]) -> None:
    """Write ``stack_info.csv``: each module with the frames that called it, the innermost first.

    Raises:
        OSError: it cannot be written.
    """
    make_folder(folder)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("module_name", "stack_info"))
    writer.writerows((harmless(name), harmless(stack)) for name, stack in stacks.items())
    with replacing(os.path.join(folder, "stack_info.csv")) as stream:
        stream.write(text.getvalue().encode())
