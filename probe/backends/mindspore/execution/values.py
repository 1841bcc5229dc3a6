"""Values between numpy, MindSpore and dump.json, and the function that a record's name stands for."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from numpy.typing import NDArray

from probe.backends.mindspore import statistics
from probe.backends.mindspore.guards import unobserved
from probe.backends.mindspore.hooks import api_hooks
from probe.backends.mindspore.internals import RuntimeConf
from probe.backends.protocol import UnknownValue
from probe.backends.shared.api_list import Places, places
from probe.backends.shared.tensors import rounded_to_odd
from probe.common.numerics.formats import Format, Kind

_NAMES = {"CPU": "cpu", "GPU": "cuda", "Ascend": "npu"}


def devices() -> Sequence[str]:
    """The one device that this process computes on: MindSpore chooses it for the whole process."""
    target: str = ms.get_context("device_target")
    name = _NAMES[target]
    return [name] if name == "cpu" else [f"{name}:{ms.get_context('device_id')}"]


def device_name(tensor: Any) -> str:
    """The device of `tensor`, which is the device of the whole process."""
    return devices()[0]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, from now on: MindSpore takes a number once; one that the user chose stays."""
    configuration = None if RuntimeConf is None else RuntimeConf.get_instance()
    if configuration is not None and not configuration.is_op_threads_num_configured():
        configuration.set_op_threads_num(1)
    yield


# --- values


def tensor(values: NDArray[Any], dtype: str, device: str) -> Tensor:
    """A new tensor of the shape of `values`, rounded to `dtype`.

    Raises:
        UnknownValue: there is no such dtype, or the process computes on another device.
    """
    if device not in devices():
        raise UnknownValue(f"{device} is not available, because this process computes on {', '.join(devices())}")
    kind = statistics.plain_dtype(dtype)
    if kind is None or not _has_conversion(statistics.FORMATS[kind]):
        raise UnknownValue(f"no tensor of dtype {dtype} can be made with MindSpore {ms.__version__}")
    values = np.asarray(values)
    # An overflow, or a number that is not an integer, would be a warning of the user's program.
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            # MindSpore rounds float32 to it, to nearest and ties to even.
            exact = np.can_cast(values.dtype, np.float32)
            return Tensor(values.astype(np.float32) if exact else rounded_to_odd(values.astype(np.float64)), kind)
        # By numpy: MindSpore rounds float64 to float16 by way of float32, which is another number now and then.
        return Tensor(values.astype(dtype), kind)


def _has_conversion(form: Format) -> bool:
    """Not float8 on the CPU, of whose rounding nothing could be said, and nothing shorter than 8 bits."""
    return form.bits > 8 or (form.bits == 8 and form.kind is not Kind.FLOAT)


def values(tensor: Tensor) -> NDArray[Any]:
    """A copy of the values, bfloat16 in float32."""
    return np.array(statistics.as_saved(tensor), copy=True)


def copied(tensor: Tensor) -> Tensor:
    """A tensor of its own with the same values, contiguous, which takes no gradient."""
    found: Tensor = unobserved(lambda: Tensor(tensor.copy()))
    return found


def dtype_name(tensor: Tensor) -> str:
    return statistics.plain_name(tensor.dtype)


