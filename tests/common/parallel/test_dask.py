"""Ranks and steps on a dask cluster: a real one, with processes of its own, on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import compare
from runs import rows, two_runs, without_times

import probe

# CI runs these tests in `core`, where distributed is installed and they must not be left out.
if not os.environ.get("TOX_ENV_NAME", "").startswith("core"):
    pytest.importorskip("distributed", reason="needs dask's distributed: pip install 'dask[distributed]'")

ROOT = Path(probe.__file__).parents[1]
STEP = Path(__file__).parents[2] / "compare" / "cases" / "multi_rank"
RANKS = STEP / "target" / "step0", STEP / "golden" / "step0"

# In a process of its own, in another folder.
HOST = """
import sys
from distributed import LocalCluster
with LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=None) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""
# Ends the worker where the target holds a 2: at the second place.
KILL = """
import os, signal
def column_name(): return "Kill"
def compare(n_value, b_value):
    if n_value.max() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0
"""
PROCESS = """
import os
def column_name(): return "Process"
def compare(n_value, b_value): return os.getpid()
"""


REFUSED = pytest.mark.sampled(least=1, each=False, group="clusters that are refused")
"""For tests that start a cluster of their own; `make reliability` runs all."""


def metric(folder: Path, source: str) -> str:
    path = folder / "metric.py"
    path.write_text(source)
    return str(path)


@contextmanager
def running(folder: Path, workers: int, modules: Path = ROOT) -> Iterator[str]:
    """The address of a cluster whose processes find their modules in `modules`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(modules)},
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address
        yield address


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("cluster"), workers=2) as address:
        yield address


@pytest.mark.parametrize("more", [(), ("-da",)])
def test_the_workers_write_the_files_that_one_process_writes(
    tmp_path: Path, cluster: str, more: tuple[str, ...]
) -> None:
    assert compare(*RANKS, tmp_path / "here", "--jobs", "1", *more) == 0
    assert compare(*RANKS, tmp_path / "there", "--dask", cluster, *more) == 0
    files = without_times(tmp_path / "there")
    assert files == without_times(tmp_path / "here") and len(files) >= 2


def test_the_work_is_done_by_the_workers_even_of_one_pair(tmp_path: Path, cluster: str) -> None:
    target, golden = two_runs(tmp_path, ["rank0"], real_data=True)
    more = ("--dask", cluster, "--algorithms", metric(tmp_path, PROCESS))
    assert compare(target, golden, tmp_path / "out", *more) == 0
    (table,) = (tmp_path / "out").iterdir()
    worker = int(rows(table)[0]["Process"])
    assert worker != os.getpid() and os.path.exists(f"/proc/{worker}")


def test_a_pair_that_kills_its_workers_costs_itself_only(
    tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = two_runs(tmp_path, [f"step{n}/rank0" for n in range(6)], real_data=True)
    more = ("--dask", cluster, "--algorithms", metric(tmp_path, KILL))
    assert compare(target, golden, tmp_path / "out", *more) == 2
    found = sorted(path.parent.name for path in (tmp_path / "out").rglob("*.csv"))
    assert found == ["step0", "step2", "step3", "step4", "step5"]
    errors = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(errors) == 1
    # Dask gives a task to four workers before it gives up.
    assert "step1 rank0 is left out: every worker that tried it died, 4 of them; their logs say why." in errors[0]


@pytest.mark.parametrize("address", ["nonsense", "ftp://127.0.0.1:1", ""])
def test_an_address_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert compare(*RANKS, tmp_path / "out", f"--dask={address}") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"msprobe compare: --dask {address}: no scheduler of dask answers there: ")
    assert error.count("\n") == 1


@REFUSED
def test_workers_of_another_version_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "probe", tmp_path / "probe", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "probe" / "_version.py").write_text('__version__ = "99"\n')
    with running(tmp_path, workers=1, modules=tmp_path) as address:
        assert compare(*RANKS, tmp_path / "out", "--dask", address) == 2
    error = capsys.readouterr().err
    assert "has msprobe 99, and here it is " in error and error.count("\n") == 1
