"""``msprobe doctor``: what is there, what is broken and what is missing, of packages that are made here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from fake_packages import package

import probe
from probe.common.dump.frameworks import all_tested_text


def doctor(*folders: Path, options: tuple[str, ...] = (), status: int | None = 0) -> list[str]:
    """The lines of the command, with these folders in front of what is installed; any `status` may be ``None``."""
    root = Path(probe.__file__).parents[1]
    path = os.pathsep.join(map(str, (*folders, root)))
    environment = {**os.environ, "PYTHONPATH": path}
    call = [sys.executable, "-m", "probe.api.cli", "doctor", *options]
    # Python looks first in the folder that it runs in, where a checkout may be.
    done = subprocess.run(call, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == "" and status in (None, done.returncode)
    return done.stdout.splitlines()


def line(lines: list[str], name: str) -> list[str]:
    return next(line.split() for line in lines if line.split()[:1] == [name])


def test_packages_are_found_and_tried(tmp_path: Path) -> None:
    package(tmp_path, "torch_npu", "2.13.0", "print('banner')")
    # Where the package comes from is another name.
    package(tmp_path, "mindtorch", "0.5.1", "", "mindnlp")
    package(tmp_path, "torch", "2.13.0", "")
    lines = doctor(tmp_path, status=1)
    assert lines[0].startswith(f"msprobe {probe.__version__} in ") and sys.executable in lines[1]
    assert line(lines, "torch_npu")[1:4] == ["2.13.0", "imports", "in"]
    assert line(lines, "mindtorch")[1:4] == ["of", "mindnlp", "0.5.1"]
    assert any(text.startswith("  ! torch hides mindtorch") for text in lines)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libcudart.so.12: cannot open')", "ImportError: libcudart.so.12: cannot open ({}, line 1)"),
        ("\nimport absent_part", "ModuleNotFoundError: No module named 'absent_part' ({}, line 2)"),
        ("import os; os._exit(3)", "importing it ends the process with status 3"),
        ("import os; os.kill(os.getpid(), 11)", "importing it ends the process (signal 11)"),
    ],
)
def test_a_framework_that_cannot_be_imported_ends_nothing_and_is_named(tmp_path: Path, source: str, said: str) -> None:
    package(tmp_path, "torch", "2.1.0", source)
    package(tmp_path, "torch_npu", "2.1.0", "")
    lines = doctor(tmp_path, status=1)
    said = said.format(tmp_path / "torch" / "__init__.py")
    assert " ".join(line(lines, "torch")) == f"torch 2.1.0 BROKEN: {said}"
    assert line(lines, "torch_npu")[1:3] == ["2.1.0", "imports"]
    command = "" if line(lines, "mindtorch")[1] != "not" else ": pip install 'torch>=2.5'"
    assert f"  ! torch 2.1.0 is older than supported releases{command}" in lines
    assert line(doctor(tmp_path, options=("--no-import",)), "torch") == ["torch", "2.1.0", "installed"]


def test_a_framework_that_is_imported_and_cannot_be_used_is_broken(tmp_path: Path) -> None:
    package(tmp_path, "torch", "2.13.0", "def __getattr__(name):\n    raise AttributeError(f'there is no {name}')")
    text = " ".join(line(doctor(tmp_path, status=1), "torch"))
    assert text.startswith("torch 2.13.0 BROKEN: collecting a training step with it: ")
    # The line that asked, and not the one in torch that answered.
    assert re.search(r"(Error: .*) \(.*probe/backends/torch/.*\.py, line \d+\)$", text), text


def test_another_distribution_that_has_taken_the_names_is_named(tmp_path: Path) -> None:
    files_of = {
        ("msprobe", "0.1.4"): "msprobe/__init__.py,,\n../../../bin/msprobe,,\n",
        ("precision-probe", probe.__version__): "msprobe/__init__.py,,\nprobe/__init__.py,,\n",
        ("sounding", "3.0"): "sounding/probe/__init__.py,,\n../../../bin/msprobe-sounding,,\n",
    }
    for (name, version), files in files_of.items():
        package(tmp_path, f"package_of_{name.replace('-', '_')}", version, "", name)
        (tmp_path / f"{name}-{version}.dist-info" / "RECORD").write_text(files, encoding="utf-8")
    lines = doctor(tmp_path, options=("--no-import",))
    said = [text for text in lines if any(text.startswith(f"  ! {' '.join(one)}, another") for one in files_of)]
    assert said == [
        "  ! msprobe 0.1.4, another distribution, has installed msprobe too: "
        "pip uninstall msprobe, then install precision-probe again"
    ]


def test_the_tested_versions_are_those_of_the_table() -> None:
    assert f"  tested: {all_tested_text()}" in doctor(options=("--no-import",))


def test_what_is_missing_comes_with_its_command(tmp_path: Path) -> None:
    # A folder that happens to be called so is no framework.
    (tmp_path / "mindspore").mkdir()
    lines = doctor(tmp_path, options=("--no-import",))
    for name in ("isal", "openpyxl"):
        found = " ".join(line(lines, name))
        assert "not installed" not in found or found.endswith(f"pip install {name}")
    # As find_spec, which is asked, says it too.
    code = "import importlib.util as u; print(getattr(u.find_spec('mindspore'), 'origin', None) is None)"
    alone = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    if alone.stdout.strip() == "True":
        assert line(lines, "mindspore")[1:3] == ["not", "installed"]


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
    tmp_path: Path, there: dict[str, str], expected: dict[str, str]
) -> None:
    for name, version in there.items():
        package(tmp_path, name, version, "", "mindnlp" if name == "mindtorch" else "")
    lines = doctor(tmp_path, options=("--no-import",))
    if any(line(lines, name)[1] != "not" for name in ("torch", "mindspore", "mindtorch") if name not in there):
        pytest.skip("a framework is installed here")
    for name, said in expected.items():
        assert " ".join(line(lines, name)[1:]).startswith(said)


def test_compiled_parts_are_those_beside_the_sources() -> None:
    lines = doctor(options=("--no-import",))
    for path in (
        "backends/shared/_reduction", "backends/torch/tensors/_plain_tensors", "collect/describing/_makers",
        "common/numerics/_differences", "common/_frames",
    ):  # fmt: skip
        built = Path(probe.__file__).parent / f"{path}{sysconfig.get_config_var('EXT_SUFFIX')}"
        assert line(lines, built.name.partition(".")[0])[1] == ("there" if built.exists() else "missing:")
