"""One case checked: evaluated on the device and in float64, and every output and gradient judged."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import FrameworkAdapter, UnknownValue
from probe.common import log
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.flattening import flatten
from probe.common.dump.reading.items import INPUT, OUTPUT, Item
from probe.common.errors import DumpFormatError
from probe.common.metrics.dtypes import plain_name
from probe.precheck.arguments import Arguments, Unreadable
from probe.precheck.cases import Case, not_run
from probe.precheck.evaluation import Call, Output, Results, autocast_for
from probe.precheck.inputs import leaf_values, values_of
from probe.precheck.result import CaseResult, Row
from probe.precheck.standards.constants import DOCUMENTED
from probe.precheck.standards.stage1 import judge as stage1_judge
from probe.precheck.tables import details as stage1_tables
from probe.precheck.tables.details import DetailsRow
from probe.precheck.verdict.subject import ERROR, EXACT, FAILURES, STRUCTURE, SUSPECT, Subject, Verdict
from probe.precheck.verdict.verdict import judge

Array = NDArray[Any]
_LONGEST_REASON = 300
RECORDED = "recorded"
"""The name of the device whose results are those of the dump."""


@dataclass(frozen=True)
class CheckOptions:
    """How cases are checked.

    Args:
        device: Where they are run: ``cpu``, ``cuda:0``; ``recorded`` judges the results of the dump.
        seed: What generated inputs are drawn from, besides the name of the record.
        standard: By which rules of msProbe the drop-in columns are judged.
        error_data: The folder for inputs and results that fail; none are written without.
    """

    device: str = "cpu"
    seed: int = 1234
    standard: str = DOCUMENTED
    error_data: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)


@dataclass(frozen=True)
class Prepared:
    """A case ready to be evaluated."""

    case: Case
    arguments: Arguments
    leaves: list[Array]
    of_outputs: list[Optional[Array]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    outputs: list[Item]
    """The recorded outputs that are tensors."""
    gradients: list[Item]
    """The recorded gradients of the inputs; empty where it is not clear which belongs to which."""
    generated: bool
    backward_not_run: str
    call: Call


def check(adapter: FrameworkAdapter, dump: Dump, case: Case, options: CheckOptions) -> CaseResult:
    """Check one case. What cannot be run is a result too, with the reason."""
    try:
        prepared = prepare(adapter, dump, case, options.seed)
        return _checked(adapter, dump, prepared, options)
    except (Unreadable, UnknownValue, DumpFormatError) as error:
        why = reason(error)
    except MemoryError:
        why = "there is not enough memory for it"
    except Exception as error:
        # A defect of ours concerns this case and no other.
        why = f"msprobe failed: {reason(error)}"
        log.warning(f"{case.name} is not checked: {why}\n{traceback.format_exc()}", once="precheck-failed")
    return CaseResult(case.name, case.base, not_run=why, stands_for=case.stands_for)


def reason(error: Exception) -> str:
    """An error in one line, with its class where it is a framework's."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (Unreadable, UnknownValue, DumpFormatError)):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


def prepare(adapter: FrameworkAdapter, dump: Dump, case: Case, seed: int) -> Prepared:
    """Find the function and the values of a case.

    Raises:
        Unreadable: the case cannot be run from what the dump has.
    """
    why = not_run(case.base)
    function = None if why else adapter.function(case.base)
    if function is None:
        raise Unreadable(why or f"{case.base} is no function of this framework's lists")
    arguments = Arguments(case.forward.name, case.forward.fields)
    values = [leaf_values(dump, leaf, seed) for leaf in arguments.leaves]
    leaves = [each.array for each in values]
    outputs = [item for item in case.forward.items() if item.state == OUTPUT and item.is_tensor]
    of_outputs, gradients, why_not, generated = _backward(dump, case, arguments, outputs, seed)
    call = Call(adapter, function, arguments, leaves, of_outputs, case.name)
    generated = generated or any(each.generated for each in values)
    return Prepared(case, arguments, leaves, of_outputs, outputs, gradients, generated, why_not, call)


def _backward(
    dump: Dump, case: Case, arguments: Arguments, outputs: Sequence[Item], seed: int
) -> tuple[list[Array | None], list[Item], str, bool]:
    """Gradients of the outputs, recorded ones of the inputs, why there is no backward, and whether any is generated."""
    if case.backward is None:
        return [], [], "", False
    if not any(leaf.is_differentiated for leaf in arguments.leaves):
        return [], [], "no input has a gradient", False
    items = flatten(case.backward.name, case.backward.fields)
    given = _aligned([item for item in items if item.state == INPUT], outputs)
    if given is None:
        return [], [], "it is not clear which gradient of the record belongs to which output", False
    found: list[Array | None] = []
    generated = False
    for item, output in zip(given, outputs):
        if item is None:
            found.append(None)
            continue
        values = values_of(dump, item, plain_name(item.dtype or ""), output.shape or (), seed)
        generated = generated or values.generated
        found.append(values.array)
    if not any(each is not None for each in found):
        return [], [], "the record has no gradient of an output", False
    return found, [item for item in items if item.state == OUTPUT and item.is_tensor], "", generated


