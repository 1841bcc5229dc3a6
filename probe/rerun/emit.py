"""A recorded call as a script that imports its framework and nothing else.

The words of each framework are those of `probe.backends.protocol.ScriptWords`; what is said with them is here. Nothing
of a dump enters a script but through `probe.common.source_text`: users run it, and anybody may have written the dump.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution, ScriptParts, UnknownValue
from probe.calls.evaluation import Output
from probe.calls.prepared import called, made_with
from probe.common import files
from probe.common.containers import parts_of
from probe.common.dump.reading.items import shape_text
from probe.common.errors import MsprobeException
from probe.common.source_text import Code, Unwritable, call, docstring, numbers, source, wrapped
from probe.rerun.rerun_call import Rerun
from probe.rerun.rerun_report import verdict_text

Array = NDArray[Any]
_MOST_INLINE = 16
"""Elements of a tensor up to which it stands in the script itself."""
_TEXT_WIDTH = 110
"""Characters of a line of text in a script."""


def emit(execution: Execution, rerun: Rerun, path: str, smaller: str = "") -> list[str]:
    """Write a script of a call, and its larger tensors into a folder beside it; the paths, the script first.

    Args:
        execution: The framework.
        rerun: The call, and what came of it.
        path: Where the script is written.
        smaller: The sentence of its docstring on inputs that were made smaller.

    Raises:
        MsprobeException: no script can say this call.
        FileCheckException: a folder cannot be made.
        OSError: a file cannot be written.
    """
    script = _Script(execution, rerun, os.path.splitext(os.path.basename(path))[0])
    try:
        text = script.text(smaller)
    except (UnknownValue, Unwritable) as error:
        raise MsprobeException(f"{rerun.name} cannot be written as a script: {error}.") from None
    above = os.path.dirname(os.path.abspath(path))
    contents = {os.path.join(above, script.folder, name): content for name, content in script.files.items()}
    files.make_folder(os.path.join(above, script.folder) if contents else above)
    for each, content in [*contents.items(), (path, text.encode())]:
        with files.replacing(each) as stream:
            stream.write(content)
    return [path, *(os.path.join(os.path.dirname(path), script.folder, name) for name in script.files)]


class _Script:
    def __init__(self, execution: Execution, rerun: Rerun, stem: str) -> None:
        self._execution, self._rerun, self._prepared = execution, rerun, rerun.prepared
        self._words = execution.script
        self._leaves = self._prepared.arguments.leaves
        self.folder = f"{stem}_data"
        self.files: dict[str, bytes] = {}
        """The content of the files in `folder`, by name."""
        self._only_writes = False
        """True if the call returns nothing; known when `_results` was called."""

    def text(self, smaller: str) -> str:
        """The script, which decides what is in `files`."""
        prepared, words = self._prepared, self._words
        spelled = words.spelled(prepared.case.base, made_with(prepared.case), called(prepared.case))
        if spelled is None:
            raise UnknownValue(f"{prepared.case.base} has no name that a script could use")
        if prepared.call.reference_function is not None:
            raise UnknownValue("its framework has no float64 kernel for it on the CPU")
        results = self._results()
        differentiated = [
            (f"gradient of x{leaf.number}", leaf.number) for leaf in self._leaves if leaf.is_differentiated
        ]
        given = [(index, values) for index, values in enumerate(prepared.output_gradients) if values is not None]
        recorded = self._recorded([name for name, _, _ in results], differentiated)
        inputs = [(values, leaf.dtype) for values, leaf in zip(prepared.leaves, self._leaves)]
        gradients = [(values, results[index][2]) for index, values in given]
        definitions = [self._list("INPUTS", "input", inputs)]
        if gradients:
            definitions.append(self._list("OF_OUTPUTS", "of_output", gradients))
        if recorded:
            definitions.append(self._named("RECORDED", "recorded", recorded))
        state = prepared.random_state
        has_random_state = state is not None and self._execution.restore_draws(state, self._rerun.device)
        if state is not None and has_random_state:
            definitions.append(f"RANDOM_STATE = {self._file('random_state', state, 'uint8')}")
        if self.files:
            definitions.insert(0, f"DATA = pathlib.Path(__file__).with_name({source(self.folder)})")
        return words.script(
            ScriptParts(
                # Without what a primitive was made with, which the call says.
                title=docstring(f"{spelled.partition('(')[0]}: {self._rerun.name} of a recorded run, alone."),
                found="\n".join(map(docstring, self._found(smaller))),
                device=self._rerun.device,
                definitions="\n".join(definitions),
                needs_folder=bool(self.files),
                dtypes=sorted(map(_named_dtype, {dtype for _, dtype in inputs} | {dtype for _, _, dtype in results})),
                variables=[f"x{leaf.number}" for leaf in self._leaves],
                call=self._call(spelled),
                autocast=_named_dtype(self._rerun.autocast) if self._rerun.autocast else "",
                results=[(name, expression) for name, expression, _ in results],
                with_gradients=[results[index][1] for index, _ in given],
                differentiated=differentiated,
                has_recorded=bool(recorded),
                has_random_state=has_random_state,
            )
        )

    def _found(self, smaller: str) -> Iterator[str]:
        """The findings, in lines."""
        each = self._rerun.worst
        name = each.row.name[len(self._rerun.name) + 1 :]
        verdict, who = each.row.verdict, f"on {self._rerun.device}"
        if verdict.status != self._rerun.now and each.recorded is not None:
            verdict, who = each.recorded, "recorded"
        yield from textwrap.wrap(f"{name} when this was written, {who}: {verdict_text(verdict, who)}.", _TEXT_WIDTH)
        if self._prepared.generated:
            yield "The inputs are generated from statistics."
        if smaller:
            yield from textwrap.wrap(smaller, _TEXT_WIDTH)

    # --- the call

    def _call(self, spelled: str) -> Callable[[str], str]:
        variables = [Code(f"x{leaf.number}") for leaf in self._leaves]
        args, kwargs = self._prepared.arguments.bound(variables, lambda entry: Code(self._words.plain(entry)))
        base = self._prepared.case.base
        if base.startswith("Tensor.") and args and isinstance(args[0], Code):
            # As a method of its first argument.
            spelled, args = f"{args[0].text}.{spelled.rpartition('.')[2]}", args[1:]
        if not self._only_writes:
            return lambda before: call(spelled, args, kwargs, before)
        # A function that returns nothing was called to write into its first argument.
        return lambda before: f"{call(spelled, args, kwargs, '')}\n{before}{variables[0].text}"

    def _results(self) -> list[tuple[str, str, str]]:
        """Name, expression and dtype of each tensor that the call returns.

        Raises:
            UnknownValue: it returns none.
        """
        returned = list(_tensors_in("", "output", self._returned(), self._execution.is_tensor))
        dtypes = [each.dtype for each in self._rerun.values.outputs if each.dtype is not None]
        if not returned or len(returned) != len(dtypes):
            raise UnknownValue("high precision returns other tensors" if returned else "it returns no tensor")
        return [
            (f"forward.output.{path or 0}", expression, dtype) for (path, expression), dtype in zip(returned, dtypes)
        ]

    def _returned(self) -> Any:
        """The returned value of the call, in high precision, for its form alone."""
        execution, arguments = self._execution, self._prepared.arguments
        dtypes = ["float64" if leaf.is_float else leaf.dtype for leaf in self._leaves]
        tensors = [execution.tensor(values, dtype, "cpu") for values, dtype in zip(self._prepared.leaves, dtypes)]

        def run(given: Sequence[Any]) -> Any:
            args, kwargs = arguments.bound(given, lambda entry: execution.plain_value(entry, "cpu"))
            returned = self._prepared.call.function(*args, **kwargs)
            self._only_writes = returned is None and bool(args) and execution.is_tensor(args[0])
            return args[0] if self._only_writes else returned

        return execution.evaluate(run, tensors, []).output

    # --- tensors

    def _recorded(self, outputs: Sequence[str], gradients: Sequence[tuple[str, int]]) -> dict[str, Output]:
        """The recorded results, by the names that the script has for them."""
        values = self._rerun.recorded_values
        if values is None:
            return {}
        tensors = [each for each in values.outputs if each.dtype is not None]
        named = [*zip(outputs, tensors), *zip((name for name, _ in gradients), values.gradients)]
        return {name: output for name, output in named if isinstance(output.value, np.ndarray) and output.dtype}

    def _list(self, name: str, stem: str, tensors: Sequence[tuple[Array, str]]) -> str:
        lines = [self._tensor(f"{stem}_{index}", *each) for index, each in enumerate(tensors)]
        return "\n".join([f"{name} = [", *lines, "]"])

    def _named(self, name: str, stem: str, tensors: Mapping[str, Output]) -> str:
        lines = [
            self._tensor(f"{stem}_{index}", each.value, each.dtype or "", f"{source(key)}: ")
            for index, (key, each) in enumerate(tensors.items())
        ]
        return "\n".join([f"{name} = {{", *lines, "}"])

    def _tensor(self, stem: str, values: Array, dtype: str, before: str = "") -> str:
        dtype = _named_dtype(dtype)
        if 0 < values.size <= _MOST_INLINE and values.dtype.kind != "c":
            return wrapped(f"{before}{self._words.inline(numbers(values), dtype)},")
        return f"    {before}{self._file(stem, values, dtype)},  # {dtype} {shape_text(values.shape)}"

    def _file(self, stem: str, values: Array, dtype: str) -> str:
        """The way in which a tensor is read from a file of its own."""
        name = f"{stem}{self._words.SUFFIX}"
        self.files[name] = self._words.content(values, dtype)
        return self._words.loaded(f"DATA / {source(name)}", dtype)


def _named_dtype(dtype: str) -> str:
    """`dtype`, which scripts use as a name.

    Raises:
        UnknownValue: it is none.
    """
    if not dtype.isidentifier():
        raise UnknownValue(f"{dtype!r} is no dtype")
    return dtype


def _tensors_in(path: str, expression: str, value: Any, is_tensor: Callable[[Any], bool]) -> Iterator[tuple[str, str]]:
    """The tensors in what a call returned: the path of each in the words of records, and its expression."""
    if is_tensor(value):
        yield path, expression
        return
    for key, each in parts_of(value) or ():
        is_field = isinstance(key, str) and not isinstance(value, Mapping)
        end = f".{key}" if is_field else f"[{source(key)}]"
        yield from _tensors_in(f"{path}.{key}" if path else str(key), f"{expression}{end}", each, is_tensor)