def plain_value(entry: Mapping[str, Any], device: str) -> Any:
    """The value of an entry that `probe.backends.mindspore.describe.describe_value` wrote.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    kind, name = entry.get("type"), entry.get("value")
    if kind != "mindspore.dtype":
        raise UnknownValue(f'a value of type "{kind}" cannot be made; allowed: mindspore.dtype')
    found = statistics.dumped_dtype(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownValue(f"MindSpore {ms.__version__} has no such value: {dict(entry)!r}")
    return found


# --- functions


_PRIMITIVE = "Primitive"
# Modules of the classes of primitives: the public ones first, then those that only the layers of MindSpore use.
_MODULES = (
    "mindspore.ops",
    "mindspore.ops.operations",
    "mindspore.ops.auto_generate",
    "mindspore.ops.operations._inner_ops",
    "mindspore.ops.operations.array_ops",
    "mindspore.ops.operations.math_ops",
    "mindspore.ops.operations.nn_ops",
)
# A dump may come from anybody, and names the primitives that are made: only those that compute may be in reach of it.
# Others load libraries (Custom), run functions (PyFunc, PyExecute), write files (TensorDump) or wait for other ranks.
_COMPUTING = re.compile(
    r"mindspore\.ops\.(auto_generate\.gen_ops_prim|deprecated|operations\.(manually_defined\.\w+|"
    r"(array|image|inner|math|nn|random|sparse|spectral)_ops))"
)
"""Modules that define primitives which compute, ..."""

_ACTING = re.compile(
    "Dump|Print|Summary|Hook|Custom|PyFunc|Execute|File|GetNext|Generator|AsStrided|^Free$|[GS]etData|[GP](e|u)tMem"
    "|SymmetricMemory|Signal[OW]|Remote|ToDevice|Comm[A-Z]|I?[Ss]end|I?[Rr]ecv|AllGather|AllReduce|ReduceScatter"
    "|Distribute|AllToAll|AlltoAll|Barrier|SyncBatchNorm"
)
"""... without those which do something else, or use memory that is not that of their inputs, ..."""

_COMPUTING_AMONG_OTHERS = frozenset((
    "BoundingBoxDecode", "BoundingBoxEncode", "CheckValid", "ConfusionMatrix", "Depend", "IOU", "StopGradient",
    "AntiQuant", "Centralization", "ClipByNorm", "Dequant", "DynamicBroadcastTo", "DynamicStitch", "FFN", "MatrixDiag",
    "MatrixDiagPart", "MatrixSetDiag", "NonZeroWithValue", "ParallelResizeBilinear", "PsROIPooling", "Quant",
    "SequenceMask",
))  # fmt: skip
"""... and these of ``operations.other_ops`` and ``operations._inner_ops``, which hold all kinds."""
_MIXED = ("mindspore.ops.operations.other_ops", "mindspore.ops.operations._inner_ops")
_SIDE_EFFECT = "side_effect_io"

COMMUNICATION = frozenset(("distributed", "mint_distributed"))
"""Families of functions that need other ranks."""

_ONE_RESULT = frozenset(("BatchNorm",))
"""Primitives whose other outputs are for their own backward: on the CPU they are memory that nothing was written to."""


@functools.cache
def _places() -> Places:
    return places(api_hooks.watched(), COMMUNICATION)


def function(base: str, attributes: Mapping[str, Any] | None = None, called: str = "") -> Callable[..., Any] | None:
    """The function that the record called; see `probe.backends.protocol.Execution.function`."""
    prefix, _, name = base.partition(".")
    if prefix == _PRIMITIVE:
        return None if called else primitive(name.rpartition(".")[2], attributes)
    return held_at(_places(), base, called)


def place(base: str, called: str = "") -> tuple[Any, str] | None:
    """The owner of the function of this name, and its attribute; ``None`` for a primitive or an unknown name."""
    return _places().get((base, called))


def primitive_name(base: str) -> str | None:
    """The class of a primitive as ``mindspore.ops.MatMul``; ``None`` where MindSpore has none of the name."""
    prefix, _, name = base.partition(".")
    kind = name.rpartition(".")[2]
    has_it = [module for module in _MODULES if _primitive_in(module, kind) is not None]
    return f"{has_it[0]}.{kind}" if prefix == _PRIMITIVE and has_it else None


def held_at(known: Places, base: str, called: str) -> Callable[..., Any] | None:
    """The object that is now at the place of the function of this name; ``None`` for an unknown name."""
    place = known.get((base, called))
    found = None if place is None else getattr(place[0], place[1], None)
    # An index means another thing as a tuple.
    return found if place is None or found is None or place[1] in _INDEXING else _taking_lists(found)


_INDEXING = frozenset(("__getitem__", "__setitem__"))


@functools.lru_cache(maxsize=4096)
def _taking_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called again with tuples of numbers where it refuses lists: JSON does not tell one from the other."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            positional = [_numbers_as_tuple(value) for value in args]
            named = {name: _numbers_as_tuple(value) for name, value in kwargs.items()}
            if all(map(operator.is_, (*positional, *named.values()), (*args, *kwargs.values()))):
                raise
        return function(*positional, **named)

    return call


def _numbers_as_tuple(value: Any) -> Any:
    is_plain = isinstance(value, list) and all(isinstance(each, (int, float)) for each in value)
    return tuple(value) if is_plain else value


def primitive(class_name: str, attributes: Mapping[str, Any] | None) -> Any:
    """A new primitive of that class; ``None`` where MindSpore has none of the name that only computes.

    Raises:
        UnknownValue: the dump does not say what it was made with, or the class refuses it.
    """
    kind = _class(class_name)
    if kind is None:
        return None
    if attributes is None and _takes_arguments(kind):
        raise UnknownValue(f"the dump lacks the arguments of the primitive {class_name}")
    unknown = [name for name, value in (attributes or {}).items() if value is None]
    if unknown:
        raise UnknownValue(f"the dump lacks {unknown[0]} of the primitive {class_name}")
    made_with = settings(attributes)
    try:
        made = kind(**made_with)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise UnknownValue(f"the primitive {class_name} cannot be made with {made_with}: {reason}") from error
    if getattr(made, _SIDE_EFFECT, False):
        return None
    return one_result(made) if class_name in _ONE_RESULT else made


def one_result(function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """`function` with ``None`` in the place of all that it returns but the first."""

    def call(*args: Any) -> tuple[Any, ...]:
        results = function(*args)
        return results[0], *(None for _ in results[1:])

    return call


def _class(name: str) -> Any:
    return next((found for found in (_primitive_in(module, name) for module in _MODULES) if found is not None), None)


def _primitive_in(module: str, name: str) -> Any:
    found = getattr(importlib.import_module(module), name, None)
    return found if isinstance(found, type) and issubclass(found, ops.Primitive) and _computes(found) else None


def _computes(kind: type) -> bool:
    """True if a call of a primitive of this class does nothing but compute."""
    if kind.__module__ in _MIXED:
        return kind.__name__ in _COMPUTING_AMONG_OTHERS
    return _COMPUTING.fullmatch(kind.__module__) is not None and _ACTING.search(kind.__name__) is None


def settings(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """With which keyword arguments a primitive is made."""
    # JSON has no tuples, and classes of primitives that refuse lists take tuples.
    return {name: _as_tuple(value) for name, value in (attributes or {}).items()}


def _takes_arguments(kind: Any) -> bool:
    return len(inspect.signature(kind.__init__).parameters) > 1


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
