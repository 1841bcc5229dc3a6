"""Parts of PyTorch that its documentation does not promise or that only some releases have.

See `probe.backends.shared.internals`. A test hides each of them in turn and collects without it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from probe.backends.shared.internals import Absent, Internals

_torch = Internals("torch")
_find = _torch.find


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no(*_: Any, **__: Any) -> bool:
    return False


def _zero(*_: Any, **__: Any) -> int:
    return 0


_open = contextlib.nullcontext()


def _no_guard(*_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
    # One for all, which can be entered again, as the guards of torch.
    return _open


_OBSERVED = "function and dispatch modes of the program see the tool's own operations"
_BUILT_IN = "calls of built-in functions have no records"
_PASSES = "gradients of a backward inside another backward may be reported with the outer one"
_ORDER = "gradients of views and of reused nodes may be missing"

# --- devices

outside_device: Callable[[], str] = _find("_C._get_privateuse1_backend_name", lambda: "privateuseone")
"""The name of the kind of device that a package registers from outside; ``privateuseone`` as long as none has."""

# --- function modes

pop_function_mode: Callable[[], Any] = _find("_C._pop_torch_function_stack", _nothing, _BUILT_IN)
push_function_mode: Callable[[Any], None] = _find("_C._push_on_torch_function_stack", _nothing, _BUILT_IN)
count_function_modes: Callable[[], int] = _find("_C._len_torch_function_stack", _zero, _BUILT_IN)
HAS_FUNCTION_MODES = (
    pop_function_mode is not _nothing and push_function_mode is not _nothing and count_function_modes is not _zero
)
"""True if the tool can put its function mode below those of the program."""
_is_enabled: Callable[[], bool] = _find("_C._is_torch_function_enabled", _no)
_is_mode_enabled: Callable[[], bool] = _find("_C._is_torch_function_mode_enabled", lambda: True)
_MODE = TorchFunctionMode()


def _function_modes_disabled() -> bool:
    """For releases that lack the question itself: modes are disabled where one that is there is not enabled."""
    if _is_enabled() or not HAS_FUNCTION_MODES:
        return False
    push_function_mode(_MODE)
    try:
        return not _is_mode_enabled()
    finally:
        pop_function_mode()


function_modes_disabled: Callable[[], bool] = _find("_C._is_torch_function_all_disabled", _function_modes_disabled)
"""True if no function mode is called now, as in a ``with`` block of `without_function_modes`."""
without_function_modes: Any = _find("_C.DisableTorchFunction", _no_guard, _OBSERVED)
default_device_mode: Any = _find("_GLOBAL_DEVICE_CONTEXT", SimpleNamespace())
"""Has the mode of ``torch.set_default_device`` as `device_context`."""

# --- dispatch keys and modes

_DispatchKey = _find("_C.DispatchKey", None, _OBSERVED)
_DispatchKeySet = _find("_C.DispatchKeySet", None, _OBSERVED)
_ExcludeKeys = _find("_C._ExcludeDispatchKeyGuard", None, _OBSERVED)
_ForceKeys = _find("_C._ForceDispatchKeyGuard", None, _OBSERVED)
_HAS_KEYS = None not in (_DispatchKey, _DispatchKeySet, _ExcludeKeys, _ForceKeys)
without_keys: Any = _ExcludeKeys if _HAS_KEYS else _no_guard
"""Excludes a set of keys in a ``with`` block."""
force_keys: Any = _ForceKeys if _HAS_KEYS else _no_guard
"""Sets the included and the excluded keys of a ``with`` block."""
included_keys: Callable[[], Any] = _find("_C._dispatch_tls_local_include_set", _nothing)


def number_of_keys(keys: Any) -> int | None:
    """A number that tells sets of dispatch keys apart; ``None`` where this release has none."""
    return keys.raw_repr() if hasattr(keys, "raw_repr") else None


def key_set(*names: str) -> Any:
    """The set of those dispatch keys that this release has."""
    keys = None
    for name in names if _HAS_KEYS else ():
        key = getattr(_DispatchKey, name, None)
        if key is not None:
            one = _DispatchKeySet(key)
            keys = one if keys is None else keys | one
    return keys


FAKE_MODE: Any = _find("_C._TorchDispatchModeKey.FAKE", None)
dispatch_mode: Callable[[Any], Any] = _nothing if FAKE_MODE is None else _find("_C._get_dispatch_mode", _nothing)
"""The active dispatch mode of a kind."""


class _NoDispatchMode:
    """Sees nothing."""

    def __enter__(self) -> _NoDispatchMode:
        return self

    def __exit__(self, *_: object) -> None:
        return None


if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:
    _OPERATORS = "operators are not seen below autograd (online_check, replay_step, rounding inside a call)"
    TorchDispatchMode = _find("utils._python_dispatch.TorchDispatchMode", _NoDispatchMode, _OPERATORS)
count_dispatch_modes: Callable[[], int] = _find("_C._len_torch_dispatch_stack", _zero)
count_export_modes: Callable[[], int] = _find("_ops._len_torch_dispatch_stack_pre_dispatch", _zero)
without_dispatch_modes: Any = _find("utils._python_dispatch._disable_current_modes", _no_guard, _OBSERVED)
Operator: Any = _find("_ops.OperatorBase", type(None))
OperatorOverload: Any = _find("_ops.OpOverload", type(None), "operators called as torch.ops.aten have no records")
OperatorPacket: Any = _find("_ops.OpOverloadPacket", type(None), "operators called as torch.ops.aten have no records")

# --- surroundings of a call

is_compiling: Callable[[], bool] = _find("compiler.is_compiling", _find("_utils.is_compiling", _no))
tracing_context: Callable[[], Any] = _find("_guards.TracingContext.try_get", _nothing)
_TRACES = "torch.jit.trace traces operations of the tool"
tracing_state: Callable[[], Any] = _find("_C._get_tracing_state", _nothing, _TRACES)
set_tracing_state: Callable[[Any], None] = _find("_C._set_tracing_state", _nothing)
compiler_frames: Any = _find("_C._dynamo.eval_frame", None)
"""Keeps the compiler away from single functions from 2.6 on; before, the compiler reads the tool's functions too."""


