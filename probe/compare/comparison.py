"""One dump against another: match, measure, judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.errors import MsprobeException
from probe.common.match.by_name import by_name
from probe.common.match.calls import Call, calls
from probe.common.match.fuzzy import by_kind
from probe.common.match.mapping import correspondence
from probe.common.match.row import Row
from probe.common.metrics import statistics
from probe.common.metrics.checksums import checksum
from probe.common.metrics.dtypes import may_meet
from probe.common.metrics.missing import UNSUPPORTED
from probe.common.progress import watched
from probe.compare.divergence.aligned_calls import Step, Trees, steps
from probe.compare.divergence.overlap import common_part
from probe.compare.divergence.search import TypePair, unexplained
from probe.compare.divergence.truncation import endings
from probe.compare.options import Options
from probe.compare.result import ComparisonResult, Divergence, Mode
from probe.compare.verdict import Advisor

if TYPE_CHECKING:

    from probe.common.match.layers.proposal import Proposal
    from probe.common.metrics.user_metrics import Algorithm
    from probe.common.progress import Watch
    from probe.compare.tensor_transforms import PostProcessing

_FRAMEWORKS = ("pytorch", "mindspore", "mindtorch")
# What the reference tool holds against what: MindSpore runs against the run they were ported from, never the other way.
_GOLDEN_OF = {
    "pytorch": ("pytorch",),
    "mindspore": ("mindspore", "pytorch"),
    "mindtorch": ("mindspore", "pytorch"),
}

NO_MATCH = "warning: No bench data matched."
NO_TARGET = "warning: No NPU data matched."


class Comparison:
    """Compares two dumps with each other.

    Args:
        target, golden: the dumps.
        options: what the user chose.
        release: free the memory of the dumps' records as soon as their items are made. Nobody can look at the records
            of these dumps afterwards.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """

    def __init__(self, target: Dump, golden: Dump, options: Options | None = None, release: bool = False) -> None:
        self.target, self.golden = target, golden
        self._release = release
        self.options = options or Options()
        _check_frameworks(target, golden, self.options.compat)
        self.across_frameworks = target.framework != golden.framework
        self.debug = target.level == "debug"
        self.derived: dict[str, str] | None = None
        self.proposal: Proposal | None = None
        self._post_processing: PostProcessing | None = None
        if self.options.post_processing is not None:
            from probe.compare.tensor_transforms import load_post_processing

            self._post_processing = load_post_processing(self.options.post_processing)
        self._algorithms: list[Algorithm] = []
        self.watch: Watch | None = None
        """Is told how far `run` is."""
        if self.debug != (golden.level == "debug"):
            raise MsprobeException(
                f"{target.path} has level {target.level!r} and {golden.path} level {golden.level!r}: "
                "saved values (debug.json) are compared with saved values only."
            )

    def run(self, values: bool = True) -> ComparisonResult:
        """Match, measure and judge everything; without `values` real data is compared by its statistics."""
        renumber = not self.debug and not self.options.fuzzy
        # The reference tool forgets the target's side where names are mapped (D3).
        as_mapped = renumber and not (self.options.compat and self.options.maps_names)
        target = calls(self.target, as_mapped)
        golden = calls(self.golden, renumber, target)
        for dump in (self.target, self.golden) if self._release else ():
            dump.release()
        mode = self._mode(target, golden, values)
        rows = self._rows(target, golden)
        ready = self._with_values(rows) if mode is Mode.TENSOR else rows
        for row in ready if self.watch is None else watched(ready, self.watch, "items", len(rows)):
            self._measure(row, mode)
        # What only the golden side has stands at the end and belongs to no record of the target.
        groups = groupby((row for row in rows if row.target is not None), key=attrgetter("record"))
        self._judge([list(group) for _, group in groups], mode)
        stacks, golden_stacks = self.target.stacks, self.golden.stacks
        result = ComparisonResult(
            self.target.path, self.golden.path, mode, self.debug, rows, stacks, golden_stacks, self.derived
        )
        result.proposal = self.proposal
        result.algorithms = tuple(algorithm.column for algorithm in self._algorithms)
        self.add_endings_and_divergence(result, target, golden)
        return result

    def add_endings_and_divergence(self, result: ComparisonResult, target: list[Call], golden: list[Call]) -> None:
        """Say in `result`, which has all rows, where each of the runs ends, and where they part."""
        died = self.target.died, self.golden.died
        result.levels = self.target.level, self.golden.level
        result.endings = endings(target, golden, result.rows, result.levels, died)
        if not self.debug:
            order, trees = [call.record.name for call in golden], (self.target.tree, self.golden.tree)
            part = common_part(result.rows, order, trees, result.levels, result.endings)
            found = steps(part.rows, part.golden_order, part.trees, self._same_names)
            self.add_divergence(result, found, part.level, part.trees)

    def by_statistics(self, calls: list[list[Row]], golden_only: Iterable[Row] = ()) -> None:
        """Measure rows by statistics and judge those of the target, which come call by call."""
        for row in chain(chain.from_iterable(calls), golden_only):
            self._measure(row, Mode.STATISTICS)
        self._judge(calls, Mode.STATISTICS)

    def _judge(self, calls: list[list[Row]], mode: Mode) -> None:
        advisor = Advisor(mode, self.across_frameworks, self.options.compat)
        for rows in calls:
            advisor.judge(rows)

    def add_divergence(
        self,
        result: ComparisonResult,
        calls: list[Step],
        level: str,
        trees: Trees,
        types: Counter[TypePair] | None = None,
    ) -> None:
        """Say in `result` where the runs part, given the calls that both sides can have made; `types` are theirs."""
        found = unexplained(calls, result.mode, level, trees, self._same_names, types)
        if found:
            first = found[0]
            stacks, golden_stacks = result.stacks or {}, result.golden_stacks or {}
            frames = stacks.get(first.record, []), golden_stacks.get(first.golden_record, [])
            result.divergence = Divergence(first, *frames, found[1:])

    @property
    def _same_names(self) -> bool:
        """Whether both sides call the same things the same."""
        options = self.options
        return not (self.across_frameworks or options.fuzzy or options.maps_names or self.proposal)

    def _rows(self, target: list[Call], golden: list[Call]) -> list[Row]:
        options = self.options
        if options.fuzzy:
            rows = by_kind(target, golden)
        else:
            names = correspondence((self.target, self.golden), (target, golden), options)
            self.derived, self.proposal = names.derived, names.proposal
            rows = by_name(target, golden, names.mapping)
        if not options.compat:
            return list(rows)
        found = [row for row in rows if row.target is not None]
        # With mapped items the reference tool does not ask for their types.
        for row in [] if options.maps_items else found:
            n, b = row.target, row.golden
            if n is not None and b is not None and not may_meet(n.dtype, b.dtype, self.across_frameworks):
                row.golden, row.golden_record, row.notes = None, None, ()
        return found

    def _with_values(self, rows: list[Row]) -> Iterator[Row]:
        # With numpy, which takes longer to import than most statistics take to compare.
        from probe.common.metrics import user_metrics
        from probe.compare.tensor_rows import Values

        self._algorithms = user_metrics.load(self.options.algorithms)
        compat, further = self.options.compat, tuple(self._algorithms)
        return Values(self.target, self.golden, compat, further, self._post_processing).measured(rows)

    def _measure(self, row: Row, mode: Mode) -> None:
        n, b = row.target, row.golden
        if mode is Mode.STATISTICS and n is not None and b is not None:
            row.metrics = statistics.compare_items(n, b)
            if n.requires_grad != b.requires_grad:
                row.requires_grad_consistent = self._requires_grad_consistent(n, b)
            return
        if mode is Mode.CHECKSUM:
            row.metrics = (checksum(n), checksum(b))
        elif n is None or b is None:
            row.metrics = statistics.UNMATCHED if mode is Mode.STATISTICS else UNSUPPORTED
        if self._algorithms and len(row.metrics) == len(UNSUPPORTED):
            # What keeps the built-in metrics from being taken keeps these too.
            row.metrics += row.metrics[:1] * len(self._algorithms)
        if n is None or b is None or n.requires_grad != b.requires_grad:
            row.requires_grad_consistent = self._requires_grad_consistent(n, b)
        if n is None:
            row.notes += (NO_TARGET,)
            row.messages, row.verdict = row.notes, "warning"
        elif b is None and (mode is not Mode.CHECKSUM or row.metrics[0] == "N/A"):
            # A missing checksum has a message of its own.
            row.notes += (NO_MATCH,)

    def _requires_grad_consistent(self, n: Item | None, b: Item | None) -> bool:
        of_target = None if n is None else n.requires_grad
        of_golden = None if b is None else b.requires_grad
        if n is not None and b is not None and self.across_frameworks and not self.options.compat:
            # MindSpore says the same thing of parameters only; Advisor has the reason.
            return n.state != PARAMETERS or None in (of_target, of_golden) or of_target == of_golden
        return of_target == of_golden

    def _mode(self, target: list[Call], golden: list[Call], values: bool) -> Mode:
        tasks = self.target.task, self.golden.task
        if tasks[0] != tasks[1]:
            raise MsprobeException(
                f'{self.target.path}: "task" is {tasks[0]!r} and in {self.golden.path} it is {tasks[1]!r}; '
                "collect both with the same task."
            )
        if tasks[0] == "tensor":
            return Mode.TENSOR if values else Mode.STATISTICS
        if tasks[0] != "statistics":
            raise MsprobeException(
                f'{self.target.path}: "task" is {tasks[0]!r}; what can be compared is "statistics" and "tensor".'
            )
        with_checksums = [has_checksum(side) for side in (target, golden)]
        if with_checksums[0] != with_checksums[1]:
            has, lacks = (self.target, self.golden) if with_checksums[0] else (self.golden, self.target)
            raise MsprobeException(
                f"{has.path} holds checksums and {lacks.path} does not; collect both with the same summary_mode."
            )
        return Mode.CHECKSUM if with_checksums[0] else Mode.STATISTICS


def has_checksum(side: Iterable[Call]) -> bool:
    """Whether an item of these calls has one: then dumps are compared by their checksums."""
    return any(item.md5 is not None for call in side for item in call.items)


def _check_frameworks(target: Dump, golden: Dump, compat: bool) -> None:
    for dump in (target, golden):
        if dump.framework not in _FRAMEWORKS:
            raise MsprobeException(
                f'{dump.path}: "framework" is {dump.framework!r}; known: {", ".join(map(repr, _FRAMEWORKS))}.'
            )
    allowed = _GOLDEN_OF[target.framework]
    if compat and golden.framework not in allowed:
        raise MsprobeException(
            f"with --compat a {target.framework} dump ({target.path}) is compared with one of "
            f"{' or '.join(allowed)}, not of {golden.framework} ({golden.path}); leave --compat out, or exchange "
            "-tp and -gp."
        )
