"""The verdict on each row: what its record's inputs and outputs, taken together, give reason to suspect.

The rules and their order are those of the reference tool; docs/reference/compare.md has them as a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from probe.common.align.row import ERROR, PASS, WARNING, Row
from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import OUTPUT, PARAMETERS, Item
from probe.common.numerics.dtypes import is_device
from probe.common.numerics.formats import is_integer, plain_name
from probe.compare.result import Mode, Unexplained

NONFINITE = "error: There is nan/inf/-inf in the maximum or minimum value of the target."
NONFINITE_OTHERWISE = "error: The nan/inf/-inf in the maximum or minimum value of target and golden are not the same."
NORM = "error: The NormRelativeErr of output is greater than 0.5."
THOUSANDTH = "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6."
REQUIRES_GRAD = "error: The Required_Grad of target and golden are inconsistent"
SCALAR = "error: The scalar parameters of target and golden are inconsistent."
DTYPE = "error: The dtype of target and golden are inconsistent."
SHAPE = "error: The shape of target and golden are inconsistent."
TENFOLD = "warning: The norm relative error of output is 10 times that of input."
COSINE = "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"
CHECKSUM = "error: The CRC-32 value of the target differs from that of golden."
CHECKSUM_MISSING = "warning: The parameter of the target does not match golden."

BLAMED = "error: The first divergence is here"

RECORDED = {
    NONFINITE: "error: There is nan/inf/-inf in the maximum or minimum value of NPU.",
    REQUIRES_GRAD: "error: The Required_Grad of NPU and Bench are inconsistent",
    SCALAR: "error: The scalar parameters of NPU and Bench are inconsistent.",
    DTYPE: "error: The dtype of NPU and Bench are inconsistent.",
    SHAPE: "error: The shape of NPU and Bench are inconsistent.",
    CHECKSUM: "error: The CRC-32 value of NPU differs from that of the bench.",
    CHECKSUM_MISSING: "warning: The parameter of NPU does not match the bench.",
}
"""Messages that the reference tool writes in other words."""

# What these return is not computed, or not yet.
IGNORED = frozenset(
    (
        "empty", "empty_like", "numpy", "to", "__setitem__", "empty_with_format", "new_empty_strided", "new_empty",
        "empty_strided",
    )
)  # fmt: skip
# Their outputs do not follow from the inputs of this process alone.
ONLY_OUTPUTS = frozenset(("_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"))
# Fused projections, whose type may differ from that of the parts they are held against.
_FUSED = ("qkv", "gate_up")

_COSINE, _THOUSANDTH = 0, 4
_NORM = 7


@dataclass(frozen=True)
class Advisor:
    """Judges the rows of one record at a time."""

    mode: Mode
    across_frameworks: bool = False
    compat: bool = False

    def judge(self, rows: list[Row]) -> None:
        """Set verdict and messages of `rows`, which are those of one record."""
        if self.mode is Mode.STATISTICS and not self.compat and _is_unremarkable(rows):
            return
        found: list[list[str]] = [[] for _ in rows]
        name = function_name(rows[0].record)
        if name not in IGNORED:
            if self.mode is Mode.CHECKSUM:
                for row, messages in zip(rows, found):
                    self._checksum(row, messages)
            else:
                self._rules(rows, found, name in ONLY_OUTPUTS)
        for row, messages in zip(rows, found):
            if row.notes and not self.compat:
                messages.extend(note for note in row.notes if note not in messages)
            if messages:
                row.messages = tuple([RECORDED.get(text, text) for text in messages] if self.compat else messages)
                row.verdict = worst(messages)

    def _rules(self, rows: list[Row], found: list[list[str]], only_outputs: bool) -> None:
        is_output = [self._is_output(row) for row in rows]
        for row, messages, output in zip(rows, found, is_output):
            if output or not only_outputs:
                self._nonfinite(row, messages)
        if only_outputs:
            return
        inputs = [row for row, output in zip(rows, is_output) if not output]
        outputs = [row for row, output in zip(rows, is_output) if output]
        of_outputs = [messages for messages, output in zip(found, is_output) if output]
        if self.mode is Mode.STATISTICS:
            before, after = largest(inputs, _norm_error), largest(outputs, _norm_error)
            if before < 0.1:
                self._norms(outputs, of_outputs)
            far_off = after > 0.1 if before == 0 else after / before > 10
            warning = TENFOLD
        else:
            limit = 0.1 if self.compat else 0.6
            if outputs and smallest(inputs, _thousandth) > 0.9 and smallest(outputs, _thousandth) < limit:
                of_outputs[0].append(THOUSANDTH)
            before, after = smallest(inputs, _cosine), smallest(outputs, _cosine)
            far_off = before > 0.9 and before - after > 0.1
            warning = COSINE
        for row, messages, output in zip(rows, found, is_output):
            self._agreement(row, messages, output)
        if outputs and far_off:
            of_outputs[0].append(warning)

    def _is_output(self, row: Row) -> bool:
        assert row.target is not None
        # The text alone is no proof: a module may be called "output".
        return ".output." in row.target.name if self.compat else row.target.state == OUTPUT

    def _nonfinite(self, row: Row, messages: list[str]) -> None:
        target, golden = row.target, row.golden
        assert target is not None
        if not (_is_nonfinite(target.max) or _is_nonfinite(target.min)):
            return
        if golden is None or not (_is_nonfinite(golden.max) or _is_nonfinite(golden.min)):
            messages.append(NONFINITE)
        elif not self.compat and any(
            _is_nonfinite(x) and str(x) != str(y) for x, y in ((target.max, golden.max), (target.min, golden.min))
        ):
            messages.append(NONFINITE_OTHERWISE)

    def _norms(self, outputs: list[Row], found: list[list[str]]) -> None:
        for row, messages in zip(outputs, found):
            error = row.metrics[_NORM]
            if error == "inf" if type(error) is str else error / 100 > 0.5:
                messages.append(NORM)

    def _agreement(self, row: Row, messages: list[str], is_output: bool) -> None:
        target, golden = row.target, row.golden
        if target is None or golden is None:
            return
        if target.requires_grad != golden.requires_grad and self._records_gradients(target, golden):
            messages.append(REQUIRES_GRAD)
        if not is_output and _is_scalar(target) and _is_scalar(golden) and self._scalars_differ(target, golden):
            messages.append(SCALAR)
        if target.dtype != golden.dtype and self._dtypes_differ(target, golden):
            messages.append(DTYPE)
        if target.shape != golden.shape:
            messages.append(SHAPE)

    def _records_gradients(self, target: Item, golden: Item) -> bool:
        """Whether both dumps say something of gradients that can be held against the other."""
        if self.compat:
            return True
        # Of what is no parameter MindSpore says whether it is part of a recorded gradient: integers are, and inputs
        # of a network of which nobody asked for a gradient.
        if self.across_frameworks and target.state != PARAMETERS:
            return False
        return None not in (target.requires_grad, golden.requires_grad)

    def _scalars_differ(self, target: Item, golden: Item) -> bool:
        if str(target.max) == str(golden.max):
            return False
        if self.compat:
            return True
        if is_device(target.value) and is_device(golden.value):
            return False
        same_type = isinstance(target.value, str) and isinstance(golden.value, str) and self.across_frameworks
        return not (same_type and plain_name(target.value) == plain_name(golden.value))

    def _dtypes_differ(self, target: Item, golden: Item) -> bool:
        if any(part in golden.name for part in _FUSED):
            return False
        if self.compat or not self.across_frameworks or target.dtype is None or golden.dtype is None:
            return True
        # Labels and indices: frameworks have their own width for whole numbers.
        if is_integer(target.dtype) and is_integer(golden.dtype):
            return False
        return plain_name(target.dtype) != plain_name(golden.dtype)

    def _checksum(self, row: Row, messages: list[str]) -> None:
        target, golden = row.metrics
        if target != golden:
            messages.append(CHECKSUM_MISSING if "N/A" in (target, golden) else CHECKSUM)


def blame(rows: Iterable[Row], first: Unexplained) -> bool:
    """Say on its row where the runs diverge first, as the rules above know nothing of that; whether the row is there.

    Its values may differ by too little for any rule and by more than anything explains.
    """
    for row in rows:
        # Functions have other numbers on the golden side, so that its names may be those of other rows of the target.
        item = row.target or row.golden
        if item is not None and item.name == first.item:
            row.messages += (f"{BLAMED}: {first.reason}.",)
            row.verdict = ERROR
            return True
    return False


def _is_unremarkable(rows: list[Row]) -> bool:
    """Whether statistics leave no rule anything to find, which is so for most records and is seen in half the time.

    This asks for more than the rules do; everything else is left to them.
    """
    of_inputs = of_outputs = 0.0
    for row in rows:
        target, golden = row.target, row.golden
        if target is None or golden is None or row.notes:
            return False
        if target is golden:
            continue
        if target.dtype != golden.dtype or target.shape != golden.shape or target.requires_grad != golden.requires_grad:
            return False
        if target.shape == () and str(target.max) != str(golden.max):
            return False
        if _is_nonfinite(target.max) or _is_nonfinite(target.min):
            return False
        error = row.metrics[_NORM]
        if type(error) is str:
            return False
        if target.state == OUTPUT:
            of_outputs = max(of_outputs, error)
        else:
            of_inputs = max(of_inputs, error)
    # In percent; ten times as much as of the inputs would be a finding.
    return of_outputs < 10.0 and (of_outputs < 9.9 * of_inputs or of_inputs == 0.0)


def worst(messages: Iterable[str]) -> str:
    """The verdict that `messages` make together."""
    kinds = {message.partition(":")[0] for message in messages}
    return ERROR if ERROR in kinds else WARNING if WARNING in kinds else PASS


Measure = Callable[[Row], "float | None"]


def largest(rows: list[Row], measure: Measure) -> float:
    """The largest of what can be measured, 0 when nothing can."""
    return max([value for row in rows if (value := measure(row)) is not None], default=0.0)


def smallest(rows: list[Row], measure: Measure) -> float:
    """The smallest of what can be measured, 1 when nothing can."""
    return min([value for row in rows if (value := measure(row)) is not None], default=1.0)


def _norm_error(row: Row) -> float | None:
    error = row.metrics[_NORM]
    return None if type(error) is str else error / 100


def _cosine(row: Row) -> float | None:
    value = row.metrics[_COSINE]
    return None if isinstance(value, str) else value


def _thousandth(row: Row) -> float | None:
    value = row.metrics[_THOUSANDTH]
    return None if isinstance(value, str) else value


def _is_nonfinite(value: Any) -> bool:
    return type(value) is float and not math.isfinite(value)


def _is_scalar(item: Item) -> bool:
    return item.shape == () and item.dtype is not None and "class" in item.dtype
