"""Judgement of the results of a call by another run: with other inputs, or just once more.

The effect of a perturbation means nothing by itself: a function may make much of it. So every result is held against
the function itself, evaluated in float64 with the same inputs. What that explains is a property of the inputs; what it
does not explain is one of the kernel.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from probe.calls.evaluation import Output
from probe.calls.judged_results import ExactCall
from probe.calls.verdict.subject import FAILURES, KernelVerdict
from probe.common import files, log
from probe.common.errors import FileCheckException
from probe.common.numerics.formats import Format, format_of, is_float, rounding_format
from probe.common.numerics.rounding import spacing
from probe.common.report.csv_lines import csv_line
from probe.runtime_checks.running_call import RunningCall, differing, exact_call

FILE = "free_benchmark.csv"
HEADER = (
    "rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index", "verdict",
    "explanation",
)  # fmt: skip
UNSTABLE = "unstable"
"""The kernel: what it gives is not explained by what the function itself does with these inputs."""
ILL_CONDITIONED = "ill-conditioned"
"""The inputs: the function itself makes much of a rounding of them, so that no kernel could do better."""
NOT_DETERMINISTIC = "not deterministic"
"""The kernel gives other bits for the same inputs."""


@dataclass(frozen=True)
class CheckFinding:
    """One line, in the order of the columns."""

    rank: Optional[int]  # noqa: UP045 (evaluated, on Python 3.9 too)
    pert_mode: str
    stage: str
    step: int
    api_name: str
    max_rel: float
    """The largest difference between the two results that are compared, by the size of the first one."""
    dtype: str
    shape: str
    output_index: Optional[int]  # noqa: UP045
    verdict: str
    explanation: str


class FindingsFile:
    """The file of one step, which is there from the first finding on.

    Args:
        folder: The folder of the step and rank.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.path = os.path.join(folder, FILE)
        self.exists = False
        """True if a line of this step was written."""
        self._is_ours = False
        """True if no file of an earlier run is there any more."""

    def remove_earlier(self) -> None:
        """Remove the file of an earlier run, whose findings must not stand for this one; called when the step is one.

        Raises:
            OSError: it cannot be removed.
        """
        if self._is_ours:
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self.path)
        self._is_ours = True

    def move(self, folder: str) -> None:
        """Go on in the folder of the rank, which is known now; if the file cannot be moved, it stays where it is."""
        path = os.path.join(folder, FILE)
        if path == self.path:
            return
        if self.exists:
            try:
                files.make_folder(folder)
                os.replace(self.path, path)
            except (OSError, FileCheckException) as error:
                log.warning(f"{self.path} cannot be moved to {folder} ({error}); further findings go to the same file.")
                return
            with contextlib.suppress(OSError):
                # A folder that holds files of others stays.
                os.rmdir(self._folder)
            log.info(f"This process has a rank now: its file {self.path} is renamed to {path}.")
        self._folder, self.path = folder, path
        self._is_ours = self.exists

    def add(self, finding: CheckFinding) -> None:
        """Write a line, at once: the program may end at any time.

        Raises:
            OSError: it cannot be written.
            FileCheckException: the folder cannot be made.
        """
        self.remove_earlier()
        if not self.exists:
            for folder in (os.path.dirname(os.path.dirname(self._folder)), os.path.dirname(self._folder), self._folder):
                files.make_folder(folder)
        lines = csv_line(astuple(finding)) if self.exists else csv_line(HEADER) + csv_line(astuple(finding))
        with files.open_for_writing(self.path, append=True) as stream:
            stream.write(lines)
        self.exists = True


# --- examination


Array = NDArray[Any]
Perturbed = Optional[list[Array]]
_WORDS = {"float64": np.uint64, "float32": np.uint32, "float16": np.uint16}
"""By the format in which values are held, the integers that have its bits."""


