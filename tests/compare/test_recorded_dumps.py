"""Every dump that the real tool wrote for the other tests is read, and compared with itself, without conversion."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from probe.common.align.options import BUILT_IN
from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options

RECORDED = Path(__file__).parents[1] / "reference"
DUMPS = sorted(path for name in ("dump.json", "debug.json") for path in RECORDED.glob(f"*/cases/**/{name}"))


def test_there_are_recorded_dumps() -> None:
    assert len(DUMPS) > 100


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: str(path.relative_to(RECORDED).parent))
def test_a_recorded_dump_is_the_same_as_itself(path: Path, tmp_path: Path) -> None:
    # Without its stacks, which are recorded in a shorter form that no tool reads.
    for name in (path.name, "construct.json"):
        if (path.parent / name).exists():
            shutil.copy(path.parent / name, tmp_path)
    plain = json.loads(path.read_text())
    dump = read(tmp_path)
    assert [record.name for record in dump] == list(plain["data"])
    if dump.task == "structure":
        return
    other = read(tmp_path)
    for options in (Options(), Options(fuzzy=True), Options(layer_mapping=BUILT_IN)):
        result = compare_dumps(dump, other, options, values=False)
        assert {row.result for row in result.rows} <= {"pass"}
