"""``msprobe compare`` of two folders of task ``grad_probe``: gradients by their signs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.api.commands.comparing.divergence import NEVER
from probe.api.commands.question import Line

if TYPE_CHECKING:
    from probe.monitor.gradients.comparing import RankSimilarity


def compared_gradients(args: argparse.Namespace) -> GradientAnswer:
    """Compare, and write the results to the output folder."""
    from probe.monitor.gradients.comparing import compare_runs
    from probe.monitor.gradients.results import write_results

    found = compare_runs(args.target_path, args.golden_path)
    write_results(args.output_path, found)
    is_bad = args.fail_on != NEVER and any(rank.suspicions() for rank in found)
    return GradientAnswer(found, args.output_path, is_bad)


@dataclass(frozen=True)
class GradientAnswer:
    """The similarities of the ranks."""

    ranks: list[RankSimilarity]
    folder: str
    found: bool

    def lines(self) -> Iterator[Line]:
        from probe.monitor.gradients.comparing import lines_of

        yield from map(Line, lines_of(self.ranks))
        yield Line(f"tables and pictures: {self.folder}")

    def as_json(self) -> dict[str, Any]:
        return {
            "ranks": [
                {
                    "rank": each.rank,
                    "total": {str(step): value for step, value in each.line(None)},
                    "suspicious": [suspicion._asdict() for suspicion in each.suspicions()],
                    "notes": each.notes,
                }
                for each in self.ranks
            ]
        }
