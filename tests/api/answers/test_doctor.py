"""``msprobe doctor``: what is there, what is broken and what is missing, of packages that are made here."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import msprobe
from fake_packages import package
from scripts import CHECKOUT

import probe
from probe.api import cli
from probe.api.commands import doctor
from probe.common.dump.frameworks import all_tested_text

Doctor = Callable[[], list[str]]


def line(lines: list[str], name: str) -> list[str]:
    return next(line.split() for line in lines if line.split()[:1] == [name])


def imported(folder: Path) -> list[str]:
    """The lines of the command, which finds something wrong, with the packages of `folder` in front."""
    # Python looks first in the folder that it runs in, where a checkout may be.
    done = msprobe("doctor", folder=Path(CHECKOUT), PYTHONPATH=f"{folder}:{CHECKOUT}")
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def listed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """The lines of the command that imports nothing, with the packages of the test's folder in front."""

    def run() -> list[str]:
        monkeypatch.syspath_prepend(tmp_path)
        assert cli.main(["doctor", "--no-import"]) in (0, 1)
        return capsys.readouterr().out.splitlines()

    return run


def test_packages_are_found_and_tried(tmp_path: Path) -> None:
    package(tmp_path, "torch_npu", "2.13.0", "print('banner')")
    # Where the package comes from is another name.
    package(tmp_path, "mindtorch", "0.5.1", "", "mindnlp")
    package(tmp_path, "torch", "2.13.0", "def __getattr__(name):\n    raise AttributeError(f'there is no {name}')")
    lines = imported(tmp_path)
    assert lines[0].startswith(f"msprobe {probe.__version__} in ") and sys.executable in lines[1]
    assert line(lines, "torch_npu")[1:4] == ["2.13.0", "imports", "in"]
    assert line(lines, "mindtorch")[1:4] == ["of", "mindnlp", "0.5.1"]
    assert any(text.startswith("  ! torch hides mindtorch") for text in lines)
    # Imported, and of no use: the line that asked is named, and not the one in torch that answered.
    text = " ".join(line(lines, "torch"))
    assert text.startswith("torch 2.13.0 BROKEN: collecting a training step with it: ")
    assert re.search(r"(Error: .*) \(.*probe/backends/torch/.*\.py, line \d+\)$", text), text


def test_a_package_that_cannot_be_imported_ends_nothing_and_is_named(tmp_path: Path) -> None:
    sources = {
        "torch": ("raise ImportError('libcudart.so.12: absent')", "ImportError: libcudart.so.12: absent ({}, line 1)"),
        "torch_npu": ("\nimport absent_part", "ModuleNotFoundError: No module named 'absent_part' ({}, line 2)"),
        "mindspore": ("import os; os._exit(3)", "importing it ends the process with status 3"),
        "mindtorch": ("import os; os.kill(os.getpid(), 11)", "importing it ends the process (signal 11)"),
    }
    for name, (source, _) in sources.items():
        package(tmp_path, name, "2.1.0", source)
    lines = imported(tmp_path)
    for name, (_, said) in sources.items():
        found = " ".join(line(lines, name))
        assert found.endswith(f" BROKEN: {said.format(tmp_path / name / '__init__.py')}"), found
    assert any(text.startswith("  ! torch 2.1.0 is older than supported releases") for text in lines)


