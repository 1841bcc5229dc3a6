"""updates.npz is read as it was written, or is one clear error."""

from __future__ import annotations

import json
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.common.dump import update_file
from probe.common.dump.layout import UPDATES_FILE
from probe.common.errors import DumpFormatError

SEED = 20261129


def frame(names: list[str]) -> dict[str, Any]:
    count = len(names)
    rows = np.arange(64 * count, dtype="<f4").tobytes()
    return {
        "optimizer": "AdamW", "index": 0, "groups": [{"lr": 0.1}], "skipped": False, "names": names,
        "notes": [None] * count, "group": [0] * count, "state_step": [1.0] * count, "elements": [4] * count,
        "gradient_norm": [0.5] * count, "parameter_norm": [2.0] * count, "excluded": [0] * count,
        "gradient": rows, "update": rows,
    }  # fmt: skip


def written(folder: Path) -> Path:
    update_file.write(str(folder), [frame(["a.weight", "a.bias"]), frame([]), frame(["b"])])
    return folder / UPDATES_FILE


def test_it_is_read_as_written_and_numpy_opens_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = update_file.read(str(tmp_path))
    assert [[each.name for each in update.parameters] for update in found] == [["a.weight", "a.bias"], [], ["b"]]
    with np.load(path, allow_pickle=False) as content:
        assert content["gradient"].shape == content["update"].shape == (3, 64)
        sketch = found[2].parameters[0].update
        assert sketch is not None and (content["update"][2] == sketch.sums).all()


def test_members_that_are_compressed_take_no_memory(tmp_path: Path) -> None:
    path = written(tmp_path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("updates.json", b" " * (100 << 20))
    tracemalloc.start()
    with pytest.raises(DumpFormatError, match="damaged"):
        update_file.read(str(tmp_path))
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_changed_bytes_are_an_error_or_other_numbers(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole, draw = path.read_bytes(), random.Random(SEED)
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
        try:
            update_file.read(str(tmp_path))
        except DumpFormatError as error:
            assert str(path) in str(error) and "\n" not in str(error), f"seed {SEED}"


@pytest.mark.parametrize("key", ["names", "notes", "group", "updates", "optimizer"])
@pytest.mark.parametrize("value", [None, 7, "text", [1], {"a": 1}, [[]]])
def test_values_of_another_type_are_an_error_or_harmless(tmp_path: Path, key: str, value: Any) -> None:
    path = written(tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    text = json.loads(members["updates.json"])
    (text if key == "updates" else text["updates"][0])[key] = value
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, "updates.json": json.dumps(text).encode()}.items():
            archive.writestr(name, content)
    try:
        update_file.read(str(tmp_path))
    except DumpFormatError as error:
        assert str(path) in str(error)