def bits_flipped(values: Sequence[Array], dtypes: Sequence[str]) -> Perturbed:
    """The last bit of every element of every tensor of floating-point numbers is the other one.

    What it makes of a value is a neighbour of it, above or below as the bit was. Zero, subnormal numbers, infinities
    and NaN stay: their neighbours are something else.
    """
    found = [_flipped(array, dtype) for array, dtype in zip(values, dtypes)]
    return None if all(each is None for each in found) else _filled(found, values)


def one_unit_added(values: Sequence[Array], dtypes: Sequence[str]) -> Perturbed:
    """To each element of the first tensor of floating-point numbers one unit in its last place is added, or taken away.

    Which of both is drawn, from the same seed each time: added to all elements alike it would do to a sum what no
    rounding does. Only to the first tensor: what is added to all operands of a difference is not seen in it.
    """
    found: list[Array | None] = [None] * len(values)
    for index, (array, dtype) in enumerate(zip(values, dtypes)):
        found[index] = _added(array, dtype)
        if found[index] is not None:
            return _filled(found, values)
    return None


def ends_exchanged(values: Sequence[Array], dtypes: Sequence[str]) -> Perturbed:
    """The first and the last element of the first tensor of floating-point numbers are exchanged."""
    for index, (array, dtype) in enumerate(zip(values, dtypes)):
        if rounding_format(dtype) is None or array.size < 2:
            continue
        exchanged = np.array(array)
        flat = exchanged.reshape(-1)
        flat[0], flat[-1] = array.flat[-1], array.flat[0]
        return None if flat[0] == flat[-1] else [*values[:index], exchanged, *values[index + 1 :]]
    return None


PERTURBATIONS: dict[str, Callable[[Sequence[Array], Sequence[str]], Perturbed]] = {
    "bit_noise": bits_flipped,
    "add_noise": one_unit_added,
    "change_value": ends_exchanged,
}
"""By ``pert_mode``. ``None`` is the answer where there is nothing to change."""


def _filled(found: Sequence[Array | None], values: Sequence[Array]) -> list[Array]:
    return [old if new is None else new for new, old in zip(found, values)]


def _normal(values: Array, of: Format) -> Array:
    sizes = np.abs(values)
    return np.asarray((sizes >= of.smallest_normal) & (sizes <= of.largest))


def _flipped(values: Array, dtype: str) -> Array | None:
    of, held = rounding_format(dtype), format_of(values.dtype.name)
    if of is None or of.digits < 2 or of.tapers or held is None or held.name not in _WORDS:
        return None
    word = _WORDS[held.name]
    # A bfloat16 is the upper half of a float32: its last bit has as many below it as float32 has digits more.
    flipped = (values.view(word) ^ word(1 << (held.digits - of.digits))).view(values.dtype)
    chosen = _normal(values, of) & (np.abs(flipped) <= of.largest)
    return np.where(chosen, flipped, values) if chosen.any() else None


def _added(values: Array, dtype: str) -> Array | None:
    of = rounding_format(dtype)
    if of is None or of.is_complex or values.dtype.kind != "f":
        return None
    chosen = _normal(values, of) & (np.abs(values) < of.largest / 2)
    if not chosen.any():
        return None
    added = np.array(values)
    wide = values[chosen].astype(np.float64)
    signs = np.random.default_rng(values.size).integers(0, 2, wide.shape) * 2 - 1
    # Towards zero as far as away from it, also below a power of two, where the distance to the neighbour is half of it.
    added[chosen] = wide + signs * spacing(np.abs(wide), of)
    return added


# --- the examination

NO_CHANGE, TO_CPU, IMPROVE_PRECISION, EXCHANGED = "no_change", "to_cpu", "improve_precision", "change_value"
MODES = (IMPROVE_PRECISION, *PERTURBATIONS, NO_CHANGE, TO_CPU)
_INVARIANT = 2.0**-30
"""A part of the largest value that is nothing but rounding in float64."""
_CHANGED = {
    "bit_noise": "with the last bit of every input flipped",
    "add_noise": "with one unit in the last place added to or taken from the elements of the first input",
    "change_value": "with the first and the last element exchanged",
}


