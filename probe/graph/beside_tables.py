"""The page of what ``msprobe compare`` compares, from the same comparison that its tables are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from probe.common import log
from probe.common.align.dump_pairs import locate
from probe.common.dump.reading.dump import read
from probe.common.parallel.tasks import Where
from probe.common.progress import ProgressCallback
from probe.compare.comparison import Evidence
from probe.compare.options import Options
from probe.compare.output.summary import Summary
from probe.compare.output.summary_text import print_metrics
from probe.compare.pair import PairTask, compare_and_write
from probe.compare.runner import pair_tasks, readable, run_pairs
from probe.graph.diff import diff_from
from probe.graph.graph import graph_of
from probe.graph.micro_steps import add_micro_steps
from probe.graph.options import GraphOptions
from probe.graph.page.columns import Columns
from probe.graph.page.manifest import Manifest
from probe.graph.rules.probe import PROBE_GRAPH
from probe.graph.run import title, written
from probe.graph.tasks.located import located
from probe.graph.tasks.task import rows_of
from probe.graph.writers.outputs import PageWriter, stem_of
from probe.graph.writers.shown import ShownComparison
from probe.graph.writers.stamps import stamped


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
    options = replace(options, all_divergences=True)
    tasks = pair_tasks(locate(target, golden), output, options, xlsx, tensor_log)
    found: list[Summary] = []
    places, unpaired = located(target, golden)
    names = {(place.step, place.label): place.name for place in places}

    def columns() -> Iterator[ShownComparison]:
        with closing(readable(tasks, run_pairs(where, _compared, tasks, watch), target, golden, left_out)) as outcomes:
            for summary, rows in outcomes:
                found.append(summary)
                rows.place = names[summary.step, summary.label]
                yield ShownComparison(rows)

    manifest = Manifest(title([target], [golden]), PROBE_GRAPH, unpaired)
    with stamped(output) as when:
        page = written(columns(), [PageWriter(manifest, stem_of(output, when), max_megabytes)], manifest)
    return found, page.files[0]


def _compared(task: PairTask, watch: ProgressCallback | None = None) -> tuple[Summary, Columns]:
    """Compare two dumps, write the table, and put the comparison in rows."""
    target, golden = read(task.pair.target), read(task.pair.golden)
    # Before the records are released.
    graphs = graph_of(target), graph_of(golden)
    evidence = Evidence()
    result = compare_and_write(task, target, golden, watch, evidence)
    if task.tensor_log:
        print_metrics(result)
    diff = diff_from(*graphs, task.options, result, evidence)
    assert diff.summary is not None
    for graph in graphs:
        add_micro_steps(graph)
    return diff.summary, rows_of(diff, GraphOptions(task.options))