def _aligned(gradients: Sequence[Item], outputs: Sequence[Item]) -> list[Item | None] | None:
    """The gradient of each output; ``None`` where the record does not say.

    A record has one for each output, or for each output that has one.
    """
    if len(gradients) == len(outputs):
        found: list[Item | None] = [item if item.is_tensor else None for item in gradients]
    else:
        taken = iter(item for item in gradients if item.is_tensor)
        found = [next(taken, None) if output.requires_grad else None for output in outputs]
        if next(taken, None) is not None:
            return None
    fits = all(item is None or item.shape == output.shape for item, output in zip(found, outputs))
    return found if fits else None


def _checked(adapter: FrameworkAdapter, dump: Dump, prepared: Prepared, options: CheckOptions) -> CaseResult:
    case, call = prepared.case, prepared.call
    autocast, why = "", prepared.backward_not_run
    try:
        reference = call.reference
    except Exception as error:
        if not call.of_outputs:
            return _not_run(prepared, f"the reference cannot be computed: {reason(error)}")
        # A backward that the framework does not have is no reason to leave the forward out.
        call.of_outputs, why = [], f"the reference cannot be computed: {reason(error)}"
        return _checked(adapter, dump, _without_backward(prepared, why), options)
    try:
        if options.device == RECORDED:
            results = recorded_results(dump, prepared, reference)
        else:
            results, autocast = run_as_recorded(adapter, prepared, options.device)
    except Exception as error:
        return _not_run(prepared, f"it cannot be run on {options.device}: {reason(error)}")
    rows = tuple(_Judge(prepared, results, reference, options, autocast).rows())
    failed = any(row.verdict.status in (SUSPECT, *FAILURES) for row in rows)
    if failed and _is_random(adapter, prepared, results, options.device, autocast):
        return _not_run(prepared, "it draws random numbers")
    inputs = "generated" if prepared.generated else "recorded"
    return CaseResult(case.name, case.base, rows, "", why, case.stands_for, autocast, inputs)


def _without_backward(prepared: Prepared, why: str) -> Prepared:
    return replace(prepared, of_outputs=[], gradients=[], backward_not_run=why)


def _not_run(prepared: Prepared, why: str) -> CaseResult:
    return CaseResult(prepared.case.name, prepared.case.base, not_run=why, stands_for=prepared.case.stands_for)


def run_as_recorded(adapter: FrameworkAdapter, prepared: Prepared, device: str) -> tuple[Results, str]:
    """The results on a device, and the dtype of the autocast under which they were made, if the record was.

    Raises:
        Exception: whatever the framework raises.
    """
    call = prepared.call
    inputs = [leaf.dtype for leaf in prepared.arguments.leaves]
    adapter.seed_draws(0)
    try:
        results = call.on(device)
    except Exception:
        # A layer of bfloat16 with an input of float32 runs under autocast only.
        half = next((dtype for dtype in inputs if dtype in ("bfloat16", "float16")), None)
        if half is None or "float32" not in inputs:
            raise
        adapter.seed_draws(0)
        return call.on(device, half), half
    autocast = autocast_for([plain_name(item.dtype or "") for item in prepared.outputs], results, inputs)
    if autocast is None:
        return results, ""
    adapter.seed_draws(0)
    return call.on(device, autocast), autocast


def recorded_results(dump: Dump, prepared: Prepared, like: Results) -> Results:
    """The results that the dump has, in the places of `like`.

    Raises:
        Unreadable: it does not have them.
    """
    if dump.task != "tensor":
        raise Unreadable("the dump has no values of results; collect with \"tensor\"")
    tensors = iter(prepared.outputs)
    outputs = []
    for output in like.outputs:
        item = next(tensors, None) if output.dtype is not None else None
        outputs.append(output if output.dtype is None else _recorded(dump, item, output))
    known = len(prepared.gradients) == len([each for each in like.gradients if each.value is not None])
    items = iter(prepared.gradients)
    gradients = [
        _recorded(dump, next(items), output) if known and output.value is not None else Output(output.path, None, None)
        for output in like.gradients
    ]
    return Results(outputs, gradients)


def _recorded(dump: Dump, item: Item | None, like: Output) -> Output:
    array = None if item is None else dump.tensor(item)
    if item is None or array is None:
        raise Unreadable("the dump has not the values of every result")
    return Output(like.path, array, plain_name(item.dtype or ""))


def _is_random(adapter: FrameworkAdapter, prepared: Prepared, results: Results, device: str, autocast: str) -> bool:
    """Whether the function draws random numbers: another seed gives something else, the same seed does not."""
    if device == RECORDED:
        return False
    again = []
    for seed in (0, 1):
        adapter.seed_draws(seed)
        again.append(prepared.call.on(device, autocast or None))
    return _same(results, again[0]) and not _same(results, again[1])