class Message(NamedTuple):
    """The message on one result."""

    output_index: int
    max_rel: float
    verdict: str
    explanation: str


@dataclass
class Examination:
    """One call, and what it gave.

    Args:
        call: The call.
        results: Its outputs, or with `output_gradients` its gradients.
        output_gradients: The gradients of the tensors that it returns; empty for the forward.
        gradients: These gradients as tensors of the framework, which nobody else has.
        autocast: The dtype to which it was cast.
    """

    call: RunningCall
    results: Sequence[Output]
    output_gradients: Sequence[Output | None] = ()
    gradients: Sequence[Any] = ()
    autocast: str | None = None
    said: list[Message] = field(default_factory=list)

    def under(self, mode: str) -> list[Message]:
        """The messages on the results in a mode of task ``free_benchmark``.

        Raises:
            Exception: whatever the framework raises where the call cannot be run again.
        """
        if mode == NO_CHANGE:
            return list(self._repeated())
        found = list(self._perturbed(mode) if mode in PERTURBATIONS else self._held_against(mode))
        # A finding is seldom, and so the two runs that this takes.
        return [] if found and self.call.draws(self.autocast) else found

    def _again(self, tensors: Sequence[Any] | None = None) -> Sequence[Output]:
        gradients = [None if each is None else self.call.execution.copied(each) for each in self.gradients]
        results = self.call.again(tensors, gradients, self.autocast)
        return results.gradients if gradients else results.outputs

    # --- the same inputs

    def _repeated(self) -> Iterator[Message]:
        again = self._again()
        repeats: list[Sequence[Output]] = []
        for index, (first, then) in enumerate(zip(self.results, again)):
            count = differing(first.value, then.value)
            if not count:
                continue
            repeats = repeats or [self._again(), self._again()]
            others = [differing(then.value, each[index].value) for each in repeats]
            size = first.value.size if isinstance(first.value, np.ndarray) else 1
            where = f"{max(count, *others)} of {size} elements have other bits for the same inputs"
            if any(others):
                text = f"{where}, from one repetition to the next"
            else:
                text = f"{where}; its repetitions agree with each other, so it depends on memory or on what ran before"
            yield Message(index, _most_relative(first.value, then.value), NOT_DETERMINISTIC, text)

    # --- other inputs

    def _perturbed(self, mode: str) -> Iterator[Message]:
        call = self.call
        values = call.values()
        other = PERTURBATIONS[mode](values, call.dtypes)
        if other is None:
            return
        before = exact_call(call, values, self.output_gradients, self.autocast)
        after = exact_call(call, other, self.output_gradients, self.autocast, None if mode == EXCHANGED else before)
        indexes = self._judged_indexes()
        if mode == EXCHANGED:
            # Of an exchange that changes the result nothing is to be learned.
            exact, other_exact = before.results, after.results
            indexes = [index for index in indexes if _is_invariant(exact[index].value, other_exact[index].value)]
        moved = self._again(call.tensors(other)) if indexes else []
        for index in indexes:
            yield from self._moved(index, moved[index], before, after, _CHANGED[mode])

    def _moved(self, index: int, moved: Output, before: ExactCall, after: ExactCall, words: str) -> Iterator[Message]:
        """The messages on one result that became `moved` with the other inputs."""
        result = self.results[index]
        max_rel = _most_relative(result.value, moved.value)
        own = _share(before.results[index].value, after.results[index].value)
        for verdict, where in ((before.verdict(index, result), ""), (after.verdict(index, moved), f"{words}: ")):
            if verdict.status in FAILURES:
                effect = _share(result.value, moved.value)
                effects = f"it changed by {effect:.2g} relative to its norm, the exact result by {own:.2g}"
                yield Message(index, max_rel, UNSTABLE, f"{where}{verdict.interpretation}; {effects}")
                return
        # A unit in the last place is two roundings.
        per_rounding = own / 2
        text = f"{words}, one rounding of the inputs changes the exact result by {per_rounding:.2g} of its norm"
        yield from self._ill_conditioned(index, max_rel, per_rounding, text)

    # --- the same inputs, another way to compute

    def _held_against(self, mode: str) -> Iterator[Message]:
        exact = exact_call(self.call, self.call.values(), self.output_gradients, self.autocast)
        others = exact.on_cpu() if mode == TO_CPU else exact.results
        for index in self._judged_indexes():
            result, other = self.results[index], others[index]
            if mode == TO_CPU and not differing(result.value, other.value):
                continue
            max_rel = _most_relative(result.value, other.value)
            verdict = exact.verdict(index, result)
            if verdict.status in FAILURES:
                yield Message(index, max_rel, UNSTABLE, _with_numbers(verdict))
            else:
                off = _share(exact.results[index].value, result.value)
                text = f"the result has an error of {off:.2g} of its norm, which roundings of the inputs explain"
                yield from self._ill_conditioned(index, max_rel, off, text)

    def _judged_indexes(self) -> list[int]:
        """The results that have digits to lose."""
        return [
            index
            for index, result in enumerate(self.results)
            if result.dtype is not None and is_float(result.dtype) and result.value is not None and result.value.size
        ]

    def _ill_conditioned(self, index: int, max_rel: float, share: float, text: str) -> Iterator[Message]:
        """The message for a correct result that loses more than half of its digits by one rounding."""
        # The roundings of the coarsest dtype are the ones that count: an input of bfloat16 came rounded to it.
        dtypes = [self.autocast or "", self.results[index].dtype or "", *self.call.dtypes]
        forms = [form for form in map(rounding_format, dtypes) if form is not None]
        form = max(forms, key=lambda each: each.unit, default=None)
        if form is None or not share > math.sqrt(form.unit):
            return
        lost = f"{form.name} rounds to {form.unit:.2g}: more than half of its digits are lost, whatever the kernel"
        yield Message(index, max_rel, ILL_CONDITIONED, f"{text}; {lost}")


