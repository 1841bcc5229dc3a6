"""Are the weights that sample those that were trained? Fingerprints of an engine compared with those of a trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probe.checkpoint.comparison import compare_contents
from probe.checkpoint.fingerprints.ranks import Steps
from probe.checkpoint.report import DIFFERENT, MISSING, Checkpoint, Parameter, Report, counted
from probe.common.errors import MsprobeException

_MOST_STEPS = 100
"""Earlier steps that are looked at; a guess: an engine that is so far behind has other troubles."""
EQUAL, STALE, DIFFER, UNTOLD = "equal", "stale", "differ", "cannot be told"


@dataclass(frozen=True)
class Landing:
    """The weights of an engine at one step, compared with those that the trainer had then."""

    step: int | None
    verdict: str
    """``equal``, ``stale``, ``differ`` or ``cannot be told``."""
    sentence: str
    report: Report
    """The comparison with the trainer's weights of this step; the engine is the first side."""
    stale: Mapping[str, int] = field(default_factory=dict)
    """For each parameter of the engine that is the trainer's of an earlier step, this step."""


def landings(trainer: str, engine: str) -> list[Landing]:
    """Compare each fingerprint of an engine with that of the trainer at the same step.

    Args:
        trainer: the file or folder of its fingerprints; one without a step is compared with all.
        engine: the file or folder of the engine's.

    Raises:
        MsprobeException: one cannot be read, or no step is common.
    """
    trained, sampled = Steps(trainer), Steps(engine)
    found = []
    for step in sampled.numbers:
        at = step
        if at not in trained.numbers:
            at = None if None in trained.numbers else trained.numbers[-1] if step is None else step
        if at in trained.numbers:
            found.append(_landing(step, sampled.read(step), at, trained))
    if not found:
        raise MsprobeException(
            f"{engine}: its steps are {_listed(sampled.numbers)} and those of {trainer} {_listed(trained.numbers)}; "
            "give fingerprints of one step of both."
        )
    return found


def _listed(steps: Sequence[int | None]) -> str:
    return ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")


def _landing(step: int | None, engine: Checkpoint, at: int | None, trained: Steps) -> Landing:
    report = compare_contents(engine, trained.read(at))
    where = "" if step is None else f"step {step}: "
    if not report.found:
        how = next((f" ({each.how})" for each in report.parameters if each.how and each.name and each.other_name), "")
        return Landing(step, EQUAL, f"{where}the engine samples with the trained weights{how}", report)
    bad = [each for each in report.parameters if not each.is_fine]
    stale = _stale(engine, bad, at, trained)
    if stale:
        return Landing(step, STALE, where + _stale_sentence(stale, bad, report, at), report, stale)
    if report.answer != DIFFERENT:
        return Landing(step, UNTOLD, f"{where}{report.why}", report)
    return Landing(step, DIFFER, f"{where}the engine's weights are not the trained ones: {report.why}", report)


def _stale(engine: Checkpoint, bad: list[Parameter], at: int | None, trained: Steps) -> dict[str, int]:
    """The newest earlier step whose weights the engine still has, for each parameter that differs and has one."""
    left = {(each.name, each.other_name) for each in bad if each.name and each.other_name}
    found: dict[str, int] = {}
    earlier = [step for step in trained.numbers if step is not None and at is not None and step < at]
    for step in earlier[: -_MOST_STEPS - 1 : -1]:
        if not left:
            break
        for each in compare_contents(engine, trained.read(step)).parameters:
            if (each.name, each.other_name) in left and each.is_fine:
                left.discard((each.name, each.other_name))
                found[each.other_name if each.other_name else each.name] = step
    return found


def _stale_sentence(stale: Mapping[str, int], bad: list[Parameter], report: Report, at: int | None) -> str:
    total = sum(1 for each in report.parameters if each.name and each.other_name)
    steps = Counter(stale.values())
    of_steps = "; ".join(
        f"{count if count < total else 'all'} of {counted(total, 'parameter')} {'is' if count == 1 else 'are'} the "
        f"trainer's of step {step}, and not of step {at}"
        for step, count in sorted(steps.items())
    )
    first = next(iter(stale))
    others = [each for each in bad if (each.other_name or each.name) not in stale]
    more = ""
    if others:
        lost = sum(each.verdict == MISSING for each in others)
        differ = f"{len(others)} differ in another way, the first {others[0].shown}"
        more = f"; {lost} missing" if lost == len(others) else f"; {differ}"
    return f"{of_steps}; the first is {first}{more}"
