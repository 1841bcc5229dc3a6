"""`online_check` with MindSpore: one sentence on why there is none."""

from __future__ import annotations

import pytest

from msprobe.mindspore import online_check
from probe.common.errors import MsprobeException


def test_entering_the_block_says_that_there_is_no_way() -> None:
    words = 'mindspore offers no way to see its operators while they run; use task "free_benchmark"'
    with pytest.raises(MsprobeException, match=words), online_check():
        pass