def _with_numbers(verdict: KernelVerdict) -> str:
    if verdict.worst_index is None:
        return verdict.interpretation
    worst = f"at {list(verdict.worst_index)} {verdict.worst_result!r} instead of {verdict.worst_reference!r}"
    return f"{verdict.interpretation}; {worst}"


def _wide(value: Array) -> Array:
    return np.asarray(value, np.complex128 if value.dtype.kind == "c" else np.float64)


def _most_relative(first: Any, then: Any) -> float:
    """The largest difference of two results by the size of the first one; NaN where they cannot be compared."""
    if not isinstance(first, np.ndarray) or not isinstance(then, np.ndarray) or first.shape != then.shape:
        return math.nan
    if not first.size:
        return 0.0
    with np.errstate(all="ignore"):
        one, other = _wide(first), _wide(then)
        # Nothing between two zeros, or two infinities of one sign.
        relative = np.where(one == other, 0.0, np.abs(other - one) / np.abs(one))
    return float(relative.max())


def _share(first: Any, then: Any) -> float:
    """The mean difference of two results by the mean size of the first one, over what is finite in both.

    Single elements that cancel by luck are no property of the inputs as a whole.
    """
    if not isinstance(first, np.ndarray) or not isinstance(then, np.ndarray) or first.shape != then.shape:
        return 0.0
    one, other = _wide(first), _wide(then)
    finite = np.isfinite(one) & np.isfinite(other)
    size = float(np.abs(one[finite]).sum())
    with np.errstate(all="ignore"):
        distance = float(np.abs(other[finite] - one[finite]).sum())
    # Of what is zero everywhere nothing is a part.
    return distance / size if size else 0.0


def _is_invariant(before: Any, after: Any) -> bool:
    """True if the function itself takes no notice of the change: a sum, whatever the order of what is added."""
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray) or before.shape != after.shape:
        return False
    with np.errstate(all="ignore"):
        one, other = _wide(before), _wide(after)
        distance = np.asarray(np.abs(other - one))
        largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return bool((distance <= _INVARIANT * largest).all())
