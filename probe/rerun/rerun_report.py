"""A call that was run again, as lines of the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from probe.calls.verdict.subject import EXACT, FAILURES, KernelVerdict
from probe.common.dump.reading.items import shape_text
from probe.common.report.json_values import to_json
from probe.rerun.rerun_call import ComparedResult, ElementDifference, Rerun


def lines(rerun: Rerun) -> Iterator[str]:
    """The answer, and three lines for each result."""
    cast = f" under autocast to {rerun.autocast}" if rerun.autocast else ""
    yield f"{rerun.name} on {rerun.device}{cast}: {answer(rerun)}"
    for each in rerun.results:
        yield from _result(each, rerun)
    yield from (f"note: {note}." for note in rerun.notes)


def answer(rerun: Rerun) -> str:
    """The meaning of the comparisons, in a sentence."""
    if rerun.is_random:
        return "not judged: the call draws random numbers, and no random number is the right one."
    now, before = rerun.now in FAILURES, rerun.recorded in FAILURES
    overflow = next((each.overflow for each in rerun.results if each.overflow), "")
    if rerun.is_suspect and not overflow:
        return f"suspect: the error is larger than expected of the operation{_repeats(rerun)}."
    if not now and not before:
        exact = "as exact as the operation can be" if rerun.recorded else "now as exact as the operation can be"
        return f"{overflow or exact}{_repeats(rerun)}."
    if now and before:
        return f"wrong when it was recorded and now{_repeats(rerun)}: the kernel is wrong{_with(overflow)}."
    if before:
        return f"wrong when it was recorded, and right on {rerun.device} now{_with(overflow)}."
    if rerun.recorded:
        return f"right when it was recorded, and wrong on {rerun.device} now{_with(overflow)}."
    return f"wrong on {rerun.device} now{_with(overflow)}."


def _with(overflow: str) -> str:
    return f"; not finite: {overflow}" if overflow else ""


def _repeats(rerun: Rerun) -> str:
    found = [each.difference for each in rerun.results if each.difference is not None]
    if not found:
        return ""
    return ", and reproducible bit for bit" if all(each.is_same for each in found) else ", but not bit for bit the same"


def _result(each: ComparedResult, rerun: Rerun) -> Iterator[str]:
    row = each.row
    of = f", the gradient of {row.of.partition('.forward.')[2]}" if row.of else ""
    yield f"{row.name}{of}: {row.dtype} {shape_text(row.shape)}"
    if each.difference is not None:
        yield f"  recorded and now:   {difference_text(each.difference)}"
    yield f"  now and exact:      {verdict_text(row.verdict, rerun.device)}"
    if each.recorded is not None:
        same = each.difference is not None and each.difference.is_same
        yield f"  recorded and exact: {'the same' if same else verdict_text(each.recorded, 'recorded')}"
    if each.overflow:
        yield f"  not finite:         {each.overflow}"


def difference_text(found: ElementDifference) -> str:
    """The reproducibility of a result, in words."""
    if found.form:
        return found.form
    if found.is_same:
        return "the same, bit for bit"
    far = f" by at most {found.max_ulp:.4g} ULP" if found.max_ulp is not None else ""
    at = f"element {_index_text(found.index)}: recorded {found.recorded}, now {found.now}"
    return f"{found.count} of {found.size} elements differ{far}; {at}"


def verdict_text(verdict: KernelVerdict, who: str) -> str:
    """A verdict with its worst element, in a line."""
    parts = [f"{verdict.status}: {verdict.interpretation}"]
    if verdict.worst_index is not None:
        parts.append(
            f"element {_index_text(verdict.worst_index)}: {who} {verdict.worst_result}, exact {verdict.worst_reference}"
        )
    if verdict.max_ulp is not None and verdict.status != EXACT:
        parts.append(f"largest error {verdict.max_ulp:.4g} ULP")
    if verdict.fits:
        parts.append(f"fits {verdict.fits}")
    if verdict.tolerance is not None and verdict.status != EXACT:
        parts.append(f"tolerance {verdict.tolerance:.3g} ({verdict.bound})")
    return "; ".join(parts)


def _index_text(index: tuple[int, ...] | None) -> str:
    return shape_text(index or ())


def as_json(rerun: Rerun) -> dict[str, Any]:
    """A call that was run again, for machines; numbers that JSON lacks are ``{"number": "NaN"}``."""
    found = to_json(
        {
            "version": 1,
            "dump": rerun.path,
            "name": rerun.name,
            "direction": rerun.direction,
            "device": rerun.device,
            "autocast": rerun.autocast,
            "inputs": "generated" if rerun.prepared.generated else "recorded",
            "answer": answer(rerun),
            "is_wrong": rerun.is_wrong,
            "is_random": rerun.is_random,
            "notes": list(rerun.notes),
            "results": [_as_json(each) for each in rerun.results],
        }
    )
    assert isinstance(found, dict)
    return found


def _as_json(each: ComparedResult) -> dict[str, Any]:
    return {
        "name": each.row.name,
        "of": each.row.of,
        "dtype": each.row.dtype,
        "shape": each.row.shape,
        "recorded_and_now": None if each.difference is None else vars(each.difference),
        "now_and_exact": vars(each.row.verdict),
        "recorded_and_exact": None if each.recorded is None else vars(each.recorded),
        "overflow": each.overflow,
    }
