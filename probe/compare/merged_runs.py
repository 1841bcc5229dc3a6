"""Runs of a split model, compared after the ranks of each step were merged to one dump for each copy of the model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from probe.common.align.calls import Row
from probe.common.align.dump_pairs import DumpPair
from probe.common.dump.reading.records import Item
from probe.common.numerics.formats import unit_roundoff
from probe.common.progress import ProgressCallback
from probe.compare.comparison import PairTask, compare_pair
from probe.compare.result import ComparisonResult, Divergence, MergedRanks, Unexplained
from probe.compare.summary import Summary, summarise
from probe.shards.merge import Merged, merged
from probe.shards.split import PartOfItem, Split
from probe.shards.split_runs import StepFolders, check_folders, common_steps, dumps_of, fit_shapes, rank_folders


class MergedPairTask(PairTask, frozen=True):
    """All ranks of one step of two runs; the paths of its pair are the folders of the step."""

    splits: tuple[Split, ...] = ()
    """The way in which the target is split, and the golden run."""

    @classmethod
    def of(cls, task: PairTask, splits: Sequence[Split]) -> MergedPairTask:
        """The task with the ranks merged."""
        return cls(**{name: getattr(task, name) for name in task.__struct_fields__}, splits=tuple(splits))

    @property
    def paths(self) -> list[str]:
        """The folders of all ranks."""
        return [path for step in (self.pair.target, self.pair.golden) for path in rank_folders(step).values()]


def merged_pairs(target: str, golden: str) -> list[DumpPair]:
    """The steps that two runs have in common; the last says which steps one of them has alone.

    Raises:
        MsprobeException: a path is no folder, or there is no such step.
    """
    check_folders((target, golden))
    steps, alone = common_steps(target, golden)
    pairs = [_pair(each, golden) for each in steps]
    return [*pairs[:-1], replace(pairs[-1], missing=tuple(alone))]


def _pair(steps: StepFolders, golden: str) -> DumpPair:
    return DumpPair(steps.target, steps.golden or golden, step=steps.name)


def summarise_merged(task: MergedPairTask, watch: ProgressCallback | None = None) -> list[Summary]:
    """Merge the ranks of a step, and compare each copy of the model; tables are written as for any other pair."""
    if watch is not None:
        watch("merging", 0, None)
    target, golden = (
        merged(dumps_of(step), split, step) for step, split in zip((task.pair.target, task.pair.golden), task.splits)
    )
    for copy, other in zip(target, golden):
        fit_shapes(copy, other)
    return [_summary(task, copy, other, watch) for copy, other in zip(target, golden)]


def _summary(task: MergedPairTask, copy: Merged, other: Merged, watch: ProgressCallback | None) -> Summary:
    label = f"copy{copy.dump.rank}" if task.splits[0].dp > 1 else ""
    of_copy = replace(task, pair=replace(task.pair, label=label))
    result = compare_pair(of_copy, watch, (copy.dump, other.dump)).result
    if result.divergence is not None:
        result.divergence = _with_ranks(result.divergence, result, copy, other)
    return summarise(result)


def _with_ranks(divergence: Divergence, result: ComparisonResult, copy: Merged, other: Merged) -> Divergence:
    """The divergence with the ranks that make its call."""
    first = divergence.first
    side, record = (copy, first.record) if first.record else (other, first.golden_record)
    ranks = sorted({rank for rank, _ in side.origins.get(record, ())})
    if not ranks:
        return divergence
    row = next((row for row in result.rows if row.target is not None and row.target.name == first.item), None)
    differing = [] if row is None or not first.record else differing_ranks(row, first, copy, other)
    return replace(divergence, merged=MergedRanks(ranks, differing))


def differing_ranks(row: Row, found: Unexplained, copy: Merged, other: Merged) -> list[int]:
    """The ranks of the target whose part of an item differs from the golden run; none where values do not tell.

    Parts are compared one by one where both sides are split alike. A golden run that is split otherwise, or not at all,
    has no such parts; then a part differs that has values beyond those of the whole.
    """
    target, golden = row.target, row.golden
    parts = None if target is None else copy.items.get(target.name)
    if parts is None or golden is None:
        return []
    allowed = max(found.allowed or 0.0, 4.0 * (unit_roundoff(golden.dtype) or unit_roundoff("float32")))
    theirs = other.items.get(golden.name)
    if theirs is not None and [part.shape for part in parts.parts] == [part.shape for part in theirs.parts]:
        pairs = zip(parts.parts, theirs.parts)
        return [mine.rank for mine, part in pairs if _differs(mine, part, allowed)]
    if parts.how != "split":
        return []
    return [part.rank for part in parts.parts if _is_beyond(part, golden, allowed)]


def _differs(mine: PartOfItem, theirs: PartOfItem, allowed: float) -> bool:
    """True if statistics of two parts differ by more than is allowed, relative to the larger."""
    pairs = ((mine.max, theirs.max), (mine.min, theirs.min), (mine.norm, theirs.norm))
    numbers = [(one, another) for one, another in pairs if _are_numbers(one, another)]
    return any(abs(one - another) > allowed * max(abs(one), abs(another)) for one, another in numbers)


def _is_beyond(part: PartOfItem, whole: Item, allowed: float) -> bool:
    """True if a part has a value or a norm that is larger than those of the whole."""
    if not _are_numbers(part.max, part.min, part.norm, whole.max, whole.min, whole.norm):
        return False
    more = allowed * max(abs(whole.max), abs(whole.min))
    return bool(part.max > whole.max + more or part.min < whole.min - more or part.norm > whole.norm * (1.0 + allowed))


def _are_numbers(*values: object) -> bool:
    return all(type(value) is float and value == value for value in values)