def compiler_backend(name: str) -> Callable[..., Any]:
    """The function of a backend of `torch.compile`; only here, because the compiler takes a second to import."""
    from torch._dynamo import lookup_backend

    found: Callable[..., Any] = lookup_backend(name)
    return found


transforms: Callable[[], Any] = _find("_C._functorch.peek_interpreter_stack", _nothing)
"""The innermost function transform that is under way."""
saved_tensor_hooks: Callable[[bool], Any] = _find("_C._autograd._top_saved_tensors_default_hooks", None) or (
    lambda ignore_is_tracing: True
)
"""The hooks on saved tensors that are in place; where it is not told they are taken to be there."""
set_grad_enabled: Callable[[bool], None] = _find("_C._set_grad_enabled", torch.set_grad_enabled)
forward_gradients_enabled: Callable[[], bool] = _find("_C._is_fwd_grad_enabled", lambda: True)


@contextlib.contextmanager
def without_transforms() -> Iterator[None]:
    """Outside of every function transform."""
    # Not imported by every release.
    pyfunctorch = _find("_functorch.pyfunctorch", None)
    clear = getattr(pyfunctorch, "temporarily_clear_interpreter_stack", _no_guard)
    with clear():
        yield


# --- tensors

is_transformed: Callable[[torch.Tensor], bool] = _find("_C._functorch.is_functorch_wrapped_tensor", _no)
"""True if a function transform has put a wrapper around a tensor."""
is_batched: Callable[[torch.Tensor], bool] = _find("_C._functorch.is_batchedtensor", _no)
is_batch_of_gradients: Callable[[torch.Tensor], bool] = _find("_C._functorch.is_legacy_batchedtensor", _no)
"""True if a tensor is several gradients at once, as of ``torch.autograd.grad(..., is_grads_batched=True)``."""
_compiler_callback: Any = _find("_C._dynamo.eval_frame.get_eval_frame_callback", None)
_flags: Any = _find("compiler", None)
can_be_seen_compiling = (
    HAS_FUNCTION_MODES
    and FAKE_MODE is not None
    and None not in (_compiler_callback, _find("compiler._is_compiling_flag", None))
    and without_function_modes is not _no_guard
)
"""True if compiled code can ask in `surroundings` whether a compiler is at work."""
surroundings: tuple[Any, ...] = (
    without_function_modes,
    count_function_modes,
    pop_function_mode,
    push_function_mode,
    tracing_state,
    _compiler_callback,
    dispatch_mode,
    FAKE_MODE,
    count_dispatch_modes,
    transforms,
    vars(_flags) if _flags is not None else {},
    torch.is_grad_enabled,
    set_grad_enabled,
    is_transformed,
)
"""Functions of torch that `probe.backends.torch.hooks._function_calls` asks at each call, in its order."""
VariableFunctions: Any = _find("_VF", SimpleNamespace(), "recurrent functions have no records")
"""The name by which torch.nn calls torch's built-in functions."""

