"""What `msprobe.pytorch.integrations` says to mistakes; ``tests/integrations`` has the trainings."""

from __future__ import annotations

from pathlib import Path

import forks
import pytest

CALLBACKS = {
    "MsprobeTrainerCallback": ("transformers", "pip install transformers accelerate"),
    "MsprobeLightningCallback": ("lightning", "pip install lightning"),
}

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["transformers", "lightning", "pytorch_lightning"]))
import msprobe.pytorch.integrations
try:
    from msprobe.pytorch.integrations import {name}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_missing_library_is_named_with_what_to_install(name: str, tmp_path: Path) -> None:
    library, command = CALLBACKS[name]
    done = forks.run_python("torch", tmp_path / "program.py", code=WITHOUT.format(name=name))
    assert done.stdout.startswith(f"{name} needs {library}, which cannot be imported"), done
    assert done.stdout.endswith(f"run: {command}.\n")


MISTAKES = """
import pickle
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.integrations import MsprobeTrainerCallback
from probe.common.errors import MsprobeException
debugger = PrecisionDebugger(dump_path="dump")
for mistake in (lambda: MsprobeTrainerCallback("config.json"), lambda: pickle.dumps(MsprobeTrainerCallback(debugger))):
    try:
        mistake()
    except MsprobeException as error:
        print(">", error)
"""


def test_mistakes_with_a_callback_are_told(tmp_path: Path) -> None:
    done = forks.run_python("transformers", tmp_path / "program.py", code=MISTAKES)
    first, second = (line for line in done.stdout.splitlines() if line.startswith(">"))
    assert "debugger is of type str; allowed: a PrecisionDebugger" in first
    assert "cannot be sent to another process" in second and "torchrun" in second
