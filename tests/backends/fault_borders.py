"""Functions of the tool that `internal_faults` does not make fail, by backend and by file of the package.

Inside of these the user's own function runs, or they are the guards, so there is nobody but the user to raise to. They
do nothing but call it and, each time behind a guard, the tool; a test of their number keeps the lists from growing.
"""

from __future__ import annotations

Borders = dict[str, set[str]]

_EVERYWHERE: Borders = {
    # What the user calls, and what stands in for it.
    "api/debugger.py": {"start", "stop", "step", "save", "session"},
    "api/session.py": {"guarded", "shield", "_attempt"},
    "api/single_points.py": {"receive"},
    "common/works.py": {"wait_and_report"},
    # Hooks that do nothing but call, guarded, the tool.
    "common/node_hooks.py": {"__call__"},
}

_TORCH: Borders = {
    **_EVERYWHERE,
    "backends/torch/api_hooks.py": {
        "__torch_function__", "from_mode", "observe", "_observe", "_aside", "handle", "wrapper", "call", "_take_out",
        "_no", "__missing__", "__call__",
    },
    "backends/torch/regions.py": {"clip", "<lambda>"},
    # The guards themselves, and hooks of that kind.
    "backends/torch/quiet.py": {"safely", "compiling"},
    "backends/torch/adapter.py": {"receive_quietly"},
    "backends/torch/module_hooks.py": {"__call__", "is_for", "before", "after", "on_parameter"},
}  # fmt: skip

_MINDSPORE: Borders = {
    **_EVERYWHERE,
    "api/mindspore.py": {"start"},
    "backends/mindspore/api_hooks.py": {"observe", "wrapper", "call_watched"},
    # The guards, and what waits for the user's own tensors, whose errors are the user's.
    "backends/mindspore/quiet.py": {"safely", "is_quiet", "settle", "settle_all"},
    "backends/mindspore/module_hooks.py": {"before", "after", "_on_parameter", "receive_quietly"},
    "backends/mindspore/compilation.py": {"compile_aside"},
    # The gradient passes through it.
    "backends/mindspore/identity_flow.py": {"backward"},
}

BORDERS: dict[str, Borders] = {"torch": _TORCH, "mindspore": _MINDSPORE, "msadapter": _MINDSPORE}
