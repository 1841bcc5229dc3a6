"""The documented rules of msProbe for rows: pass, warning or error, by the inputs and outputs of a record together.

The rules and their order are those of msProbe; docs/reference/compare.md has them as a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from probe.common.align.row import ERROR, PASS, WARNING, Row
from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import OUTPUT, PARAMETERS, Item
from probe.common.numerics.formats import is_integer, plain_name
from probe.common.numerics.statistics import is_device
from probe.compare.result import ComparisonResult, Mode
from probe.compare.rules import Otherwise

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

# The results of these functions are not computed, or not yet.
IGNORED = frozenset(
    (
        "empty", "empty_like", "numpy", "to", "__setitem__", "empty_with_format", "new_empty_strided", "new_empty",
        "empty_strided",
    )
)  # fmt: skip
# Their outputs do not follow from the inputs of this process alone.
ONLY_OUTPUTS = frozenset(("_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"))
# Fused projections.
_FUSED = ("qkv", "gate_up")

_COSINE, _THOUSANDTH = 0, 4
_NORM = 7


class DocumentedRows:
    """The rules as `probe.compare.rules.RowRules`."""

    results = (PASS, WARNING, ERROR)
    levels: Mapping[str, Sequence[str]] = MappingProxyType({"error": (ERROR,), "warning": (ERROR, WARNING)})
    findings = (ERROR, WARNING)
    alone = WARNING
    is_by_record = True
    otherwise: Otherwise | None = None

    def classify_rows(self, rows: list[Row], mode: Mode, across_frameworks: bool) -> None:
        """Give the rows of one record their results and messages."""
        if mode is Mode.STATISTICS and _is_unremarkable(rows):
            for row in rows:
                row.result = PASS
            return
        for row, messages in zip(rows, RowRule(mode, across_frameworks).messages(rows)):
            messages.extend(note for note in row.notes if note not in messages)
            row.result = worst(messages)
            if messages:
                row.messages = tuple(messages)

    def conclude(self, result: ComparisonResult) -> None:
        """Say on its row where the runs diverge first, which no rule knows.

        Its values may differ by too little for any rule and by more than anything explains.
        """
        if result.divergence is None:
            return
        first = result.divergence.first
        for row in result.rows:
            # A row of the golden run alone has one result in these tables, and its name may be that of another call.
            if row.target is not None and row.target.name == first.item:
                row.messages += (f"{BLAMED}: {first.reason}.",)
                row.result = ERROR
                return


DOCUMENTED_ROWS = DocumentedRows()


@dataclass(frozen=True)
class RowRule:
    """The rules for the rows of one record: which messages each row gets.

    Args:
        mode: What the dumps are compared by.
        across_frameworks: True if they are of two frameworks.
    """

    mode: Mode
    across_frameworks: bool = False

    least_thousandth: ClassVar[float] = 0.6
    """The share of good elements below which an output is an error."""

    def messages(self, rows: list[Row]) -> list[list[str]]:
        """The messages of each of `rows`, which are those of one record."""
        found: list[list[str]] = [[] for _ in rows]
        name = function_name(rows[0].record)
        if name in IGNORED:
            return found
        if self.mode is Mode.CHECKSUM:
            for row, messages in zip(rows, found):
                self._checksum(row, messages)
        else:
            self._rules(rows, found, name in ONLY_OUTPUTS)
        return found

    def _rules(self, rows: list[Row], found: list[list[str]], only_outputs: bool) -> None:
        is_output = [self.is_output(row) for row in rows]
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
            is_good = outputs and smallest(inputs, _thousandth) > 0.9
            if is_good and smallest(outputs, _thousandth) < self.least_thousandth:
                of_outputs[0].append(THOUSANDTH)
            before, after = smallest(inputs, _cosine), smallest(outputs, _cosine)
            far_off = before > 0.9 and before - after > 0.1
            warning = COSINE
        for row, messages, output in zip(rows, found, is_output):
            self._agreement(row, messages, output)
        if outputs and far_off:
            of_outputs[0].append(warning)

    def is_output(self, row: Row) -> bool:
        """True if the target's item is an output."""
        assert row.target is not None
        return row.target.state == OUTPUT

    def _nonfinite(self, row: Row, messages: list[str]) -> None:
        target, golden = row.target, row.golden
        assert target is not None
        if not (_is_nonfinite(target.max) or _is_nonfinite(target.min)):
            return
        if golden is None or not (_is_nonfinite(golden.max) or _is_nonfinite(golden.min)):
            messages.append(NONFINITE)
        elif self.are_nonfinite_otherwise(target, golden):
            messages.append(NONFINITE_OTHERWISE)

    def are_nonfinite_otherwise(self, target: Item, golden: Item) -> bool:
        """True if both sides have values that are not finite, and other ones."""
        pairs = (target.max, golden.max), (target.min, golden.min)
        return any(_is_nonfinite(mine) and str(mine) != str(theirs) for mine, theirs in pairs)

    def _norms(self, outputs: list[Row], found: list[list[str]]) -> None:
        for row, messages in zip(outputs, found):
            error = row.metrics[_NORM]
            if error == "inf" if type(error) is str else error / 100 > 0.5:
                messages.append(NORM)

    def _agreement(self, row: Row, messages: list[str], is_output: bool) -> None:
        target, golden = row.target, row.golden
        if target is None or golden is None:
            return
        if target.requires_grad != golden.requires_grad and self.records_gradients(target, golden):
            messages.append(REQUIRES_GRAD)
        if not is_output and _is_scalar(target) and _is_scalar(golden) and self.scalars_differ(target, golden):
            messages.append(SCALAR)
        if target.dtype != golden.dtype and self.dtypes_differ(target, golden):
            messages.append(DTYPE)
        if target.shape != golden.shape:
            messages.append(SHAPE)

    def records_gradients(self, target: Item, golden: Item) -> bool:
        """True if both dumps say something of gradients that can be compared."""
        # Of what is no parameter MindSpore says whether it is part of a recorded gradient: integers are, and inputs
        # of a network of which nobody asked for a gradient.
        if self.across_frameworks and target.state != PARAMETERS:
            return False
        return None not in (target.requires_grad, golden.requires_grad)

    def scalars_differ(self, target: Item, golden: Item) -> bool:
        """True if two plain values differ."""
        if str(target.max) == str(golden.max):
            return False
        if is_device(target.value) and is_device(golden.value):
            return False
        same_type = isinstance(target.value, str) and isinstance(golden.value, str) and self.across_frameworks
        return not (same_type and plain_name(target.value) == plain_name(golden.value))

    def dtypes_differ(self, target: Item, golden: Item) -> bool:
        """True if two dtypes of other names are two dtypes."""
        if is_fused(golden):
            return False
        if not self.across_frameworks or target.dtype is None or golden.dtype is None:
            return True
        # Labels and indices: frameworks have their own width for whole numbers.
        if is_integer(target.dtype) and is_integer(golden.dtype):
            return False
        return plain_name(target.dtype) != plain_name(golden.dtype)

    def _checksum(self, row: Row, messages: list[str]) -> None:
        target, golden = row.metrics
        if target != golden:
            messages.append(CHECKSUM_MISSING if "N/A" in (target, golden) else CHECKSUM)


def is_fused(golden: Item) -> bool:
    """True if an item is of a fused projection, whose dtype may be another one than that of its parts."""
    return any(part in golden.name for part in _FUSED)


def _is_unremarkable(rows: list[Row]) -> bool:
    """True if statistics leave no rule anything to find, which is so for most records and is seen in half the time.

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
        largest, smallest = target.max, target.min
        # A value that is not finite minus itself is not zero.
        if (type(largest) is float and largest - largest) or (type(smallest) is float and smallest - smallest):
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
