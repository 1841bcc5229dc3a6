"""Details of a finding, from the dump of its rank: values, stack, module, cause, and the growth of values before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.common.dump import naming
from probe.common.dump.frameworks import BACKEND_OF, FRAMEWORKS
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.nonfinite.call_values import CallValues, is_nonfinite, is_number
from probe.overflow.causes import why, why_backward
from probe.overflow.findings import COMMUNICATION, INSIDE, ORIGIN, OUTSIDE, PARAMETER, Finding

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
    items = dump.items(dump[finding.record])
    values = CallValues.of(items)
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
            forward = CallValues.of(dump.items(dump[name]))
            finding.forward = [_as_json(item) for item in (*forward.inputs, *forward.parameters)]
            finding.stack = finding.stack or list((dump.stacks or {}).get(name, ()))
    finding.growth = [_in_step(step, other, finding.record) for step, other in earlier if finding.record in other]
    finding.replay = dump.path if _can_be_run_again(finding, dump) else ""
    finding.sentence = _sentence(finding, dump, values, forward)


def _can_be_run_again(finding: Finding, dump: Dump) -> bool:
    """True if it is a call of a function that made the value, of which the dump has the inputs."""
    parsed = naming.parse(finding.record)
    if finding.kind != ORIGIN or dump.task != "tensor" or parsed is None or parsed.is_module:
        return False
    return naming.record_name(parsed._replace(direction=naming.FORWARD)) in dump


def _sentence(finding: Finding, dump: Dump, values: CallValues, forward: CallValues | None) -> str:
    if finding.kind == ORIGIN:
        return _of_origin(finding, values, forward)
    if finding.kind == PARAMETER:
        return _of_parameter(finding, dump)
    if finding.kind == COMMUNICATION:
        ranks = ", ".join(str(rank) for rank, _ in finding.members)
        reason = why(naming.function_name(finding.record), values)
        more = f": {reason}" if reason else ", for example because a sum exceeds the range of its dtype"
        return f"Ranks {ranks} send finite values and receive values that are not finite{more}."
    if finding.kind == OUTSIDE:
        return _of_outside(finding, dump, forward is not None or values.is_gradients)
    return ""


def _of_origin(finding: Finding, values: CallValues, forward: CallValues | None) -> str:
    function = naming.function_name(finding.record)
    if forward is not None:
        reason = why_backward(function, forward, values)
        made = "The gradients of the outputs are finite, and those of the inputs are not"
    elif values.is_gradients:
        reason, made = None, "This gradient is the first value that is not finite; no recorded backward made it"
    elif finding.source:
        reason = f"{finding.source} set values to minus infinity on purpose, and this call makes a NaN from them"
        more = why(function, values)
        return f"All other inputs are finite: {reason}{f' ({more})' if more else ''}."
    else:
        reason = why(function, values)
        made = "The inputs are finite, and an output is not"
    return f"{made}{f': {reason}' if reason else ''}."


def _of_parameter(finding: Finding, dump: Dump) -> str:
    name = finding.item.rpartition(f".{PARAMETERS}.")[2] or finding.item
    writer = (
        "the optimizer wrote it in an earlier step" if dump.step
        else "it comes from the initialisation or the checkpoint"
    )  # fmt: skip
    return f"The parameter {name} is not finite; {writer}."


def _of_outside(finding: Finding, dump: Dump, is_backward: bool) -> str:
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
        name, given, got = before
        change = "" if given == got else f"; it arrives here in {got}"
        text = f". The last recorded call with a finite result of this shape is {name}, in {given}{change}"
    backend = BACKEND_OF.get(dump.framework, "")
    left_out = FRAMEWORKS[backend].left_out if backend else ""
    return f"{text}. {left_out}" if left_out else f"{text}."


def _before(finding: Finding, dump: Dump) -> tuple[str, str, str] | None:
    """The last call before a finding that returns a finite tensor of its shape; the dtypes of both."""
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
            found = (record.name, same[0].dtype or "", tensor.dtype or "") if same else found
    return found


_WEIGHTS = ("linear", "embedding", "conv1d", "conv2d", "conv3d", "dense")
_PARTS = {
    **{(name, place): part for name in _WEIGHTS for place, part in (("input.1", "weight"), ("input.2", "bias"))},
    **{
        ("batch_norm", f"input.{place}"): part
        for place, part in enumerate(("input", "running mean", "running variance", "weight", "bias")) if place
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
    return found
