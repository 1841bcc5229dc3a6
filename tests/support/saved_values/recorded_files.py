"""What msProbe 26.2.0 wrote on both sides of `recorded/save.py`, as data, and folders of ours in the same form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).parent / "recorded"
SIDES = ("golden", "target")


def recorded_files(side: str) -> dict[str, Any]:
    """By path, the content of each file; numbers that are none are texts."""
    content = json.loads((RECORDED / "files.json").read_text(encoding="utf-8"), parse_constant=str)[side]
    return dict(content)


def recorded_tables() -> dict[str, list[list[Any]]]:
    return dict(json.loads((RECORDED / "tables.json").read_text(encoding="utf-8")))


def files_in(folder: Path) -> dict[str, Any]:
    """The files of a folder in the form of `recorded_files`."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = json.loads(path.read_text(encoding="utf-8"), parse_constant=str)
        elif path.suffix == ".npy":
            array = np.load(path)
            values = [number(value) for value in array.reshape(-1).tolist()]
            found[name] = {"dtype": str(array.dtype), "shape": list(array.shape), "values": values}
        elif path.is_file():
            found[name] = None
    return found


def number(value: float) -> Any:
    return None if value != value else "inf" if value == np.inf else value


def write_recorded(side: str, folder: Path) -> Path:
    """Write the recorded files of a side."""
    for name, content in recorded_files(side).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            path.write_text(json.dumps(content), encoding="utf-8")
        else:
            values = [np.nan if value is None else float(value) for value in content["values"]]
            np.save(path, np.array(values, content["dtype"]).reshape(content["shape"]))
    return folder
