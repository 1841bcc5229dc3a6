"""`online_check` and `PrecisionChecker` with MindSpore: one sentence on why there is none."""

from __future__ import annotations

import pytest

from msprobe.mindspore import PrecisionChecker, online_check
from probe.common.errors import MsprobeException


def test_what_the_framework_has_no_way_for_says_so() -> None:
    with pytest.raises(MsprobeException, match=r'mindspore.*"free_benchmark"'), online_check():
        pass
    with pytest.raises(MsprobeException, match="mindspore has no torch"):
        PrecisionChecker("aot_eager")
