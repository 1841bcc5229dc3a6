"""Details of a finding, from the dump of its rank: values, stack, module, cause, and the growth of values before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from probe.common.dump import naming
from probe.common.dump.frameworks import BACKEND_OF, FRAMEWORKS
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.records import OUTPUT, PARAMETERS, Item
from probe.common.dump.sketch_file import VIEW
from probe.common.errors import DumpFormatError
from probe.common.given_paths import as_given
from probe.common.nonfinite.call_values import CallValues, is_nonfinite, is_number, limit_of, mark_of, with_numbers
from probe.overflow.causes import beyond_range, why, why_backward
from probe.overflow.overflow_report import COMMUNICATION, INSIDE, ORIGIN, OUTSIDE, PARAMETER, Finding
from probe.overflow.scan import Makers

MOST_STEPS = 5
"""The number of steps before that are looked at."""


def add_details(findings: Sequence[Finding], folder: str, before: Sequence[tuple[int, str]]) -> None:
    """Complete what was found on one rank.

    Args:
        findings: what was found in the dump at `folder`.
        folder: the folder of the rank.
        before: the steps before with the folders of the same rank, the last one last.
    """
    dump = read(folder)
    earlier = [(step, read(path)) for step, path in before[-MOST_STEPS:]]
    for finding in findings:
        _add_details(finding, dump, earlier)


def _add_details(finding: Finding, dump: Dump, earlier: Sequence[tuple[int, Dump]]) -> None:
    items = _items(dump, finding.record)
    finding.fields = dump[finding.record].fields
    finding.values = [_as_json(item) for item in items if item.is_tensor]
    finding.stack = list((dump.stacks or {}).get(finding.record, ()))
    if dump.tree is not None:
        finding.module = dump.tree.module(finding.record)
        finding.around = [finding.record, *dump.tree.around(finding.record)]
    parsed = naming.parse(finding.record)
    forward = None
    if parsed is not None and parsed.direction == naming.BACKWARD:
        name = naming.record_name(parsed._replace(direction=naming.FORWARD))
        if name in dump:
            forward = _items(dump, name)
            of_forward = CallValues.of(forward)
            finding.forward = [_as_json(item) for item in (*of_forward.inputs, *of_forward.parameters)]
            finding.stack = finding.stack or list((dump.stacks or {}).get(name, ()))
    finding.growth = [_in_step(step, other, finding.record) for step, other in earlier if finding.record in other]
    finding.replay = as_given(dump.path) if _can_be_run_again(finding, dump) else ""
    finding.sentence = _sentence(finding, dump, items, forward)


def _can_be_run_again(finding: Finding, dump: Dump) -> bool:
    """True if it is a call of a function that made the value, of which the dump has the inputs."""
    parsed = naming.parse(finding.record)
    if finding.kind != ORIGIN or dump.task != "tensor" or parsed is None or parsed.is_module:
        return False
    return naming.record_name(parsed._replace(direction=naming.FORWARD)) in dump


def _items(dump: Dump, name: str) -> list[Item]:
    return [with_numbers(item) for item in dump.items(dump[name])]


def _sentence(finding: Finding, dump: Dump, items: list[Item], forward: list[Item] | None) -> str:
    if finding.kind == ORIGIN:
        return _origin_sentence(finding, dump, items, forward)
    if finding.kind == PARAMETER:
        return _parameter_sentence(finding, dump)
    if finding.kind == COMMUNICATION:
        ranks = ", ".join(str(rank) for rank, _ in finding.members)
        reason = why(naming.function_name(finding.record), items)
        more = f": {reason}" if reason else ", for example because a sum exceeds the range of its dtype"
        return f"Ranks {ranks} send finite values and receive values that are not finite{more}."
    if finding.kind == OUTSIDE:
        return _outside_sentence(finding, dump, forward is not None or CallValues.of(items).is_gradients)
    return ""


def _origin_sentence(finding: Finding, dump: Dump, items: list[Item], forward: list[Item] | None) -> str:
    function = naming.function_name(finding.record)
    values = CallValues.of(items)
    if forward is not None:
        made = "This backward gets finite gradients and returns NaN or infinity"
        if any(map(is_nonfinite, values.inputs)):
            made = "The gradients of the outputs have infinities"
        reason = why_backward(function, forward, items)
        return f"{_with_reason(made, reason)}{_brought_back(finding, dump, forward)}"
    if values.is_gradients:
        return "This gradient is the first value that is not finite; no recorded backward made it."
    made, reason = "The inputs are finite, and an output is not", why(function, items)
    bad = [item for item in (*values.inputs, *values.parameters) if is_nonfinite(item)]
    if bad:
        argument = bad[0].name.rpartition(f"{finding.record}.")[2]
        of = f"; {finding.source} set them on purpose" if finding.source else ""
        made = f"{argument} has infinities{of}, and this call makes something else of them"
    return f"{_with_reason(made, reason)}{_becomes_nan(finding, dump)}"


def _with_reason(made: str, reason: str | None) -> str:
    return f"{made}: {reason}." if reason else f"{made}; its recorded values do not tell why."


def _brought_back(finding: Finding, dump: Dump, forward: list[Item]) -> str:
    """The end of the sentence on a backward: what was not finite in its forward, and had no consequence there."""
    name = forward[0].name.partition(".forward")[0] + ".forward" if forward else ""
    for item in (each for each in forward if each.is_tensor and is_nonfinite(each)):
        maker = name if item.state == OUTPUT else _maker(item, dump, name)
        if not maker:
            continue
        finding.brought_back.append(maker)
        if maker != name:
            reason = why(naming.function_name(maker), _items(dump, maker))
            argument = item.name.rpartition(f"{name}.")[2]
            return f" {argument} of the forward is not finite since {maker}{f': {reason}' if reason else ''}."
    return ""


def _maker(item: Item, dump: Dump, before: str) -> str:
    """The function that returned `item`, which is not finite; if its maker is not recorded, the first one like it."""
    maker = (Makers()(item) or "").removeprefix(VIEW).partition(f".{OUTPUT}.")[0]
    if maker in dump:
        return maker
    for record in dump:
        if record.name == before:
            break
        if not naming.is_module(record.name):
            outputs = CallValues.of(dump.items(record)).outputs
            if any(is_nonfinite(each) and mark_of(each) == mark_of(item) for each in outputs):
                return record.name
    return ""


def _becomes_nan(finding: Finding, dump: Dump) -> str:
    """The end of the sentence on an infinity: the next function, where it makes a NaN of it."""
    items = _items(dump, finding.record)
    if any(item.has_nan for item in items if item.state == OUTPUT):
        return ""
    for rank, name in finding.path:
        if rank != finding.rank or naming.is_module(name) or not naming.is_forward(name):
            continue
        found = _items(dump, name)
        if any(item.has_nan for item in found if item.is_tensor and item.state != OUTPUT):
            return ""
        if any(item.has_nan for item in found if item.state == OUTPUT):
            reason = why(naming.function_name(name), found)
            return f" {name} makes a NaN of it{f': {reason}' if reason else ''}."
    return ""


def _parameter_sentence(finding: Finding, dump: Dump) -> str:
    name = finding.item.rpartition(f".{PARAMETERS}.")[2] or finding.item
    writer = (
        "the optimizer wrote it in an earlier step" if dump.step
        else "it comes from the initialisation or the checkpoint"
    )  # fmt: skip
    return f"The parameter {name} is not finite; {writer}."


def _outside_sentence(finding: Finding, dump: Dump, is_backward: bool) -> str:
    argument = finding.item.rpartition(f"{finding.record}.")[2]
    if finding.source.startswith("rank "):
        return f"{argument} comes from {finding.source}."
    part = _PARTS.get((naming.function_name(finding.record), argument))
    if part is not None:
        return f"{argument}, the {part}, is not finite, and no earlier record made it."
    if finding.source.startswith(INSIDE):
        module = finding.source[len(INSIDE) :]
        return (
            f"{argument} is not finite, and all that went into {module} is finite: a call inside that is not recorded "
            "made it, for example a cast to a smaller dtype."
        )
    if finding.source:
        return f"{argument} has the dtype and shape of the result of {finding.source}: memory that was never written."
    if is_backward or naming.is_backward(finding.record):
        where = "the loss, its scale, or a backward that is not recorded"
    elif dump.level == "L0":
        where = "the data, or a function between the modules; collect with --level mix to record these functions"
    else:
        made = f"{argument} is not finite, and no earlier record made it: it comes from outside, such as the data, or"
        return f"{made} from a function that is not recorded{_unrecorded(finding, dump)}"
    return f"{argument} is not finite, and no earlier record made it: it comes from {where}."


def _unrecorded(finding: Finding, dump: Dump) -> str:
    """The end of a sentence, and where a call may have been that is not recorded, and which setting records it."""
    text = ""
    before = _before(finding, dump)
    if before is not None:
        name, given, got, beyond = before
        change = "" if given == got else f"; it arrives here in {got}{beyond}"
        text = f". The last recorded call with a finite result of this shape is {name}, in {given}{change}"
    backend = BACKEND_OF.get(dump.framework, "")
    left_out = FRAMEWORKS[backend].left_out if backend else ""
    return f"{text}. {left_out}" if left_out else f"{text}."


def _before(finding: Finding, dump: Dump) -> tuple[str, str, str, str] | None:
    """The last call before a finding that returns a finite tensor of its shape; the dtypes of both, and what if it
    exceeds the range of the second one."""
    tensor = next((item for item in dump.items(dump[finding.record]) if item.name == finding.item), None)
    if tensor is None or not tensor.shape:
        return None
    found = None
    for record in dump:
        if record.name == finding.record:
            return found
        if not naming.is_module(record.name):
            outputs = CallValues.of(dump.items(record)).outputs
            same = [item for item in outputs if item.shape == tensor.shape and not is_nonfinite(item)]
            found = (record.name, same[0].dtype or "", tensor.dtype or "", _beyond(same[0], tensor)) if same else found
    return found


def _beyond(finite: Item, cast: Item) -> str:
    """The end of a sentence on a cast, if numbers of `finite` are beyond the range of the dtype of `cast`."""
    limit, largest = limit_of(cast), max(abs(finite.max or 0), abs(finite.min or 0))
    return "" if limit is None or largest <= limit else f", and {beyond_range(largest, limit, cast.dtype or '')}"


_WEIGHTS = ("linear", "embedding", "conv1d", "conv2d", "conv3d", "dense")
_PARTS = {
    **{(name, index): part for name in _WEIGHTS for index, part in (("input.1", "weight"), ("input.2", "bias"))},
    **{
        ("batch_norm", f"input.{index}"): part
        for index, part in enumerate(("input", "running mean", "running variance", "weight", "bias")) if index
    },
    ("layer_norm", "input.2"): "weight", ("layer_norm", "input.3"): "bias",
    ("rms_norm", "input.2"): "weight", ("embedding", "input.1"): "table",
}  # fmt: skip
"""The parts of functions whose arguments are not data: weight, bias, table."""


def _in_step(step: int, dump: Dump, record: str) -> dict[str, Any]:
    """The sizes of the inputs of a record in a step before."""
    values = CallValues.of(dump.items(dump[record]))
    inputs = [item for item in (*values.inputs, *values.parameters) if not is_nonfinite(item)]
    largest = [abs(value) for item in inputs for value in (item.max, item.min) if is_number(value)]
    norms = [item.norm for item in inputs if is_number(item.norm)]
    return {"step": step, "largest": max(largest, default=None), "norm": max(norms, default=None)}


def _as_json(item: Item) -> dict[str, Any]:
    found: dict[str, Any] = {"name": item.name, "dtype": item.dtype, "shape": list(item.shape or ())}
    for name, value in (("max", item.max), ("min", item.min), ("mean", item.mean), ("norm", item.norm)):
        # JSON has no such numbers.
        found[name] = str(value) if type(value) is float and not is_number(value) else value
    # A damaged file of sketches costs the number alone; the scan has told of it.
    with suppress(DumpFormatError):
        if is_nonfinite(item) and item.excluded:
            found["excluded"] = item.excluded
    return found