def test_what_is_there_is_listed_without_imports(tmp_path: Path, listed: Doctor) -> None:
    files_of = {
        ("msprobe", "0.1.4"): "msprobe/__init__.py,,\n../../../bin/msprobe,,\n",
        ("precision-probe", probe.__version__): "msprobe/__init__.py,,\nprobe/__init__.py,,\n",
        ("sounding", "3.0"): "sounding/probe/__init__.py,,\n../../../bin/msprobe-sounding,,\n",
    }
    for (name, version), files in files_of.items():
        package(tmp_path, f"package_of_{name.replace('-', '_')}", version, "", name)
        (tmp_path / f"{name}-{version}.dist-info" / "RECORD").write_text(files, encoding="utf-8")
    package(tmp_path, "torch", "2.1.0", "raise ImportError")
    # A folder that happens to be called so is no framework.
    (tmp_path / "mindspore").mkdir()
    lines = listed()
    said = [text for text in lines if any(text.startswith(f"  ! {' '.join(one)}, another") for one in files_of)]
    assert len(said) == 1 and "msprobe 0.1.4" in said[0] and "pip uninstall msprobe" in said[0]
    assert line(lines, "torch") == ["torch", "2.1.0", "installed"]
    assert f"  tested: {all_tested_text()}" in lines
    for name in ("isal", "openpyxl"):
        found = " ".join(line(lines, name))
        assert "not installed" not in found or found.endswith(f"pip install {name}")
    if getattr(importlib.util.find_spec("mindspore"), "origin", None) is None:
        assert line(lines, "mindspore")[1:3] == ["not", "installed"]
    # Compiled parts are those beside the sources.
    sources = [path.relative_to(CHECKOUT).with_suffix("") for path in Path(CHECKOUT, "probe").rglob("*.c")]
    assert len(sources) == len(doctor._COMPILED)
    for path in sources:
        is_there = importlib.util.find_spec(".".join(path.parts)) is not None
        assert line(lines, path.name)[1] in (("there", "older") if is_there else ("missing:",))


@pytest.mark.parametrize("is_checkout", [True, False])
def test_a_compiled_part_of_a_checkout_that_is_older_than_its_source_is_named(
    tmp_path: Path, listed: Doctor, monkeypatch: pytest.MonkeyPatch, is_checkout: bool
) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    root = tmp_path / "probe"
    (root / "common/dump").mkdir(parents=True)
    if is_checkout:
        (tmp_path / "setup.py").touch()
    for number, name in enumerate(("_frames", "dump/_records")):
        built, source = (root / "common" / f"{name}{end}" for end in (suffix, ".c"))
        for path, time in ((built, 100), (source, 99 + 2 * number)):
            path.touch()
            os.utime(path, (time, time))
    monkeypatch.setattr(doctor, "_ROOT", str(root))
    states = [each.split() for each in listed() if each.startswith("  _")]
    older = [each[0] for each in states if each[1:5] == ["older", "than", "its", "source;"]]
    # The times of an installed package are those at which it was unpacked.
    assert older == (["_records"] if is_checkout else [])
    assert [each[0] for each in states if each[1:] == ["there"]] == ["_frames", "_records"][: 2 - len(older)]
    assert sum(each[1] == "missing:" for each in states) == len(states) - 2


OWN = "not installed needs an environment of its own"
WITH_MINDTORCH = "pip install 'mindspore==2.7.0' 'numpy<2' ml_dtypes"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (
            {},
            {
                "torch": "not installed pip install torch",
                "mindspore": "not installed pip install 'mindspore==2.10.0' 'numpy<2'",
                "mindtorch": f"not installed {WITH_MINDTORCH} && pip install --no-deps mindnlp==0.5.1",
            },
        ),
        ({"mindtorch": "0.5.1"}, {"torch": OWN, "mindspore": f"not installed {WITH_MINDTORCH}"}),
        ({"torch": "2.13.0"}, {"mindspore": "not installed pip install 'mindspore==2.10.0'", "mindtorch": OWN}),
        ({"mindspore": "2.10.0"}, {"torch": "not installed pip install torch", "mindtorch": OWN}),
        ({"mindspore": "2.7.1"}, {"mindtorch": f"not installed {WITH_MINDTORCH}"}),
    ],
)
def test_nothing_is_recommended_that_breaks_what_is_there(
    tmp_path: Path, listed: Doctor, there: dict[str, str], expected: dict[str, str]
) -> None:
    for name, version in there.items():
        package(tmp_path, name, version, "", "mindnlp" if name == "mindtorch" else "")
    lines = listed()
    if any(line(lines, name)[1] != "not" for name in ("torch", "mindspore", "mindtorch") if name not in there):
        pytest.skip("a framework is installed here")
    for name, said in expected.items():
        assert " ".join(line(lines, name)[1:]).startswith(said)
