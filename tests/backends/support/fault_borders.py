"""Functions of the tool that `internal_faults` does not make fail, by backend and by file of the package.

Inside of these the user's own function runs, or they are the guards, so there is nobody but the user to raise to. They
do nothing but call it and, each time behind a guard, the tool; a test of their number keeps the lists from growing.
"""

from __future__ import annotations

Borders = dict[str, set[str]]

_EVERYWHERE: Borders = {
    # What the user calls, and what stands in for it.
    "api/debugger.py": {"start", "stop", "step", "save", "session"},
    "collect/session.py": {"guarded", "guard"},
    "collect/collector.py": {"attempt"},
    "backends/shared/async_collectives.py": {"wait_and_report"},
    # Looks at the traceback of the user's error, which is raised to the user next.
    "common/callstack.py": {"hide_own_frames"},
    # Hooks that do nothing but call, guarded, the tool.
    "backends/shared/settings.py": {"enter", "leave", "step"},
    "backends/shared/gradient_graph.py": {"__call__"},
}

_TORCH: Borders = {
    **_EVERYWHERE,
    "backends/torch/hooks/api_hooks.py": {"_from_mode", "record", "see", "_suspended"},
    "backends/torch/hooks/compilers.py": {"call", "handle", "_make_module", "_make_function", "_aside"},
    "backends/torch/settings.py": {"around_update"},
    "backends/torch/hooks/api_calls.py": {"observe", "wrapper", "record", "__call__"},
    "backends/torch/hooks/function_mode.py": {
        "__torch_function__", "call_without", "_not_built_in", "_hand_on", "_take_out",
        "__call__", "__eq__", "__hash__",
    },
    "backends/torch/hooks/group.py": {"clip", "<lambda>"},
    # The handler of a plain swap, which calls them.
    "backends/shared/patching.py": {"<lambda>"},
    # The guards themselves, and hooks of that kind.
    "backends/torch/guards.py": {"guarded", "compiling"},
    "backends/torch/hooks/module_hooks.py": {
        "__call__", "is_for", "before", "after", "on_parameter", "callback_guarded",
    },
}  # fmt: skip

_MINDSPORE: Borders = {
    **_EVERYWHERE,
    "api/mindspore.py": {"start"},
    # The user's optimizer runs inside.
    "backends/mindspore/settings.py": {"update"},
    "backends/mindspore/hooks/api_hooks.py": {"observe", "wrapper", "call_watched"},
    # The guards, and what waits for the user's own tensors, whose errors are the user's.
    "backends/mindspore/guards.py": {"guarded", "is_unobserved", "wait_for", "wait_for_all"},
    "backends/mindspore/hooks/module_hooks.py": {
        "before",
        "after",
        "_on_parameter",
        "callback_guarded",
    },
    "backends/mindspore/hooks/jit.py": {"compile_aside"},
    # The gradient passes through it.
    "backends/mindspore/backward_tracker.py": {"backward"},
}

BORDERS: dict[str, Borders] = {"torch": _TORCH, "mindspore": _MINDSPORE, "msadapter": _MINDSPORE}
