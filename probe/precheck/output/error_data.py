"""The inputs and the results of a case that fails, as files of the framework."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from probe.backends.protocol import FrameworkAdapter, execution_of
from probe.calls.evaluation import Output, Results
from probe.common import files
from probe.common.dump.naming import file_name

Array = NDArray[Any]


def write_error_data(
    adapter: FrameworkAdapter,
    folder: str,
    case: str,
    inputs: Sequence[tuple[Array, str]],
    of_outputs: Sequence[tuple[Array, str]],
    results: Results,
    reference: Results,
) -> tuple[str, ...]:
    """Write what a case was run with and what came of it, on the device and in high precision (``bench``).

    Args:
        folder: It is made if it is not there.
        case: ``Functional.silu.0``, with which the names of the files begin.
        inputs: Values and dtypes of the tensors that went in, in order.
        of_outputs: The same of the gradients of the outputs.

    Returns:
        The paths of the files.

    Raises:
        OSError: they cannot be written.
        FileCheckException: the folder cannot be made.
    """
    files.make_folder(folder)
    named = [(f"forward.input.{place}", *each) for place, each in enumerate(inputs)]
    named += [(f"backward.input.{place}", *each) for place, each in enumerate(of_outputs)]
    for side, found in (("bench", reference), ("device", results)):
        named += [(f"forward.output.{side}.{place}", *each) for place, each in _arrays(found.outputs)]
        named += [(f"backward.output.{side}.{place}", *each) for place, each in _arrays(found.gradients)]
    return tuple(_write(adapter, folder, f"{case}.{name}", values, dtype) for name, values, dtype in named)


def _arrays(outputs: Sequence[Output]) -> Iterator[tuple[str, tuple[Array, str]]]:
    for output in outputs:
        if output.dtype is not None:
            yield output.path, (output.value, output.dtype)


def _write(adapter: FrameworkAdapter, folder: str, stem: str, values: Array, dtype: str) -> str:
    file = adapter.tensors.tensor_file(execution_of(adapter).tensor(values, dtype, "cpu"), True)
    if file is None:
        raise OSError(f"{stem}: the framework has no file for a tensor of {dtype}")
    path = os.path.join(folder, file_name(stem, file.suffix))
    with files.replacing(path) as stream:
        for part in (file.head, file.data, file.tail):
            stream.write(part)
    return path
