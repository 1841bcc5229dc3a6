"""The answer to whether a program computes the same bits two times, from the dumps of both runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from probe.common import log
from probe.common.align.calls import ERROR, PASS
from probe.common.align.dump_pairs import locate
from probe.common.dump import naming
from probe.common.dump.reading.dump import read
from probe.common.environment.environment_file import environment_of_file
from probe.common.errors import MsprobeException
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.common.parallel.tasks import Where
from probe.compare.result import Mode
from probe.compare.runner import pair_tasks, readable, run_pairs
from probe.compare.summary import in_words
from probe.compare.twice.first_bits import How, OtherBits, RepeatedPair, compare_bits
from probe.compare.twice.reasons import Environments, StepBefore, reason

_SHOWN = 5
"""Further calls that are named."""


@dataclass(frozen=True)
class Repetition:
    """Two runs of one program, compared bit for bit."""

    pairs: list[RepeatedPair]
    """One for each process and step, step by step."""
    missing: list[str]
    """The steps, ranks and last records that one run has alone, in words."""

    @property
    def first(self) -> tuple[RepeatedPair, OtherBits] | None:
        """The first call that has other bits by itself, of the first step that has one.

        Of several ranks, one whose result comes from other ranks is named if nothing else differs in this step.
        """
        steps = list(dict.fromkeys(pair.step for pair in self.pairs if pair.found))
        found = [(pair, pair.found[0]) for pair in self.pairs if steps and pair.step == steps[0] and pair.found]
        return min(found, key=lambda each: (each[1].communicates, each[1].place), default=None)

    @property
    def differs(self) -> bool:
        """True if a call has other bits by itself, or one run has a step or rank that the other lacks."""
        return bool(self.missing) or any(pair.found for pair in self.pairs)


def repetition(first: str, second: str, where: Where | None = None) -> Repetition:
    """Compare the folders of two runs of one program bit for bit.

    Raises:
        MsprobeException: they cannot be compared, or recorded no tensor.
    """
    tasks = pair_tasks(locate(first, second), None, None)
    with closing(readable(tasks, run_pairs(where, compare_bits, tasks, None), first, second, log.error)) as compared:
        pairs = list(compared)
    missing = [text for task in tasks for text in task.pair.missing]
    missing += [f"{in_words(pair.step, pair.label)}: {text}" for pair in pairs for text in pair.ended]
    if not missing and not any(pair.tensors for pair in pairs):
        raise MsprobeException(f"{first} and {second}: no tensor was recorded, so that nothing can be compared.")
    return Repetition(pairs, missing)


# --- text


def lines(found: Repetition) -> Iterator[tuple[str, str]]:
    """The answer line by line, each with a style."""
    first = found.first
    if first is not None:
        yield from _first_lines(found, *first)
    elif found.differs:
        yield f"not deterministic: one run has records that the other one lacks; {_compared(found)}", ERROR
    else:
        # All that is computed from them has the same bits, or it would have been found.
        differing = sum(pair.differing for pair in found.pairs)
        but = f" but {differing} with memory to which nothing was written" if differing else ""
        yield f"deterministic: {_compared(found)}; all have the same bits{but}", PASS
    for text in found.missing:
        named = text.replace("the target", "the first run").replace("the golden run", "the second run")
        yield f"  missing: {named}", ERROR


def _compared(found: Repetition) -> str:
    """The numbers of steps, records and tensors that were compared, and the means."""
    steps = dict.fromkeys(pair.step for pair in found.pairs)
    processes = dict.fromkeys(pair.label for pair in found.pairs)
    several = f", {len(processes)} processes" if len(processes) > 1 else ""
    records, tensors = (sum(getattr(pair, name) for pair in found.pairs) for name in ("records", "tensors"))
    kinds = " and ".join(dict.fromkeys(map(_kind, found.pairs)))
    number = f"{len(steps)} step{'s' if len(steps) != 1 else ''}"
    return f"{number}{several}, {records} records and {tensors} tensors compared by {kinds}"


def _kind(pair: RepeatedPair) -> str:
    if pair.mode is Mode.TENSOR:
        return "their elements"
    if pair.mode is Mode.STATISTICS:
        return "statistics and sketches, which may miss a bit"
    return (
        "a CRC-32 of their bytes" if pair.checksum == "md5" else "the xor of their elements, which does not see order"
    )


def _first_lines(found: Repetition, pair: RepeatedPair, first: OtherBits) -> Iterator[tuple[str, str]]:
    is_alone = len({each.label for each in found.pairs}) == 1
    where = in_words(pair.step, "" if is_alone else pair.label) if len(found.pairs) > 1 else ""
    yield f"not deterministic: {where}{': ' if where else ''}{call_words(first)}", ERROR
    for label, text in _labelled(found, pair, first):
        if text:
            yield f"  {label:7} {text}", ""
    for each in pair.found[1 : 1 + _SHOWN]:
        what = reason(each, _environments(pair)).cause
        yield f"  also:   {call_words(each)}: {what}", ""
    other = {each.step for each in found.pairs if each.differing}
    equal = [each.step for each in found.pairs if each.step not in other]
    if equal:
        yield f"  equal:  {', '.join(dict.fromkeys(equal))}", ""


def _labelled(found: Repetition, pair: RepeatedPair, first: OtherBits) -> Iterator[tuple[str, str]]:
    elsewhere = _elsewhere(found, pair, first) if first.how is How.DATA and first.checksum else []
    why = reason(first, _environments(pair), _before(found, pair), elsewhere)
    yield "cause:", why.cause
    yield "effect:", _effect(first)
    yield "line:", first.line
    yield "next:", why.next


def _before(found: Repetition, pair: RepeatedPair) -> StepBefore:
    if pair.step != found.pairs[0].step:
        return StepBefore.RECORDED
    # A dump without the folder of a step is taken for the first one.
    return StepBefore.NONE if pair.step in ("step0", "") else StepBefore.NOT_RECORDED


def _effect(first: OtherBits) -> str:
    if first.how in (How.ONE_SIDE, How.ARGUMENT):
        return ""
    is_size = first.distance is not None and 0 < first.distance < ALTOGETHER
    size = f", with a relative difference of {first.distance:.1e}" if is_size else ""
    what = "all arguments have the same bits" if first.how in (How.RESULT, How.DRAW) else "nothing before it differs"
    return f"{first.item} has other bits{size}; {what}"


def call_words(found: OtherBits) -> str:
    """``layers.1 (Dropout), Functional.dropout.3.forward``."""
    parsed = naming.parse(found.module) if found.module and found.module != found.record else None
    if parsed is None:
        return found.record
    path, _, kind = parsed.base.partition(".")[2].rpartition(".")
    return f"{f'{path} ({kind})' if path else kind}, {found.record}"


def _environments(pair: RepeatedPair) -> Environments:
    first, second = map(environment_of_file, pair.paths)
    return Environments(first or {}, second or {})


def _elsewhere(found: Repetition, pair: RepeatedPair, first: OtherBits) -> list[str]:
    """The steps in which the second run has the tensor that the first run has here; by its checksum."""
    steps: Sequence[RepeatedPair] = [each for each in found.pairs if each.label == pair.label and each is not pair]
    return [
        in_words(each.step, "")
        for each in steps
        if any(item.md5 == first.checksum for record in read(each.paths[1]) for item in record.items())
    ]
