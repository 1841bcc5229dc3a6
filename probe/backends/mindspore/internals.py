"""Parts of MindSpore that its documentation does not promise or that only some releases have.

See `probe.backends.shared.internals`. MSAdapter uses the same, since its tensors are MindSpore's.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Callable

import mindspore

from probe.backends.shared.internals import Absent, Internals

_mindspore = Internals("mindspore")
_find = _mindspore.find


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_hook(*_: Any, **__: Any) -> int:
    return -1


TensorPy: Any = _find("_c_expression.TensorPy", mindspore.Tensor, "gradients of tensors have no records")
"""The class that tensors have in C++, with what `mindspore.Tensor` hides."""
register_hook: Callable[..., int] = getattr(TensorPy, "register_hook", _no_hook)
"""Calls a function with the gradient of a tensor; returns the hook's number."""
remove_hook: Callable[[int], None] = getattr(TensorPy, "remove_hook", _nothing)
wait_pipeline: Callable[[Any], None] = getattr(TensorPy, "wait_pipeline", _nothing)
"""Waits until a tensor is computed; raises what failed."""
address_of: Callable[[Any], int] | None = getattr(TensorPy, "_data_ptr", None)
"""The address of a tensor's memory; waits until all that was called is computed."""
is_contiguous: Callable[[Any], bool] = getattr(TensorPy, "is_contiguous", bool)
strides_of: Callable[[Any], Sequence[int]] = getattr(TensorPy, "stride", tuple)
"""Steps between neighbours along each dimension, in elements."""
storage_offset: Callable[[Any], int] = getattr(TensorPy, "storage_offset", int)
DtypeKind: type = _find("_c_expression.typing.Type", type(None), "dtypes among arguments are not described")
"""The class of MindSpore's dtypes."""
HAS_NODES = hasattr(TensorPy, "_grad_node") and hasattr(TensorPy, "_output_index")
"""True if tensors give their node of the gradient graph, as from 2.7.2 on; before, identity functions are put in."""
requires_gradient: Callable[[Any], bool] = (
    operator.attrgetter("_requires_grad") if HAS_NODES else getattr(TensorPy, "_has_auto_grad", bool)
)
"""True if a tensor takes a gradient; before 2.7.2 an input of the differentiated function does not know."""

Function: Any = _find("_Function", object, "backwards have no records")
"""The base class of functions with a gradient of their own."""

# From 2.9 on; importing the place of earlier releases is warned of.
executor: Any = _find("graph.api._pynative_executor", None) or _find(
    "common.api._pynative_executor", None, "nothing is collected"
)
"""Runs operations one by one."""
no_grad: Any = _find("graph.api._no_grad", None) or _find("common.api._no_grad", None, "nothing is collected")
compilers: list[Any] = [
    kind
    for kind in (
        _find("graph.api._JitExecutor", None) or _find("common.api._JitExecutor", None),
        _find("graph.api._CellGraphExecutor", None) or _find("common.api._CellGraphExecutor", None),
    )
    if kind is not None
]
"""Classes whose `compile` is MindSpore's compiler."""
if not compilers:
    _find("graph.api._JitExecutor", None, "ms.jit compiles code together with the tool's hooks")

calls_hooks: Any = _find("nn.Cell._run_forward_pre_hook", None)
"""The method in whose frames the hooks of a cell run."""
HookHandle: Any = _find("common.hook_handle.HookHandle", None, "cells with a bprop of their own have no records")
RuntimeConf: Any = _find("_c_expression.RuntimeConf", None)
"""Sets the number of threads; without it results of one kernel may differ in their last bits between two runs."""
_Communication: Any = _find("communication.GlobalComm", SimpleNamespace(INITED=False), "the rank counts as unknown")
_context: Any = _find("context._context", None, "seed_all does not switch deterministic operators")


def has_communication() -> bool:
    """True if the program has set up communication between processes."""
    return bool(_Communication.INITED)


def set_deterministic(deterministic: bool) -> None:
    """Switch deterministic operators.

    Not by ``mindspore.set_deterministic``, which a process may call only once, nor by `set_context`, which warns of
    this option.
    """
    if _context is not None:
        _context().set_deterministic("ON" if deterministic else "OFF")


def absent() -> list[Absent]:
    """Features that the installed release does not have, and the cost of each."""
    return _mindspore.absent


def absent_text() -> str:
    """Absent features and the cost of each as one line; empty where nothing is absent."""
    return _mindspore.absent_text(mindspore.__version__)
