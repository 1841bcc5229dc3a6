"""`PrecisionChecker` with MindSpore: one sentence on why there is none."""

from __future__ import annotations

import pytest

from msprobe.mindspore import PrecisionChecker
from probe.common.errors import MsprobeException


def test_it_says_that_there_is_no_compiled_form() -> None:
    with pytest.raises(MsprobeException, match=r"mindspore has no torch.compile, so there is no compiled form"):
        PrecisionChecker("aot_eager")
