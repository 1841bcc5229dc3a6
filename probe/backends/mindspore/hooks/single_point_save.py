"""Saving one tensor, or the gradient of one, by a call in the network: ``<save_dir>/step<S>/rank<R>/<name>_...npy``.

The calls work while Python executes the network. In a graph compiled for the CPU they are a custom operator, which
calls Python back with the values. In one for Ascend they are MindSpore's ``TensorDump``, which puts step and rank into
the path when the graph runs; what stands here for that has not been run on a device.
"""

from __future__ import annotations

import os
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from probe.backends.mindspore import guards, statistics
from probe.backends.mindspore.hooks.jit import compiling, is_ascend
from probe.backends.mindspore.hooks.module_hooks import hook_gradient
from probe.backends.mindspore.internals import executor, remove_hook
from probe.backends.mindspore.randomness import rank
from probe.backends.mindspore.statistics import dtype_name
from probe.common import files, log
from probe.common.dump import naming
from probe.common.errors import MsprobeException

_graph_dump = ops.TensorDump()
_NEXT_STEP = "<tensordump-update-step>"
"""A file name at which ``TensorDump`` counts its steps on instead of writing."""


class _Progress:
    """The number of the next file."""

    step = 0
    counts: dict[tuple[str, str], int] = {}  # noqa: RUF012
    in_graphs = False
    """True if a graph saves too; MindSpore counts the steps of a graph."""
    used_hooks: list[int] = []  # noqa: RUF012
    """Hooks that have had their gradient; removing one in its own call ends the process (2.7.0, 2.10.0)."""


# --- what users call; MindSpore's compiler reads these and what they call, so they hold only what it understands


def save(save_dir: str, name: str, data: Any) -> None:
    """Save a tensor as ``<save_dir>/step<S>/rank<R>/<name>_<dtype>_<n>.npy``.

    Args:
        save_dir: Folder, created if missing.
        name: The beginning of the file's name; `n` counts the calls with this name in one step.
        data: A tensor, or a list, tuple or dict of them, also nested, whose place is added to the name: ``name.key.0``.

    Raises:
        MsprobeException: an argument has the wrong type; or the call is compiled for a device that is no Ascend and no
            CPU.
    """
    if compiling():
        _save_in_graph(save_dir, name, data)
    else:
        _save(save_dir, name, data)


def save_grad(save_dir: str, name: str, data: Any) -> Any:
    """Save the gradient of a tensor as ``<save_dir>/step<S>/rank<R>/<name>_grad_<dtype>_<n>.npy`` when it is known.

    Args:
        save_dir: Folder, created if missing.
        name: The beginning of the file's name.
        data: A tensor.

    Returns:
        The tensor to go on with: `data`.

    Raises:
        MsprobeException: an argument has the wrong type; or the call is compiled for a device that is no Ascend.

    Example:
        >>> x = save_grad("./dump", "x", x)
    """
    if compiling():
        if is_ascend("save_grad"):
            return _gradient_dump(_graph_file(save_dir, name + "_grad"), data)
        return _gradient_written(_graph_point(save_dir, name + "_grad", "save_grad", data.dtype), data)
    else:
        return _save_grad(save_dir, name, data)


def step() -> None:
    """The training step is over: what is saved from now on goes into the next step's folder."""
    if _points:
        # A graph may still run, and what it saves belongs to the step that is over.
        executor.sync()
    _Progress.step += 1
    _Progress.counts = {}
    if _Progress.in_graphs:
        _next_step_of_graphs(Tensor(_Progress.step, ms.int64))


# --- in a compiled graph


def _save_in_graph(save_dir: Any, name: Any, data: Any) -> None:
    if isinstance(data, Tensor):
        if is_ascend("save"):
            _graph_dump(_graph_file(save_dir, name), data)
        else:
            _value_written(_graph_point(save_dir, name, "save", data.dtype), data)
    elif isinstance(data, dict):
        for key, value in data.items():
            _save_in_graph(save_dir, name + "." + str(key), value)
    elif isinstance(data, (list, tuple)):
        for i in range(len(data)):
            _save_in_graph(save_dir, name + "." + str(i), data[i])


class _GradientDump(nn.Cell):  # type: ignore[misc]
    """The identity, whose gradient goes into a file on its way back."""

    def construct(self, file: Any, data: Any) -> Any:
        return data

    def bprop(self, file: Any, data: Any, output: Any, gradient: Any) -> Any:
        _graph_dump(file, gradient)
        return file, gradient


_gradient_dump = _GradientDump()


# --- in a graph compiled for the CPU, which has no TensorDump (2.7.0, 2.10.0), and calls Python for a custom operator

_points: list[tuple[str, str, str]] = []
"""The folder, the name and the dtype of each call; a graph holds the index."""


def _register_point(save_dir: str, name: str, call: str, dtype: Any) -> Tensor:
    """Runs while the graph is compiled."""
    _check(save_dir, name, call)
    point = save_dir, name, dtype_name(dtype).lower()
    if point not in _points:
        _points.append(point)
    return Tensor(np.array([_points.index(point)], np.int64))


_graph_point = constexpr(_register_point)


def _write_from_graph(point: Any, values: Any) -> Any:
    """Called by the graph, in a thread of MindSpore's, with arrays of numpy."""
    _write_array(*_points[int(point[0])], values)
    return point


