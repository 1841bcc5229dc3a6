"""Scripts of single calls, run by an interpreter that cannot import this package."""

from __future__ import annotations

import ast
import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from planted_kernels import FAULTS, IN_FLOAT32, planted

import probe
from probe.common.errors import MsprobeException

LLAMA = str(Path(__file__).parents[1] / "precheck" / "cases" / "replay" / "dump.json")
ALONE = """
import contextlib, io, json, runpy, sys
sys.modules["probe"] = sys.modules["msprobe"] = None
found = {}
for path in sys.argv[1:]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        runpy.run_path(path)
    found[path] = text.getvalue()
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Scripts:
    """What was found when scripts were written, and what they print; names stand for those of special cases."""

    everything: dict[Path, probe.Replay]
    special: dict[str, probe.Replay]
    texts: dict[str, str]

    def text(self, name: str) -> str:
        """What a special script prints."""
        return self.texts[self.special[name].files[0]]


@pytest.fixture(scope="module")
def scripts(recorded: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """Return all scripts, which one interpreter runs."""
    folder = tmp_path_factory.mktemp("scripts")
    everything, special = _everything(recorded["tensor"], folder), _special(recorded["tensor"], folder)
    paths = [*map(str, everything), *(each.files[0] for each in special.values())]
    ran = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", ALONE, *paths],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return Scripts(everything, special, json.loads(ran.stdout))


def _everything(path: str, folder: Path) -> dict[Path, probe.Replay]:
    """Each kind of call of a step."""
    found = {}
    names = [record.name[: -len(".forward")] for record in probe.read(path) if record.name.endswith(".forward")]
    # Those of other dtypes differ in nothing that a script says.
    names = [name for name in names if not {"torch.bfloat16", "torch.float16"} & set(_dtypes(path, name))]
    for name in {name.rpartition(".")[0] + str(_dtypes(path, name)): name for name in reversed(names)}.values():
        script = folder / f"{len(found)}_{name}.py"
        # What computes nothing is refused.
        with contextlib.suppress(MsprobeException):
            found[script] = probe.replay(path, name, emit=script)
    return found


def _special(path: str, folder: Path) -> dict[str, probe.Replay]:
    with planted(F, "silu", IN_FLOAT32["every element 0.2 % high"]):
        small = probe.replay(LLAMA, "Functional.silu.0", emit=folder / "small.py", minimise=True)
    with planted(F, "silu", FAULTS["one element 10 % off"]):
        wrong = probe.replay(LLAMA, "Functional.silu.0.forward", emit=folder / "wrong.py")
    # The kernel of this process is wrong no more, so the script does it.
    script = folder / "wrong.py"
    call = "output = torch.nn.functional.silu(x0)"
    index = wrong.replayed.worst.row.verdict.worst_index
    text = script.read_text(encoding="utf-8")
    assert call in text
    script.write_text(text.replace(call, f"{call}\n    if not high:\n        output[{index}] *= 1.1"), encoding="utf-8")
    half = next(
        record.name for record in probe.read(path)
        if "silu" in record.name and "torch.bfloat16" in _dtypes(path, record.name[: -len(".forward")])
    )  # fmt: skip
    return {"small": small, "wrong": wrong, "bfloat16": probe.replay(path, half, emit=folder / "half.py")}


def _dtypes(path: str, name: str) -> list[str]:
    arguments = probe.read(path)[f"{name}.forward"].fields["input_args"]
    return [each["dtype"] for each in arguments if isinstance(each, dict) and "dtype" in each]


@pytest.mark.sampled(least=2, each=False, group="several processes with a framework")
def test_every_call_has_a_script_that_says_each_result(scripts: Scripts) -> None:
    assert len(scripts.everything) > 20
    for script, found in scripts.everything.items():
        lines = [line for line in scripts.texts[str(script)].split("\n") if " on cpu, exactly " in line]
        assert len(lines) == len(found.replayed.results), script


def test_scripts_are_short_and_import_the_framework_alone(scripts: Scripts) -> None:
    for script in scripts.everything:
        text = script.read_text(encoding="utf-8")
        assert all(len(line) <= 120 for line in text.split("\n")), script
        tree = ast.parse(text)
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert imported <= {"pathlib", "torch"}
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert len([line for line in text.split("\n") if line.strip()]) < 70


def test_functions_are_spelled_as_users_spell_them(scripts: Scripts) -> None:
    calls = {
        line.strip().partition("output = ")[2] or line.strip()
        for script in scripts.everything for line in script.read_text(encoding="utf-8").split("\n")
    }  # fmt: skip
    assert {
        "torch.nn.functional.silu(x0)", "torch.matmul(x0, x1)", "x0.mul_(0.5)", "torch.where(x0, x1, x2)",
        "x0.__setitem__((slice(None, None, None), slice(1, 3, None)), 1.0)", "torch.nn.functional.softmax(x0, -1)",
    } <= calls  # fmt: skip


def test_a_small_script_needs_no_files_and_says_that_a_right_kernel_is_right(scripts: Scripts) -> None:
    found = scripts.special["small"]
    assert len(found.files) == 1
    assert "Made smaller" in Path(found.files[0]).read_text(encoding="utf-8")
    text = scripts.text("small")
    assert "forward.output.0 at [0, 0, 0]" in text
    assert "gradient of x0 at [0, 0, 0]" in text
    assert "error 0 ULP" in text


def test_a_script_finds_the_wrong_element(scripts: Scripts) -> None:
    found = scripts.special["wrong"]
    assert [Path(each).name for each in found.files] == ["wrong.py", "input_0.pt"]
    worst, text = found.replayed.worst.row.verdict, scripts.text("wrong")
    assert f"forward.output.0 at {list(worst.worst_index or ())}: {worst.worst_result} on cpu" in text
    assert float(text.partition("error ")[2].split()[0]) == pytest.approx(worst.max_ulp, rel=1e-3)


def test_a_script_draws_the_recorded_random_numbers(scripts: Scripts) -> None:
    (script,) = [path for path in scripts.everything if "Functional.dropout" in path.name]
    lines = [line.split() for line in scripts.texts[str(script)].split("\n")]
    now = [float(line[line.index("on") - 1]) for line in lines if "exactly" in line]
    errors = [float(line[1]) for line in lines if line[:1] == ["error"]]
    recorded = [float(line[1]) for line in lines if line[:1] == ["recorded"]]
    assert len(now) == 2
    assert now == recorded
    assert all(error < 2 for error in errors)


def test_the_recorded_value_is_printed_in_its_own_dtype(scripts: Scripts) -> None:
    text = scripts.text("bfloat16")
    assert text.count("    recorded ") == len(scripts.special["bfloat16"].replayed.results)
    assert "ULP of bfloat16" in text


def test_an_element_that_was_wrong_when_it_was_recorded_is_shown(tmp_path: Path) -> None:
    """However right the kernel of now is: the dump came from somewhere else."""
    folder = Path(shutil.copytree(Path(LLAMA).parent, tmp_path / "run"))
    path = folder / "dump_tensor_data" / "Functional.silu.0.forward.output.0.pt"
    x = torch.load(folder / "dump_tensor_data" / "Functional.silu.0.forward.input.0.pt", weights_only=True)
    output = torch.nn.functional.silu(x.detach())
    output[0, 1, 2] = float("nan")
    torch.save(output, path)
    script = tmp_path / "silu.py"
    probe.replay(folder, "Functional.silu.0.forward", emit=script)
    ran = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=True)
    assert "furthest off when recorded, at [0, 1, 2]: nan" in ran.stdout


def test_files_are_private_and_never_written_through_a_link(tmp_path: Path) -> None:
    found = probe.replay(LLAMA, "Functional.silu.0", emit=tmp_path / "a" / "silu.py")
    assert {Path(each).stat().st_mode & 0o777 for each in found.files} == {0o640}
    assert (tmp_path / "a" / "silu_data").stat().st_mode & 0o777 == 0o750
    (tmp_path / "b_data").symlink_to(tmp_path / "a")
    with pytest.raises(MsprobeException, match="symbolic link"):
        probe.replay(LLAMA, "Functional.silu.0", emit=tmp_path / "b.py")
    assert not (tmp_path / "b.py").exists()
