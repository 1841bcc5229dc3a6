"""A release of the framework without a part that others have: the tool loses a feature and says so in one line."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import forks
import pytest
from programs import Names

import probe

BACKENDS = Path(probe.__file__).parent / "backends"
SHARES = {"msadapter": "mindspore"}
"""Backend -> the one whose `internals.py` it composes."""
ESSENTIAL = {
    "mindspore": {"_c_expression.TensorPy", "graph.api._pynative_executor", "common.api._pynative_executor"}
    | {"graph.api._no_grad", "common.api._no_grad"}
}
"""Parts without which there is nothing to collect with; a release without one is not supported."""
SECOND_CHOICE = {"jit._script.script", "graph.api._JitExecutor"}
"""Parts that are looked up only where another one is absent."""
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import importlib
from probe.backends.shared import internals
found = internals.find
hidden = sys.argv[3]
internals.find = lambda path: internals.ABSENT if path == hidden else found(path)
backend = importlib.import_module(f"backend_{sys.argv[2]}").Backend()
from programs import batch, block_network
debugger = backend.new_debugger_class()(None, "statistics", sys.argv[4], "mix", [0])
model = block_network(backend)
debugger.start(model)
outcome = backend.run(model, batch(backend, requires_grad=True), model=model)
debugger.stop()
debugger.step()
gradients = (outcome.output, *outcome.inputs, *outcome.parameters.values())
print("> " + repr([value.tolist() for value in gradients]))
"""


def looked_up(backend: str) -> list[str]:
    """The paths of `internals.py` of a backend; none without the file."""
    file = BACKENDS / SHARES.get(backend, backend) / "internals.py"
    source = file.read_text(encoding="utf-8") if file.is_file() else ""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return sorted({node.args[0].value for node in calls if getattr(node.func, "id", "") == "_find"})  # type: ignore[attr-defined]


def costs(backend: str, path: str) -> bool:
    """Whether `internals.py` gives a cost with the path, that is a third argument."""
    source = (BACKENDS / SHARES.get(backend, backend) / "internals.py").read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = [node for node in calls if getattr(node.func, "id", "") == "_find" and node.args[0].value == path]  # type: ignore[attr-defined]
    return path not in SECOND_CHOICE and any(len(node.args) > 2 for node in found)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "path" in metafunc.fixturenames:
        backend = metafunc.config.getoption("--backend")
        kept = [path for path in looked_up(backend) if path not in ESSENTIAL.get(SHARES.get(backend, backend), ())]
        metafunc.parametrize("path", kept)


def collect(backend: Any, folder: Path, hidden: str) -> subprocess.CompletedProcess[str]:
    support = str(Path(__file__).parents[1] / "support")
    arguments = (support, backend.name, hidden, str(folder / "dump"))
    return forks.run_python(backend.name, folder / "program.py", *arguments, code=PROGRAM)


@pytest.fixture(scope="module")
def trained(backend: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program prints where nothing is absent."""
    done = collect(backend, tmp_path_factory.mktemp("whole"), "")
    assert done.returncode == 0, done.stderr
    return _printed(done)


def _printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    return re.findall("^> .*", done.stdout, re.MULTILINE)


@pytest.mark.sampled(least=3, each=False)
def test_a_part_that_a_release_lacks_costs_its_feature_alone(
    backend: Any, trained: list[str], tmp_path: Path, path: str
) -> None:
    framework = SHARES.get(backend.name, backend.name)
    done = collect(backend, tmp_path, f"{framework}.{path}")
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if f" has no {framework}.{path}" in line]
    # Some have a stand-in that does the same.
    assert len(said) == costs(backend.name, path), "one line"
    assert "Traceback" not in done.stdout + done.stderr
    (file,) = (tmp_path / "dump").rglob("dump.json")
    records = json.loads(file.read_text(encoding="utf-8"))["data"]
    assert f"{Names(backend).fc}.forward.0" in records
    assert _printed(done) == trained, "the training is the same"