built_in_functions: Any = _find("_C._VariableFunctions", torch, "functions of torch that a user replaces may run twice")
"""The functions of ``torch`` that are not written in Python."""
vector_norm: Callable[..., Any] = _find("_C._linalg.linalg_vector_norm", torch.linalg.vector_norm)
modules_of_functions: list[Any] = [
    module
    for module in (
        _find("_C._nn", None), _find("_C._fft", None), _find("_C._linalg", None), _find("_C._special", None),
        _find("_C._sparse", None), _find("_C._nested", None),
    )
    if module is not None
]  # fmt: skip
"""Modules that hold further ones."""

# --- the gradient graph

next_sequence_number: Callable[[], int] = _find("_C._autograd._get_sequence_nr", _zero, _ORDER)
current_node: Callable[[], Any] = _find("_C._current_autograd_node", _nothing, _PASSES)
current_pass: Callable[[], int] = _find("_C._current_graph_task_id", _zero, _PASSES)
"""The number of the backward that is under way on this thread, -1 outside of any."""
queue_callback: Callable[[Callable[[], None]], None] | None = _find(
    "autograd.Variable._execution_engine.queue_callback", None, "gradients are reported at the end of the step"
)
"""Has a function called at the end of the backward that is under way."""
engine: Any = _find("autograd.Variable._execution_engine", None, "gradients of single calls cannot be evaluated")
_MERGED = "iterations of a program whose gradients come from torch.func.grad_and_value alone are one step"
gradients_of_function: Any = _find("_functorch.eager_transforms.grad_and_value_impl", None, _MERGED)
gradients_of_function = gradients_of_function or _find("_functorch.eager_transforms.grad_impl", None)
"""The function that ``torch.func.grad`` and ``torch.func.grad_and_value`` call; before 2.3 only the first has one of
its own."""
rebuild_tensor: Callable[..., Any] = _find("_utils._rebuild_tensor_v2", None)
"""The function that a tensor file names."""
_set_versions: Any = _find("_C._autograd._unsafe_set_version_counter", None, _ORDER)


def _takes_sequences() -> bool:
    """True if the counters of several tensors are set at once, as from 2.7 on."""
    tensor = torch.empty(0)
    try:
        _set_versions((tensor,), (0,))
    except TypeError:
        return False
    return True


_SEVERAL = _set_versions is not None and _takes_sequences()


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the counter of the writes to the memory of `tensor`."""
    if _SEVERAL:
        _set_versions((tensor,), (version,))
    elif _set_versions is not None:
        _set_versions(tensor, version)


# --- scripts and communication

_SCRIPTS = "torch.jit.script reads functions and hooks of the tool"
script_module_maker: Any = _find("jit._recursive.create_script_module", None, _SCRIPTS)
script_function_maker: Any = _find("jit._script._script_impl", None) or _find("jit._script.script", None, _SCRIPTS)


@functools.cache
def work_types() -> tuple[type, ...]:
    """The class of what collectives that do not wait return; empty where this release does not tell."""
    # Only builds with communication have the module.
    work = _find("_C._distributed_c10d.Work", None)
    return () if work is None else (work,)


@functools.cache
def world() -> Any:
    """Torch's data on all process groups; ``None`` if this release does not tell."""
    return _find("distributed.distributed_c10d._world", None)


@functools.cache
def reduce_shards() -> Any:
    """The function in which ``fully_shard`` reduces the gradients of one group of parameters; ``None`` if absent.

    Only a monitor needs it, which logs that it is absent.
    """
    found = _find("distributed.fsdp._fully_shard._fsdp_param_group.foreach_reduce", None)
    return found or _find("distributed._composable.fsdp._fsdp_param_group.foreach_reduce", None)


@functools.cache
def reduce_flat() -> Any:
    """The function in which ``FullyShardedDataParallel`` reduces a flat gradient; ``None`` if absent."""
    return _find("distributed.fsdp._runtime_utils._reduce_grad", None)


def local_place(whole: tuple[int, ...], mesh: Any, placements: Any) -> tuple[int, ...] | None:
    """The index of the first element of a DTensor that this rank has; ``None`` where torch does not say it."""
    found = _find("distributed.tensor._utils.compute_local_shape_and_global_offset", None)
    return None if found is None else tuple(found(whole, mesh, placements)[1])


def absent() -> list[Absent]:
    """Features that the installed release does not have, and the cost of each."""
    return _torch.absent


def absent_text() -> str:
    """Absent features and the cost of each as one line; empty where nothing is absent."""
    return _torch.absent_text(torch.__version__)
