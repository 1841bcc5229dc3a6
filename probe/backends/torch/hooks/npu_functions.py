"""The functions that Ascend support adds to torch; nothing here needs torch itself."""

from __future__ import annotations

import sys

from probe.backends.shared.api_list import Watched
from probe.common.interfaces import ApiName


def npu_functions() -> list[Watched]:
    """The public ``npu_…`` functions of torch_npu, where it is imported."""
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is None:
        return []
    return [
        Watched(torch_npu, api, getattr(torch_npu, api), ApiName(f"NPU.{api}", api))
        for api in sorted(vars(torch_npu))
        if api.startswith("npu_") and callable(getattr(torch_npu, api))
    ]
