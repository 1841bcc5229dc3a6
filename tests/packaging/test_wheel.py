"""The wheel, built with the compiled parts and without a compiler, works in an environment that has nothing else.

The environment `wheel` of tox.ini runs this, and no other: it builds, and installs PyTorch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASE = ROOT / "tests" / "compare" / "cases" / "missing_apis_stat"
COMPILED = {"_differences", "_digests", "_frames", "_journal_frames", "_makers", "_reduction", "_plain_tensors"}
KINDS = ("compiled", "python")
# The sources of the compiled parts are in the source distribution only.
DATA = {
    path.relative_to(ROOT).as_posix()
    for package in ("probe", "msprobe")
    for path in (ROOT / package).rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc", ".so", ".pyd", ".c", ".h")
}


def call(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command as someone does who has no checkout; returns what it printed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PROBE_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**environment, **variables}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    call(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT, cwd=folder)
    (source,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", source]
    call(*pip, "--wheel-dir", folder / "compiled", cwd=folder)
    # Distutils takes the compiler from here.
    call(*pip, "--wheel-dir", folder / "python", cwd=folder, CC="/no/compiler", CXX="/no/compiler")
    return {kind: next((folder / kind).glob("*.whl")) for kind in KINDS}


@dataclass
class Installed:
    """An environment, a folder to work in, both wheels, and the kind of the one that is installed."""

    bin: Path
    folder: Path
    wheels: dict[str, Path]
    used: str

    def use(self, kind: str) -> None:
        if kind == self.used:
            return
        self.used = kind
        pip = [self.bin / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
        call(*pip, self.wheels[kind], cwd=self.folder)


@pytest.fixture(scope="session")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An empty environment with the first wheel, what it asks for, and PyTorch."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    found = Installed(folder / "venv" / "bin", folder, wheels, "compiled")
    # The same build as everywhere: see tox.ini.
    pip = [found.bin / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    call(*pip, "torch==2.13.0", wheels["compiled"], cwd=folder)
    shutil.copy(ROOT / "examples" / "train.py", folder)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_wheel_holds_what_the_packages_need(kind: str, wheels: dict[str, Path]) -> None:
    # `msprobe` on the index is another project, whose installation would replace this one.
    assert wheels[kind].name.startswith("precision_probe-")
    with zipfile.ZipFile(wheels[kind]) as archive:
        names = set(archive.namelist())
    assert {"probe/py.typed", "msprobe/py.typed"} <= DATA <= names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "probe").rglob("*.py")}
    assert modules <= names
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"probe", "msprobe"}
    compiled = {Path(name).name.split(".")[0] for name in names if name.endswith((".so", ".pyd"))}
    assert compiled == (COMPILED if kind == "compiled" else set())


@pytest.mark.parametrize("kind", KINDS)
def test_the_wheel_works_alone(kind: str, installed: Installed) -> None:
    installed.use(kind)
    folder = installed.folder
    where = call(installed.bin / "python", "-c", "import probe; print(probe.__file__, probe.__version__)", cwd=folder)
    assert "site-packages" in where
    assert call(installed.bin / "msprobe", "--version", cwd=folder).split() == ["msprobe", where.split()[-1]]
    compare = [installed.bin / "msprobe", "compare", "-tp", CASE / "target", "-gp", CASE / "golden", "-o", "recorded"]
    assert "rows by statistics" in call(*compare, cwd=folder)
    for run, epsilon in (("golden", "1e-5"), ("changed", "1e-2")):
        said = call(installed.bin / "msprobe", "run", "-o", f"{kind}_{run}", "train.py", epsilon, cwd=folder)
        assert "step 1: loss" in said
    assert "first divergence: step 0" in divergence(installed, f"{kind}_changed", f"{kind}_golden")


def test_both_wheels_record_the_same(installed: Installed) -> None:
    for kind in KINDS:
        if not (installed.folder / f"{kind}_golden").exists():
            test_the_wheel_works_alone(kind, installed)
    assert divergence(installed, "compiled_golden", "python_golden").startswith("no divergence")


def divergence(installed: Installed, target: str, golden: str) -> str:
    compare = [installed.bin / "msprobe", "compare", "-tp", target, "-gp", golden, "-o", "result"]
    return call(*compare, cwd=installed.folder, MSPROBE_LOG_LEVEL="2").splitlines()[0]
