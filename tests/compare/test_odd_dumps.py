"""Dumps that lack something or have more: recorded ones, checksums alone, no sketches, damaged trees, counts."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_dumps
import numpy as np
import pytest
from made_dumps import call, constant, tensor, tensor_of, write

from probe.api import cli
from probe.api.cli import main
from probe.common.align.mapping import BUILT_IN
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import Where
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.runner import summaries
from probe.compare.summary import Summary
from probe.compare.summary_text import headline

# --- every dump that the real tool wrote for the other tests is read, and compared with itself, without conversion

RECORDED = Path(__file__).parents[1] / "reference"
DUMPS = sorted(path for name in ("dump.json", "debug.json") for path in RECORDED.glob(f"*/cases/**/{name}"))


@pytest.mark.sampled(least=20, each=False)
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


# --- dumps with checksums: sketches tell how far apart two tensors are that have other ones

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


# --- dumps without sketches: statistics decide within one program, and elsewhere the answer is that it cannot be told

ENDING = "; record both runs with sketches"


def _without_sketches(run: Path, folder: Path) -> list[Summary]:
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("sketch.npz"))
    return list(summaries(str(folder / "target"), str(folder / "golden"), where=Where(1)))


def test_a_fault_in_one_program_is_found_by_statistics(dumps_of: Dumps, tmp_path: Path) -> None:
    found = _without_sketches(dumps_of("pairs") / "scale-llama@L0", tmp_path / "run")
    assert "layers.1.mlp.up_proj" in headline(found)[0][0]


@pytest.mark.parametrize("case", ["llama-right-float32@mix", "llama-keys_and_values_swapped-float32@mix"])
def test_two_programs_cannot_be_told(dumps_of: Dumps, tmp_path: Path, case: str) -> None:
    found = _without_sketches(dumps_of("fused") / case, tmp_path / "run")
    assert {each.answer for each in found} == {"cannot_tell"}
    assert headline(found)[0][0].startswith("cannot be told: ") and headline(found)[0][0].endswith(ENDING)


def test_parameters_after_an_update_that_nobody_measured_accuse_no_call(dumps_of: Dumps, tmp_path: Path) -> None:
    first, second = _without_sketches(dumps_of("pairs") / "learning-rate-llama@L0", tmp_path / "run")
    assert (first.answer, second.answer) == ("none", "cannot_tell")
    assert second.why.endswith(ENDING)


# --- A damaged or missing construct.json of a comparison: one error that names the calls, and one line on what is lost

NAMES = [f"Module.m{number}.C.forward.0" for number in range(5)]


def dump(folder: Path, tree: dict[str, str | None] | None) -> str:
    records: dict[str, Any] = {name: call([tensor()], [tensor()]) for name in NAMES}
    return str(write(folder, records, tree))


@pytest.mark.parametrize("missing, expected", [
    ("target", "the target has no construct.json"), ("golden", "the golden run has no construct.json"),
    ("both", "both runs have no construct.json"), ("", ""),
])  # fmt: skip
def test_a_missing_tree_is_said_once(
    missing: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree: dict[str, str | None] = dict.fromkeys(NAMES)
    sides = [dump(tmp_path / side, None if missing in (side, "both") else tree) for side in ("target", "golden")]
    assert main(["compare", "-tp", sides[0], "-gp", sides[1], "-o", str(tmp_path / "out")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "construct.json" in line]
    assert len(lines) == (1 if expected else 0)
    assert all(expected in line and "without the tree of modules" in line for line in lines)


# --- what only some dumps say of a tensor or a call changes nothing in a comparison

CALL = "Distributed.all_reduce.0.forward"


def written_with(folder: Path, entry: dict[str, Any], **more: Any) -> str:
    return str(made_dumps.write(folder, {CALL: call([entry], [entry], **more)}) / "dump.json")


@pytest.mark.parametrize("counted_side", ["target", "golden"])
def test_counts_and_waits_are_not_compared(tmp_path: Path, counted_side: str) -> None:
    counted = constant(math.nan, **{"Nonfinite": 2, "Finite Max": 3.5, "Finite Min": None})
    with_more = written_with(tmp_path / "counted", counted, waited_after="Torch.abs.0.forward")
    without = written_with(tmp_path / "plain", constant(math.nan))
    target, golden = (with_more, without) if counted_side == "target" else (without, with_more)
    arguments = ["compare", "-tp", target, "-gp", golden, "-o", str(tmp_path / "out")]
    assert cli.main([*arguments, "--fail-on", "warning"]) == cli.main(
        [arguments[0], "-tp", without, "-gp", without, "-o", str(tmp_path / "same"), "--fail-on", "warning"]
    )
    (mixed,), (plain,) = (list((tmp_path / name).glob("*.csv")) for name in ("out", "same"))
    assert mixed.read_text() == plain.read_text()


# --- thousands of modules inside each other


def _nested(folder: Path, scale: float) -> str:
    records: dict[str, Any] = {}
    tree: dict[str, str | None] = {}
    above = None
    for number in range(1200):
        module, function = f"Module.b{number}.Block.forward.0", f"Functional.relu.{number}.forward"
        size = scale * (1 + 1e-3 * number)
        for name, given in ((module, size), (function, 1.003 * size)):
            tensors = [tensor(each + 3, each - 3, 0.1 * each, 8 * each, (8, 8)) for each in (given, 1.01 * size)]
            records[name] = call(tensors[:1], tensors[1:])
        tree[module], tree[function] = above, module
        above = module
    return str(write(folder, records, tree))


def test_modules_a_thousand_deep_are_judged(tmp_path: Path) -> None:
    (found,) = summaries(_nested(tmp_path / "target", 1.00001), _nested(tmp_path / "golden", 1.0))
    assert found.divergence is not None and found.divergence.record == "Module.b0.Block.forward.0"
    # What follows is made from it.
    assert not found.divergence.suspects
