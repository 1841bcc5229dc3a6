"""Results of rows as msProbe 26.2 gives them: pass, warning or error, by the inputs and outputs of a record together.

The rules and their order are those of msProbe; docs/reference/compare.md has them as a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from probe.common.align.row import ERROR, PASS, WARNING, Row
from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import Item
from probe.compare.result import Mode

NONFINITE = "error: There is nan/inf/-inf in the maximum or minimum value of NPU."
NORM = "error: The NormRelativeErr of output is greater than 0.5."
THOUSANDTH = "error: The input/parameters of One Thousandth Err Ratio > 0.9 while the output < 0.6."
REQUIRES_GRAD = "error: The Required_Grad of NPU and Bench are inconsistent"
SCALAR = "error: The scalar parameters of NPU and Bench are inconsistent."
DTYPE = "error: The dtype of NPU and Bench are inconsistent."
SHAPE = "error: The shape of NPU and Bench are inconsistent."
TENFOLD = "warning: The norm relative error of output is 10 times that of input."
COSINE = "warning: The input/parameters of Cosine > 0.9, and input/parameters - output > 0.1"
CHECKSUM = "error: The CRC-32 value of NPU differs from that of the bench."
CHECKSUM_MISSING = "warning: The parameter of NPU does not match the bench."

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


@dataclass(frozen=True)
class RowRule:
    """The rules for the rows of one record: which messages each row gets.

    Args:
        mode: What the dumps are compared by.
    """

    mode: Mode

    def messages(self, rows: list[Row]) -> list[list[str]]:
        """The messages of each of `rows`, which are those of one record."""
        found: list[list[str]] = [[] for _ in rows]
        name = function_name(rows[0].record)
        if name in IGNORED:
            return found
        if self.mode is Mode.CHECKSUM:
            for row, messages in zip(rows, found):
                _checksum(row, messages)
        else:
            self._rules(rows, found, name in ONLY_OUTPUTS)
        return found

    def _rules(self, rows: list[Row], found: list[list[str]], only_outputs: bool) -> None:
        is_output = [_is_output(row) for row in rows]
        for row, messages, output in zip(rows, found, is_output):
            if output or not only_outputs:
                _nonfinite(row, messages)
        if only_outputs:
            return
        inputs = [row for row, output in zip(rows, is_output) if not output]
        outputs = [row for row, output in zip(rows, is_output) if output]
        of_outputs = [messages for messages, output in zip(found, is_output) if output]
        if self.mode is Mode.STATISTICS:
            before, after = _largest(inputs, _norm_error), _largest(outputs, _norm_error)
            if before < 0.1:
                _norms(outputs, of_outputs)
            far_off = after > 0.1 if before == 0 else after / before > 10
            warning = TENFOLD
        else:
            # The limit is not the one that the message has.
            if outputs and _smallest(inputs, _thousandth) > 0.9 and _smallest(outputs, _thousandth) < 0.1:
                of_outputs[0].append(THOUSANDTH)
            before, after = _smallest(inputs, _cosine), _smallest(outputs, _cosine)
            far_off = before > 0.9 and before - after > 0.1
            warning = COSINE
        for row, messages, output in zip(rows, found, is_output):
            _agreement(row, messages, output)
        if outputs and far_off:
            of_outputs[0].append(warning)


def worst(messages: Iterable[str]) -> str:
    """The verdict that `messages` make together."""
    kinds = {message.partition(":")[0] for message in messages}
    return ERROR if ERROR in kinds else WARNING if WARNING in kinds else PASS


def _is_output(row: Row) -> bool:
    """True by the name alone, so that a module called "output" has outputs only."""
    assert row.target is not None
    return ".output." in row.target.name


def _nonfinite(row: Row, messages: list[str]) -> None:
    target, golden = row.target, row.golden
    if target is None or not (_is_nonfinite(target.max) or _is_nonfinite(target.min)):
        return
    if golden is None or not (_is_nonfinite(golden.max) or _is_nonfinite(golden.min)):
        messages.append(NONFINITE)


def _norms(outputs: list[Row], found: list[list[str]]) -> None:
    for row, messages in zip(outputs, found):
        error = row.metrics[_NORM]
        if error == "inf" if type(error) is str else error / 100 > 0.5:
            messages.append(NORM)


def _agreement(row: Row, messages: list[str], is_output: bool) -> None:
    target, golden = row.target, row.golden
    if target is None or golden is None:
        return
    if target.requires_grad != golden.requires_grad:
        messages.append(REQUIRES_GRAD)
    if not is_output and _is_scalar(target) and _is_scalar(golden) and str(target.max) != str(golden.max):
        messages.append(SCALAR)
    if target.dtype != golden.dtype and not any(part in golden.name for part in _FUSED):
        messages.append(DTYPE)
    if target.shape != golden.shape:
        messages.append(SHAPE)


def _checksum(row: Row, messages: list[str]) -> None:
    target, golden = row.metrics
    if target != golden:
        messages.append(CHECKSUM_MISSING if "N/A" in (target, golden) else CHECKSUM)


_Measure = Callable[[Row], "float | None"]


def _largest(rows: list[Row], measure: _Measure) -> float:
    """The largest of what can be measured, 0 when nothing can."""
    return max([value for row in rows if (value := measure(row)) is not None], default=0.0)


def _smallest(rows: list[Row], measure: _Measure) -> float:
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
