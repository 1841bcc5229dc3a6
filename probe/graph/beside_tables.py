"""The page of what ``msprobe compare`` compares, from the same comparison that its tables are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from probe.common import log
from probe.common.dump.reading.dump import Dump
from probe.common.parallel.tasks import Where
from probe.common.progress import ProgressCallback
from probe.compare.evidence import Evidence, Options, Summary, followed, summaries_and
from probe.graph.diff import diff_from
from probe.graph.graph import Graph, graph_of
from probe.graph.micro_steps import add_micro_steps
from probe.graph.options import GraphOptions
from probe.graph.output.formats import PageWriter, stem_of
from probe.graph.output.shown import ShownComparison
from probe.graph.output.stamps import stamped
from probe.graph.page.columns import Columns
from probe.graph.page.manifest import Manifest
from probe.graph.rules.probe import PROBE_GRAPH
from probe.graph.run import title, written
from probe.graph.tasks.located import located
from probe.graph.tasks.task import rows_of


def summaries_and_page(
    target: str,
    golden: str,
    output: str,
    options: Options,
    xlsx: bool = False,
    *,
    where: Where | None = None,
    tensor_log: bool = False,
    watch: ProgressCallback | None = None,
    left_out: Callable[[str], None] = log.error,
    max_megabytes: float = 40,
) -> tuple[list[Summary], str]:
    """Compare two files or folders as `probe.compare.runner.summaries` does, and write the page besides.

    Returns:
        The summary of each pair, in order, and the page.

    Raises:
        MsprobeException: the two cannot be compared; with several ranks, none can.
        OSError: a file cannot be written.
    """
    compared = summaries_and(
        _prepared,
        target,
        golden,
        output,
        options,
        xlsx,
        where=where,
        tensor_log=tensor_log,
        watch=watch,
        left_out=left_out,
    )
    found: list[Summary] = []
    locations, unpaired = located(target, golden)
    names = {(location.step, location.label): location.name for location in locations}

    def columns() -> Iterator[ShownComparison]:
        with closing(compared) as outcomes:
            for summary, rows in outcomes:
                found.append(summary)
                rows.dump_name = names[summary.step, summary.label]
                yield ShownComparison(rows)

    manifest = Manifest(title([target], [golden]), PROBE_GRAPH, unpaired)
    with stamped(output) as when:
        page = written(columns(), [PageWriter(manifest, stem_of(output, when), max_megabytes)], manifest)
    return list(followed(found)), page.files[0]


def _prepared(target: Dump, golden: Dump) -> Callable[[Evidence], Columns]:
    """The graphs of two dumps, whose records are there still, waiting for what is found of them."""
    return partial(_rows, graph_of(target), graph_of(golden))


def _rows(graph: Graph, golden: Graph, evidence: Evidence) -> Columns:
    """A comparison in rows."""
    diff = diff_from(graph, golden, evidence)
    for each in (graph, golden):
        add_micro_steps(each)
    return rows_of(diff, GraphOptions(evidence.options))
