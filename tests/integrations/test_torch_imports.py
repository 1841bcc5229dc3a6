"""What is imported when."""

from __future__ import annotations

from typing import Any

PROGRAM = """
import sys
import msprobe.pytorch.integrations as integrations
assert not {"torch", "transformers", "lightning", "pytorch_lightning"} & set(sys.modules)
import pytorch_lightning
assert issubclass(integrations.MsprobeLightningCallback, pytorch_lightning.Callback)
assert "lightning" not in sys.modules
"""


def test_a_library_is_imported_with_its_callback_and_under_the_name_that_the_script_uses(programs: Any) -> None:
    programs.python("-c", PROGRAM)
