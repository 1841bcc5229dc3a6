"""Our files against those that the real monitor wrote, by ``"rules": "msprobe"``; README.md of tests/reference says how
such cases were recorded.

The gradient of the bias of keys is zero but for rounding, and Adam makes a whole step of it: where the sum is rounded
differently, by another processor or by ``MKL_CBWR``, the training without any tool has other values there. So values
of ``blocks.0.qkv`` may differ by more, and what is only rounding is not compared.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import forks
import pytest
from free_port import free_port

CASES = Path(__file__).with_name("cases")
TRAINING = Path(__file__).with_name("recorded_training.py")
"""The script of every case that has none of its own."""
STATISTICS = {"min", "max", "mean", "norm", "zeros", "nans", "id", "entropy", "softmax_max"}
STATUS = {"v1_struct": 1}
"""print_struct ends the training with an error."""
PROCESSES = {"v1_ddp": 2, "v1_fsdp2": 2}
OUTPUT = {"v2_full": "out"}
ROUNDING = re.compile(r"blocks\.0\.qkv")
ONLY_ROUNDING = re.compile(r"other_\d+-\d+\.csv")
NOISE = 2e-6
"""What is smaller is the rounding of a number that is 0: so is the mean of what a softmax and its weights get back."""


def written(case: str, folder: Path) -> dict[str, Path]:
    """Run a case; its files by the name without time and run."""
    shutil.copy(CASES / case / "config.json", folder)
    own = CASES / case / "train.py"
    source = (own if own.exists() else TRAINING).read_text(encoding="utf-8")
    output = folder / OUTPUT.get(case, "monitor_output")
    count = PROCESSES.get(case, 1)
    environment = {**os.environ, "MSPROBE_RULES": "msprobe", "PYTHONPATH": forks.CHECKOUT, "MSPROBE_LOG_LEVEL": "3"}
    if count > 1:
        source = "import os, sys\nos.environ['RANK'] = os.environ['LOCAL_RANK'] = sys.argv[2]\n" + source
        environment |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    for _ in range(5):
        shutil.rmtree(output, ignore_errors=True)
        if case in OUTPUT:
            output.mkdir()
        environment["MASTER_PORT"] = str(free_port())
        ended = forks.server(*forks.MODULES["torch"]).run(
            folder / "train.py", *([case, str(rank)] for rank in range(count)), code=source, environment=environment
        )
        # gloo sometimes aborts at the end of the interpreter, without any tool as well.
        if not any("terminate called without an active exception" in each.written_to_err for each in ended):
            break
    for each in ended:
        assert each.status == STATUS.get(case, 0), each.written_to_err
    found = {}
    for path in output.rglob("*.*"):
        short = path.relative_to(output).as_posix()
        found[re.sub(r"^[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2}-(rank\d+)-[0-9a-f]{8}/", r"\1/", short)] = path
    return found


def differences(mine: Path, theirs: Path) -> Iterator[str]:
    with mine.open(newline="") as one, theirs.open(newline="") as other:
        ours, recorded = list(csv.DictReader(one)), list(csv.DictReader(other))
    assert list(ours[0]) == list(recorded[0])
    keys = [name for name in recorded[0] if name not in STATISTICS]

    def keyed(rows: list[dict[str, str]]) -> dict[tuple[str, ...], dict[str, str]]:
        # Micro batches of the second monitor have equal keys.
        found: dict[tuple[str, ...], dict[str, str]] = {}
        for row in rows:
            key = tuple(row[name] for name in keys)
            found[(*key, str(sum(other[: len(key)] == key for other in found)))] = row
        return found

    one_by_key, other_by_key = keyed(ours), keyed(recorded)
    yield from (f"missing {key}" for key in other_by_key.keys() - one_by_key.keys())
    yield from (f"extra {key}" for key in one_by_key.keys() - other_by_key.keys())
    for key, row in other_by_key.items():
        for name in STATISTICS & row.keys():
            is_rounding = any(ROUNDING.match(each) for each in key)
            if is_rounding and ONLY_ROUNDING.fullmatch(theirs.name):
                continue
            if key in one_by_key and not same(one_by_key[key][name], row[name], is_rounding):
                yield f"{key}: {name} is {one_by_key[key][name]}, recorded {row[name]}"


def same(mine: str, recorded: str, is_rounding: bool) -> bool:
    flags = {"True": "1", "False": "0"}
    x, y = float(flags.get(mine, mine)), float(flags.get(recorded, recorded))
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    return x == y or math.isclose(x, y, rel_tol=5e-3 if is_rounding else 1e-4, abs_tol=5e-3 if is_rounding else NOISE)


def without_messages(path: Path) -> dict[str, dict[str, object]]:
    """The alerts, but for those of rounding, which another processor has at other steps."""
    content = json.loads(path.read_text(encoding="utf-8"))
    # The structure of a model has no messages.
    values = {key: re.findall(r"current value ([^,]+),", entry.get("message", "")) for key, entry in content.items()}
    return {
        key: {name: value for name, value in entry.items() if name != "message"}
        for key, entry in content.items()
        if not any(abs(float(value)) < NOISE for value in values[key])
    }


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("case", sorted(each.name for each in CASES.iterdir()))
def test_files_are_those_of_msprobe(case: str, tmp_path: Path) -> None:
    found = written(case, tmp_path)
    root = CASES / case
    expected = {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*.*")
        if path.name not in ("train.py", "config.json", "anomaly_analyse.json")
    }
    assert set(found) == set(expected)
    for name, path in expected.items():
        if name.endswith(".csv"):
            assert not list(differences(found[name], path)), name
        else:
            assert without_messages(found[name]) == without_messages(path), name