_graph_written = ops.Custom(_write_from_graph, lambda point, data: point, lambda point, data: point, func_type="pyfunc")
# Otherwise the compiler leaves it out, since nobody uses what it returns.
_graph_written.add_prim_attr("side_effect_io", True)


def _as_array(data: Any) -> Any:
    # Numpy has no bfloat16; 2.7.0 ends the call there.
    return ops.cast(data, ms.float32) if data.dtype == ms.bfloat16 else data


class _Written(nn.Cell):  # type: ignore[misc]
    """The identity, with an effect that takes no part in gradients."""

    def construct(self, point: Any, data: Any) -> Any:
        _graph_written(point, _as_array(data))
        return data

    def bprop(self, point: Any, data: Any, output: Any, gradient: Any) -> Any:
        return point, gradient


class _GradientWritten(nn.Cell):  # type: ignore[misc]
    """The identity, whose gradient goes into a file on its way back."""

    def construct(self, point: Any, data: Any) -> Any:
        return data

    def bprop(self, point: Any, data: Any, output: Any, gradient: Any) -> Any:
        _graph_written(point, _as_array(gradient))
        return point, gradient


_value_written, _gradient_written = _Written(), _GradientWritten()


def _name_graph_file(save_dir: str, name: str) -> str:
    """Runs while the graph is compiled; MindSpore fills in the step and the rank whenever it executes the node."""
    _Progress.in_graphs = True
    _check(save_dir, name, "save")
    return os.path.join(os.path.abspath(save_dir), "{step}", "{rank}", naming.file_name(name, ""))


_graph_file = constexpr(_name_graph_file)


def _next_step(number: Any) -> Any:
    _graph_dump(_NEXT_STEP, number)
    return number


_next_step_of_graphs = ms.jit(_next_step)


# --- in Python


def _save(save_dir: Any, name: Any, data: Any) -> None:
    _check(save_dir, name, "save")
    if not isinstance(data, (Tensor, list, tuple, dict)):
        kind = type(data).__name__
        raise MsprobeException(f"save: data is of type {kind}; allowed: a tensor, or a list, tuple or dict of tensors.")
    _save_parts(save_dir, name, data)


def _save_parts(save_dir: str, name: str, data: Any) -> None:
    if isinstance(data, Tensor):
        # An error of the program that computed it is raised here and is the user's.
        guards.wait_for(data)
        guards.unobserved(_write, save_dir, name, data)
    elif isinstance(data, dict):
        for key, value in data.items():
            _save_parts(save_dir, f"{name}.{key}", value)
    elif isinstance(data, (list, tuple)):
        for index, value in enumerate(data):
            _save_parts(save_dir, f"{name}.{index}", value)
    else:
        text = f'save: "{name}" is of type {type(data).__name__} and is not saved; only tensors are.'
        log.warning(text, once=f"save {name}")


def _save_grad(save_dir: Any, name: Any, data: Any) -> Any:
    _check(save_dir, name, "save_grad")
    if not isinstance(data, Tensor):
        raise MsprobeException(f"save_grad: data is of type {type(data).__name__}; allowed: a tensor.")
    while _Progress.used_hooks:
        remove_hook(_Progress.used_hooks.pop())
    hook: list[int] = []

    def write_gradient(gradient: Any) -> None:
        # A parameter calls it in all later steps too, in which save_grad is called again.
        if hook:
            _Progress.used_hooks.append(hook.pop())
            guards.unobserved(_write, save_dir, f"{name}_grad", gradient)

    try:
        number = hook_gradient(data, write_gradient)
    except Exception as error:
        log.error(f'the gradient of "{name}" cannot be saved in {save_dir} ({error}); the training goes on.')
        return data
    # If no gradient will come, no hook is set; on a parameter it would stay.
    if number is not None:
        hook.append(number)
    return data


def _write(save_dir: str, name: str, tensor: Any) -> None:
    """Write one file; what goes wrong costs the file and not the training."""
    try:
        _write_file(save_dir, name, dtype_name(tensor.dtype).lower(), statistics.as_saved(tensor))
    except Exception as error:
        _not_saved(save_dir, name, error)


def _write_array(save_dir: str, name: str, dtype: str, values: Any) -> None:
    """Write the file of an array; `dtype` is that of the tensor."""
    try:
        _write_file(save_dir, name, dtype, values)
    except Exception as error:
        _not_saved(save_dir, name, error)


def _not_saved(save_dir: str, name: str, error: Exception) -> None:
    log.error(f'"{name}" cannot be saved in {save_dir} ({error}); the training goes on.')


def _write_file(save_dir: str, name: str, dtype: str, values: Any) -> None:
    # A process alone is rank 0 here, as it is for MindSpore.
    folder = os.path.join(os.path.abspath(save_dir), f"step{_Progress.step}", f"rank{rank() or 0}")
    number = _Progress.counts.get((folder, name), 0)
    _Progress.counts[folder, name] = number + 1
    files.make_folder(folder)
    with files.replacing(os.path.join(folder, naming.file_name(f"{name}_{dtype}_{number}", ".npy"))) as out:
        np.save(out, values, allow_pickle=False)


def _check(save_dir: Any, name: Any, call: str) -> None:
    for argument, value in (("save_dir", save_dir), ("name", name)):
        if not isinstance(value, str) or not value:
            raise MsprobeException(f"{call}: {argument} is {value!r}; allowed: a text.")
