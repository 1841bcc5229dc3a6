"""A small share of benchmarks/verdicts/ports: a right port is silent, and a fault is named with its cause."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from agreement.interpreters import BACKENDS
from sections import load

SHARE = "mix/cnn-sgd"


@pytest.fixture(scope="module")
def ports() -> ModuleType:
    return load("ports")


@pytest.fixture(scope="module")
def dumps(ports: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ports")
    for backend in BACKENDS:
        ports.dump(backend, os.environ[f"PROBE_PYTHON_{backend.upper()}"], folder, ["mix"], SHARE)
    return folder


@pytest.mark.parametrize("port", ["mindspore", "msadapter"])
def test_a_right_port_is_silent_and_faults_are_named_with_their_causes(
    ports: ModuleType, dumps: Path, port: str
) -> None:
    assert ports.verdict_of_right_port(dumps, port, "mix", "cnn", "sgd").said == "silent"
    faults = [fault for fault in ports.FAULTS if fault.network == "cnn" and fault.optimizer == "sgd"]
    for fault in faults:
        row = ports.verdict_of_fault(dumps, port, "mix", fault)
        assert row.right and row.cause, row