def _same(one: Results, other: Results) -> bool:
    pairs = zip([*one.outputs, *one.gradients], [*other.outputs, *other.gradients])
    return all(
        np.array_equal(first.value, second.value, equal_nan=first.value.dtype.kind in "fc")
        if isinstance(first.value, np.ndarray) and isinstance(second.value, np.ndarray)
        else first.value is second.value or bool(first.value == second.value)
        for first, second in pairs
    )


class _Judge:
    """Judges the results of one case.

    Raises:
        Unreadable: the results are not of the form of the reference.
    """

    def __init__(
        self, prepared: Prepared, results: Results, reference: Results, options: CheckOptions, autocast: str
    ) -> None:
        if len(results.outputs) != len(reference.outputs):
            raise Unreadable(f"it returns {len(results.outputs)} values and its reference {len(reference.outputs)}")
        self._prepared, self._results, self._reference = prepared, results, reference
        self._autocast, self._standard = autocast, options.standard
        # On the CPU the kernel under test would be its own yardstick.
        self._has_yardstick = options.device not in ("cpu", RECORDED)
        self._yardstick: Results | None = None

    def rows(self) -> Iterator[Row]:
        """A row for each output, and for each gradient that there is."""
        case = self._prepared.case
        for place, result in enumerate(self._results.outputs):
            yield self._row(f"{case.forward.name}.{OUTPUT}.{result.path}", "", "outputs", place)
        differentiated = [leaf for leaf in self._prepared.arguments.leaves if leaf.is_differentiated]
        for place, leaf in enumerate(differentiated if self._results.gradients else ()):
            found = self._results.gradients[place], self._reference.gradients[place]
            # The gradient of an input on which nothing depends is none in both.
            if any(each.value is not None for each in found):
                yield self._row(f"{case.name}.backward.{OUTPUT}.{place}", leaf.item.name, "gradients", place)

    def _row(self, name: str, of: str, part: str, place: int) -> Row:
        result, expected = getattr(self._results, part)[place], getattr(self._reference, part)[place]
        dtype = result.dtype or ""
        prepared, call = self._prepared, self._prepared.call
        inputs, dtypes = list(prepared.leaves), [leaf.dtype for leaf in prepared.arguments.leaves]
        if of:
            inputs += [each for each in prepared.of_outputs if each is not None]
            dtypes += [plain_name(item.dtype or "") for item in prepared.outputs][: len(inputs) - len(dtypes)]

        def pick(results: Results | None) -> Array | None:
            value = None if results is None else getattr(results, part)[place].value
            return value if isinstance(value, np.ndarray) else None

        if not isinstance(result.value, np.ndarray) or not isinstance(expected.value, np.ndarray):
            return _plain_row(name, of, result.value, expected.value)
        verdict = judge(
            Subject(
                base=prepared.case.base,
                direction="backward" if of else "forward",
                result=result.value,
                reference=expected.value,
                dtype=dtype,
                inputs=inputs,
                input_dtypes=dtypes,
                moved=lambda unit: pick(call.moved(unit)),
                rounded=lambda precision: pick(call.rounded(precision)),
                yardstick=lambda: pick(self._on_cpu()),
                settings=prepared.arguments.settings,
                precision=self._autocast,
            )
        )
        stage1 = stage1_judge(prepared.case.base, result.value, expected.value, dtype, name, self._standard)
        return Row(name, of, dtype, expected.dtype or dtype, result.value.shape, verdict, stage1)

    def _on_cpu(self) -> Results | None:
        """What the CPU's own kernel of the device's dtype makes of the case."""
        if self._has_yardstick:
            self._has_yardstick = False
            # Kernels of half precision are missing on CPUs; the other tolerances stay.
            with contextlib.suppress(Exception):
                self._yardstick = self._prepared.call.on("cpu", self._autocast or None)
        return self._yardstick


def _plain_row(name: str, of: str, result: Any, expected: Any) -> Row:
    """The row of what is no tensor on one side: a number, a text, a gradient that is not there."""
    kind, expected_kind = type(result).__name__, type(expected).__name__
    if isinstance(result, np.ndarray) or isinstance(expected, np.ndarray) or kind != expected_kind:
        text = f"{_spoken(result)} where the reference has {_spoken(expected)}"
        verdict, status = Verdict(STRUCTURE, text), stage1_tables.ERROR
    elif result == expected or result != result:
        text, status = "equal", stage1_tables.PASS
        verdict = Verdict(EXACT, text, "exact")
    else:
        text, status = f"{result!r} where the reference has {expected!r}", stage1_tables.ERROR
        verdict = Verdict(ERROR, text, "exact")
    row = DetailsRow(name, status, text, f"<class '{expected_kind}'>", f"<class '{kind}'>")
    return Row(name, of, kind, expected_kind, (), verdict, row)


def _spoken(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a tensor of shape {list(value.shape)}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
