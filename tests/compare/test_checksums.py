"""Dumps with checksums: sketches tell how far apart two tensors are that have other ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_dumps
import numpy as np
import pytest
from made_dumps import tensor_of

from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import Where
from probe.compare.output.summary import Summary
from probe.compare.runner import summaries

_STATISTICS = "Max", "Min", "Mean", "Norm"
Dumps = Callable[[str], Path]


def _xor(tensor: dict[str, Any]) -> None:
    taken = [tensor.pop(name, None) for name in _STATISTICS]
    tensor["md5"] = f"0x{hashlib.sha1(repr(taken).encode()).hexdigest()[:16]}"


def _md5(tensor: dict[str, Any]) -> None:
    tensor["md5"] = hashlib.sha1(repr([tensor.get(name) for name in _STATISTICS]).encode()).hexdigest()[:8]


def _changed(values: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    """The values of a dump, of which each tensor is changed."""
    if isinstance(values, dict):
        if "shape" in values and "dtype" in values:
            change(values)
        else:
            for each in values.values():
                _changed(each, change)
    elif isinstance(values, list):
        for each in values:
            _changed(each, change)
    return values


def _run(source: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A run as another summary_mode would have written it."""
    shutil.copytree(source, folder)
    for path in folder.glob("**/dump.json"):
        path.write_text(json.dumps(_changed(json.loads(path.read_text()), change)))
    return str(folder)


def _compared(target: str, golden: str) -> list[Summary]:
    return list(summaries(target, golden, where=Where(1)))


@pytest.mark.parametrize("change", [_xor, _md5])
@pytest.mark.parametrize(("case", "place"), [("attention-llama@mix", ""), ("scale-llama@L0", "layers.1.mlp.up_proj")])
def test_other_checksums_are_judged_by_distances(
    dumps_of: Dumps, tmp_path: Path, change: Any, case: str, place: str
) -> None:
    sides = [_run(dumps_of("pairs") / case / side, tmp_path / side, change) for side in ("target", "golden")]
    found = _compared(*sides)
    assert {each.mode for each in found} == {"checksum"} and found[0].differs
    divergences = [each.divergence.record for each in found if each.divergence is not None]
    assert place in divergences[0] if place else not divergences


def test_two_kinds_of_checksums_are_refused(dumps_of: Dumps, tmp_path: Path) -> None:
    pair = dumps_of("pairs") / "scale-llama@L0"
    target, golden = _run(pair / "golden", tmp_path / "a", _md5), _run(pair / "golden", tmp_path / "b", _xor)
    step, other = (str(next(Path(folder).glob("step0/*"))) for folder in (target, golden))
    with pytest.raises(MsprobeException, match=r"md5 checksums and .* holds xor.* same summary_mode"):
        _compared(step, other)


def test_statistics_that_one_run_lacks_are_no_nan(tmp_path: Path) -> None:
    # Tensors are there on both sides; what else a summary_mode writes beside them is not compared.
    array = np.arange(6, dtype=np.float32)
    source = tmp_path / "golden"
    (source / "dump_tensor_data").mkdir(parents=True)
    np.save(source / "dump_tensor_data" / "0.npy", array)
    made_dumps.written(
        source, {"Torch.sin.0.forward": {"output": [tensor_of(array, data_name="0.npy")]}}, task="tensor"
    )
    (found,) = _compared(_run(source, tmp_path / "xor", _xor), str(source))
    assert found.mode == "tensor"
    assert (found.answer, found.why) == ("none", "nothing differs")
