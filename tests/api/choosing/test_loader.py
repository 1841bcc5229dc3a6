"""A framework that is not installed is asked for by name, when something needs it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

import msprobe.mindspore
import msprobe.pytorch
from probe.common.errors import MissingDependency


def installed(framework: str) -> bool:
    """A folder of that name is none, and there is one beside the recorded cases; the stand-in mindtorch is one."""
    found = importlib.util.find_spec(framework)
    return framework in sys.modules or (found is not None and found.origin is not None)


NAMES: dict[str, Any] = {"torch": msprobe.pytorch, "mindspore": msprobe.mindspore}


@pytest.mark.parametrize("framework", NAMES)
def test_a_missing_framework_is_named_with_what_to_install(framework: str) -> None:
    if installed(framework):
        pytest.skip(f"{framework} is installed here")
    wanted = {"torch": "torch", "mindspore": "'mindspore==2.10.0' 'numpy<2'"}[framework]
    message = rf"^{framework} is not installed; run: pip install {wanted}\.$"
    with pytest.raises(MissingDependency, match=message):
        NAMES[framework].PrecisionDebugger()
    with pytest.raises(MissingDependency, match=message):
        NAMES[framework].seed_all()


@pytest.mark.parametrize("name", ["MsprobeStep", "MsprobeInitStep", "save", "save_grad", "step"])
def test_what_is_of_mindspores_own_kind_needs_it_when_it_is_imported(name: str) -> None:
    if installed("mindspore"):
        pytest.skip("mindspore is installed here")
    with pytest.raises(MissingDependency, match="mindspore is not installed"):
        getattr(msprobe.mindspore, name)
