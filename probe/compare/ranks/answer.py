"""The ranks of one run: replicas that differ, gradients and communication that were reduced otherwise than they say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Optional, Union

from probe.common.align.calls import ERROR, PASS, WARNING
from probe.common.dump.naming import FORWARD
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.runs import DumpLocation, find_dumps, warn_of_left_out
from probe.common.environment.environment_file import environment_of_file
from probe.common.errors import MsprobeException
from probe.compare.ranks.combination import Combination, in_words, listed
from probe.compare.ranks.rank_facts import RankFacts, facts_of
from probe.compare.ranks.reductions import Reductions, WrongReduction, check_reductions
from probe.compare.ranks.replicas import ReducedGradient, StepReplicas, replicas_of, rounded, usual

_SHOWN = 5
"""Findings that are printed, and names in one of them."""
_SAME_FACTOR = 5e-3
"""The relative difference of factors that are the same: half a unit of the third digit, to which they are rounded."""

Step = Union[int, None]
"""The number of a step; ``None`` where no folder says so."""


@dataclass(frozen=True)
class RankFinding:
    """Something that ranks of one run should have in common, or a reduction that gave something else."""

    step: Step
    ranks: tuple[int, ...]
    subject: str
    """The record of the call, or the parameter."""
    text: str
    names: tuple[str, ...] = ()
    """All parameters of which the same holds."""
    distance: Optional[float] = None  # noqa: UP045
    """The relative distance from what was expected, or of two ranks."""
    line: str = ""
    """The line of the program that made the call."""
    next: str = ""


@dataclass
class RankAnswer:
    """The findings on the ranks of one run."""

    ranks: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)
    findings: list[RankFinding] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    """The parts that were compared, and those that are right, in words."""
    checked: int = 0
    """Results of communication that were compared with their inputs, and gradients of replicas."""
    replicas: int = 0

    @property
    def is_judged(self) -> bool:
        """True if anything could be compared."""
        return bool(self.checked or self.replicas or self.findings)

    def as_json(self) -> dict[str, Any]:
        """The answer for machines."""
        return {
            "ranks": list(self.ranks),
            "steps": self.steps,
            "findings": [asdict(each) for each in self.findings],
            "facts": self.facts,
            "checked": self.checked,
            "replicas": self.replicas,
        }


def compare_ranks(run: str) -> RankAnswer:
    """Compare the ranks of a run with each other.

    Raises:
        MsprobeException: it has no two ranks, or cannot be read.
    """
    dumps = find_dumps(run)
    warn_of_left_out(dumps)
    located = [each for each in dumps.dumps if each.rank is not None]
    ranks = tuple(sorted({each.rank for each in located if each.rank is not None}))
    if len(ranks) < 2:
        raise MsprobeException(f"{run} holds {len(ranks)} rank{'s' * (len(ranks) != 1)}; --ranks needs two or more.")
    answer = RankAnswer(ranks)
    history = _History(answer, _world(located, ranks))
    for step, of_step in groupby(sorted(located, key=_by_step), key=lambda each: each.step):
        answer.steps.append(step)
        history.add(step, [_facts(each) for each in of_step])
    history.end()
    return answer


def _world(located: Sequence[DumpLocation], ranks: Sequence[int]) -> list[int]:
    """The ranks of the run: those that were recorded, and at least one more if the environment counts more."""
    environment = environment_of_file(read(located[0].path).path) or {}
    layout = environment.get("layout")
    size = layout.get("world_size") if isinstance(layout, Mapping) else None
    # A call without a group is not checked if one rank is missing; no file decides how long the list is.
    return sorted({*ranks, *range(min(size, len(ranks) + 1) if type(size) is int else 0)})


def _by_step(location: DumpLocation) -> tuple[int, int]:
    return (-1 if location.step is None else location.step), location.rank or 0


def _facts(location: DumpLocation) -> RankFacts:
    dump = read(location.path)
    found = facts_of(dump, location.rank or 0)
    dump.release()
    return found


class _History:
    """The findings, collected step by step."""

    def __init__(self, answer: RankAnswer, world: Sequence[int]) -> None:
        self._answer, self._world = answer, world
        self._equal_before: set[str] = set()
        """Parameters that were the same on all ranks in a step before."""
        self._unreduced: dict[str, str] = {}
        """The parameters whose gradients were not reduced in a step before, and how."""
        self._told: set[str] = set()
        """Keys of the findings of steps before, which are not repeated for each step."""
        self._unchecked: Counter[str] = Counter()
        self._gradients: Counter[str] = Counter()
        self._communication = self._by_norms = 0
        self._seen = self._of_same_data = 0
        """The gradients of all steps, and those that are the same on all ranks before they are reduced."""
        self._apart: dict[str, float] = {}
        self._drift = 0, 0.0
        """The number of replicas that differ in the last step, and the largest relative distance."""

    def add(self, step: Step, ranks: Sequence[RankFacts]) -> None:
        """Take the ranks of the next step."""
        by_rank = {each.rank: each for each in ranks}
        reductions, replicas = check_reductions(ranks, self._world), replicas_of(ranks)
        self._communication += reductions.checked
        self._by_norms += reductions.by_norms
        self._unchecked.update(reductions.unchecked)
        self._answer.replicas += len(replicas.equal)
        self._drifted(step, replicas)
        self._wrong(step, reductions.wrong, by_rank)
        self._reduced(step, replicas, reductions, by_rank)
        self._seen += len(replicas.gradients)
        # Ranks that share a layer have the same data on purpose, and other parts of its parameters.
        self._of_same_data += sum(each.is_of_same_data for each in replicas.gradients if not replicas.apart)
        self._equal_before |= {each.name for each in replicas.equal}

    def end(self) -> None:
        """Say what was compared."""
        answer = self._answer
        answer.checked = self._communication + self._by_norms + sum(self._gradients.values())
        if answer.replicas:
            answer.facts.append(f"{_count(answer.replicas, 'parameter')} with the same bits on all of their ranks")
        if self._apart:
            name, size = max(self._apart.items(), key=lambda each: each[1])
            answer.facts.append(
                f"{_count(len(self._apart), 'parameter')} with other values on each rank since the first step "
                f"(relative distance up to {size:.1e}, {name}): parts of a split model, or replicas that "
                "never were the same"
            )
        if self._drift[0]:
            answer.facts.append(
                f"{_count(self._drift[0], 'parameter')} with the same bits at first and other ones in the end "
                f"(relative distance up to {self._drift[1]:.1e})"
            )
        if self._of_same_data and self._of_same_data == self._seen:
            answer.facts.append(
                "all gradients are the same on all ranks before a reduction: the ranks read the same data"
            )
        for what, count in self._gradients.most_common():
            answer.facts.append(f"{_count(count, 'gradient')} of replicas, of which the optimizer took {what}")
        if self._communication:
            answer.facts.append(f"{_count(self._communication, 'result')} of communication compared with the inputs")
        if self._by_norms:
            norms = "of which norms alone were compared, because their parts are in one tensor"
            answer.facts.append(f"{_count(self._by_norms, 'call')} {norms}")
        for why, count in self._unchecked.most_common():
            answer.facts.append(f"{_count(count, 'call')} not checked: {why}")

    # --- parameters

    def _drifted(self, step: Step, replicas: StepReplicas) -> None:
        drifted = {name: size for name, size in replicas.apart.items() if name in self._equal_before}
        for name, size in replicas.apart.items():
            if name not in drifted and step == self._answer.steps[0]:
                self._apart[name] = size
        new = {name: size for name, size in drifted.items() if f"drift {name}" not in self._told}
        self._told |= {f"drift {name}" for name in drifted}
        unexplained = {name: size for name, size in new.items() if name not in self._unreduced}
        if unexplained:
            worst = max(unexplained, key=lambda name: unexplained[name])
            self._find(
                step, self._answer.ranks, worst,
                f"replicas differ: {_names(unexplained)} had the same bits on all ranks before; their recorded "
                "gradients do not show why",
                names=tuple(unexplained), distance=unexplained[worst],
            )  # fmt: skip
        if drifted:
            self._drift = len(drifted), max(drifted.values())
        never = [name for name in replicas.reduced_apart if name not in self._equal_before]
        if never and "never" not in self._told:
            self._told.add("never")
            self._find(
                step, self._answer.ranks, never[0],
                f"replicas differ: {_names(never)} have other values on each rank, though their optimizers take "
                "the same gradient: they never were the same",
                names=tuple(never), distance=max(replicas.apart[name] for name in never),
                next="broadcast the parameters from one rank, or give all ranks one seed before the model is made",
            )  # fmt: skip

    # --- gradients

    def _reduced(
        self, step: Step, replicas: StepReplicas, reductions: Reductions, by_rank: dict[int, RankFacts]
    ) -> None:
        expected = usual(replicas.gradients)
        found: dict[tuple[str, tuple[int, ...]], list[ReducedGradient]] = {}
        for gradient in replicas.gradients:
            fault = self._fault(gradient, expected)
            if fault:
                found.setdefault((fault, gradient.ranks), []).append(gradient)
            else:
                self._gradients[self._right(gradient)] += 1
        for (text, ranks), gradients in found.items():
            names = [each.name for each in gradients]
            self._unreduced.update(dict.fromkeys(names, text))
            if f"{text} {names}" in self._told:
                continue
            self._told.add(f"{text} {names}")
            worst = max(gradients, key=lambda each: each.distance)
            self._find(
                step, ranks, names[0], f"gradient of {_names(names)}: {text}",
                names=tuple(names), distance=worst.distance or None,
            )  # fmt: skip
        self._repeated(step, replicas, reductions, by_rank)

    def _fault(self, gradient: ReducedGradient, expected: Combination | None) -> str:
        """The fault of a gradient in words; empty if none is known."""
        every = gradient.ranks
        what = {rank: found for rank, found in gradient.what.items() if found is not None}
        if not gradient.are_equal:
            if what and all(found.ranks == (rank,) for rank, found in what.items()):
                return "each rank took its own: never reduced"
            takers: dict[str, list[int]] = {}
            for rank, combined in what.items():
                takers.setdefault(in_words(combined, rank, every), []).append(rank)
            words = [f"{_ranks(those)} {text}" for text, those in takers.items()]
            return f"replicas took other gradients: {' and '.join(words) or 'no sum of those of the ranks'}"
        first = next(iter(what.values()), None)
        if first is None:
            return ""
        if len(first.ranks) < len(every):
            return f"all ranks took {in_words(first, -1, every)}"
        count = len(every)
        # A program that has as many micro-batches as ranks divides the mean by their number, too.
        is_divided_twice = first.factor == 1 / count**2 and gradient.micro_batches != count
        if first.factor == count or is_divided_twice:
            return f"all ranks took {in_words(first, -1, every)}"
        if expected is None or expected.ranks != every:
            return ""
        if _is_mean_of_sum(first.factor, expected.factor, count):
            return (
                f"all ranks took {in_words(first, -1, every)}, and of most parameters {in_words(expected, -1, every)}"
            )
        return ""

    def _right(self, gradient: ReducedGradient) -> str:
        first = next((found for found in gradient.what.values() if found is not None), None)
        if first is None:
            return "the same on all ranks"
        return in_words(rounded(first), -1, gradient.ranks)

    def _repeated(
        self, step: Step, replicas: StepReplicas, reductions: Reductions, by_rank: dict[int, RankFacts]
    ) -> None:
        """Sums of gradients that were the same on all ranks, as of a mean that is summed again."""
        calls = [(call, name) for call, name in reductions.equal_inputs if f"repeated {name}" not in self._told]
        if not calls:
            return
        self._told |= {f"repeated {name}" for _, name in calls}
        call = calls[0][0]
        names = list(dict.fromkeys(name for _, name in calls))
        self._find(
            step, self._answer.ranks, call.record,
            f"reduced two times: {call.api} sums gradients that are the same on all ranks already ({_names(names)})",
            names=tuple(names), line=by_rank[call.rank].line(call.record),
            next="one of both reductions is too much: DistributedDataParallel, or the call",
        )  # fmt: skip

    # --- communication

    def _wrong(self, step: Step, wrong: Sequence[WrongReduction], by_rank: dict[int, RankFacts]) -> None:
        """One finding for the calls of a step that returned the same wrong thing."""
        alike: dict[str, list[WrongReduction]] = {}
        for each in wrong:
            # A rank's own tensor is another one on each rank.
            found = "what each rank itself gave: never reduced" if each.found.endswith("never reduced") else each.found
            text = f"returned {found or 'no sum over any of its ranks'}; expected {each.expected} over ranks "
            alike.setdefault(f"{text}{listed(each.ranks)}", []).append(each)
        for text, calls in alike.items():
            if f"wrong {text}" in self._told:
                continue
            self._told.add(f"wrong {text}")
            first = calls[0]
            records = list(dict.fromkeys(each.record for each in calls))
            ranks = tuple(sorted({each.rank for each in calls}))
            self._find(
                step, ranks, first.record, text, names=tuple(records), distance=first.distance,
                line=by_rank[first.rank].line(first.record),
            )  # fmt: skip

    def _find(self, step: Step, ranks: tuple[int, ...], subject: str, text: str, **more: Any) -> None:
        self._answer.findings.append(RankFinding(step, ranks, subject, text, **more))


def _is_mean_of_sum(factor: float, usual: float, count: int) -> bool:
    """True if one of two gradients is a sum over ranks and the other a mean, by the factors of both.

    Another ratio is no fault: parts of a model are clipped by norms of their own.
    """
    return any(math.isclose(factor, usual * each, rel_tol=_SAME_FACTOR) for each in (count, 1 / count))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _names(names: Sequence[str] | dict[str, float]) -> str:
    shown = list(names)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


# --- text


def lines(answer: RankAnswer) -> Iterator[tuple[str, str]]:
    """The answer line by line, each with a style."""
    if not answer.findings:
        text = "no difference between ranks that should agree" if answer.is_judged else _UNTOLD
        yield text, PASS if answer.is_judged else WARNING
    for number, each in enumerate(answer.findings[:_SHOWN]):
        where = ", ".join(filter(None, (f"step {each.step}" if each.step is not None else "", _ranks(each.ranks))))
        yield f"{'first finding: ' if not number else 'also: '}{where}: {_text(each)}", WARNING if number else ERROR
        if each.distance:
            yield f"  effect: relative distance {each.distance:.1e}", ""
        for label, text in (("line:", each.line), ("next:", each.next)):
            if text:
                yield f"  {label:7} {text}", ""
    if len(answer.findings) > _SHOWN:
        yield f"  and {len(answer.findings) - _SHOWN} more", ""
    yield f"{_count(len(answer.steps), 'step')} of {_ranks(answer.ranks)}:", ""
    yield from ((f"  {text}", "") for text in answer.facts)


_UNTOLD = (
    "cannot be told: the ranks have no parameter in common, and no communication whose parts are recorded; record with "
    "sketches"
)


def _text(found: RankFinding) -> str:
    if not found.subject.endswith(f".{FORWARD}"):
        return found.text
    more = len([name for name in found.names if name.endswith(f".{FORWARD}")]) - 1
    return f"{found.subject}{f' and {more} more' if more > 0 else ''} {found.text}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks)}"
