"""tox installs the package from its source, with the compiled parts: without them their tests would be left out."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from probe.backends.shared import tensors
from probe.common import callstack


def can_be_built() -> bool:
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return bool(compiler) and shutil.which(compiler.split()[0]) is not None and headers.is_file()


@pytest.mark.skipif(
    os.environ.get("PROBE_TEST_INSTALLED") != "1" or not can_be_built(),
    reason="a checkout need not be built, nor can it be without a compiler",
)
def test_they_are_there() -> None:
    assert tensors.reduce is not None
    assert callstack.walk is not callstack.walk_in_python
