"""The ranks of a model that was split, merged into one dump for each copy, and shown with its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probe.common.progress import ProgressCallback
from probe.graph.output.shown import ShownComparison
from probe.graph.page.columns import Columns
from probe.graph.page.prefixes import Prefixes
from probe.graph.page.without_paths import without_paths
from probe.graph.tasks.communication import add_partners
from probe.graph.tasks.task import Task, diff_of_dumps, rows_of
from probe.shards.merge import Merged, merged
from probe.shards.partners import partners
from probe.shards.split import Split
from probe.shards.split_runs import dumps_of, fit_shapes, rank_folders


@dataclass(frozen=True)
class MergedGraphTask(Task):
    """All ranks of one step of one run, or of two, whose folders are its location."""

    splits: tuple[Split, ...] = ()
    """The way in which the target is split, and the golden run."""

    @property
    def paths(self) -> list[str]:
        steps = [path for path in (self.location.target, self.location.golden) if path is not None]
        return [path for step in steps for path in rank_folders(step).values()]

    def compare(self, watch: ProgressCallback | None = None) -> list[ShownComparison]:
        """Every copy of the model, and behind them the ranks of the target that it was made of, each alone."""
        if watch is not None:
            watch("merging", 0, None)
        dumps = dumps_of(self.location.target)
        copies = merged(dumps, self.splits[0], self.location.target)
        others: list[Merged | None] = [None] * len(copies)
        if self.location.golden is not None:
            others = [*merged(dumps_of(self.location.golden), self.splits[1], self.location.golden)]
        for copy, other in zip(copies, others):
            if other is not None:
                fit_shapes(copy, other)
        found = [self._copy(copy, other) for copy, other in zip(copies, others)]
        ranks = {rank: len(found) + index for index, rank in enumerate(sorted(dumps))}
        rows: dict[int, dict[str, int]] = {}
        exchanged = partners(dumps)
        for rank in sorted(dumps):
            of_rank = without_paths(diff_of_dumps(dumps[rank], None, self.options), Prefixes(self.options.strip_paths))
            columns = rows_of(of_rank, self.options, f"rank {rank}")
            rows[rank] = _rows(columns, columns.name)
            columns.details.is_of_part = True
            add_partners(exchanged, rank, columns)
            found.append(ShownComparison(columns, is_part=True))
        for copy, shown in zip(copies, found):
            _add_parts(copy, shown.columns, ranks, rows)
            shown.columns.notes += exchanged.unpaired_of(copy.ranks)
        return found

    def _copy(self, copy: Merged, other: Merged | None) -> ShownComparison:
        prefixes = Prefixes(self.options.strip_paths)
        diff = diff_of_dumps(copy.dump, None if other is None else other.dump, self.options)
        diff.notes += [*copy.notes, *(other.notes if other is not None else ())]
        if diff.summary is not None:
            label = f"copy{copy.dump.rank}" if self.splits[0].dp > 1 else ""
            diff.summary = replace(diff.summary, step=self.location.step, label=label)
        diff = without_paths(diff, prefixes)
        columns = rows_of(diff, self.options)
        said = columns.details.merged
        sides = [("", copy, columns.name)]
        if other is not None:
            sides.append(("golden run: ", other, columns.golden_name))
        for side, each, names in sides:
            for name, row in _rows(columns, names).items():
                if name in each.sentences:
                    said.setdefault(row, []).extend(f"{side}{sentence}" for sentence in each.sentences[name])
        return ShownComparison(columns, diff if self.keeps_diff else None)


def _rows(columns: Columns, names: NDArray[np.int64]) -> dict[str, int]:
    """The row of each name of one side."""
    return {columns.texts[name]: row for row, name in enumerate(names.tolist()) if name >= 0}


def _add_parts(
    copy: Merged, columns: Columns, comparisons: Mapping[int, int], rows: Mapping[int, Mapping[str, int]]
) -> None:
    """Say of each row of a copy where it is in the ranks that it was made of."""
    for name, row in _rows(columns, columns.name).items():
        parts = [
            (f"rank {rank}", comparisons[rank], rows[rank][there])
            for rank, there in copy.origins.get(name, ())
            if there in rows[rank]
        ]
        if parts:
            columns.details.parts[row] = parts
