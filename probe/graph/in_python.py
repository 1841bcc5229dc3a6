"""Graphs for Python and notebooks: what ``msprobe graph_visualize`` shows, as objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from typing import Union

from probe.common import harmless_text, log
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.runs import only_dump_in
from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import Where
from probe.common.progress import ProgressCallback
from probe.compare.evidence import Divergence, Evidence, Options, Summary, first_of, followed, summaries_and
from probe.graph.diff import GraphDiff, diff_from
from probe.graph.graph import Graph, graph_beside, graph_of
from probe.graph.options import AUTO, GraphOptions, add_micro_steps
from probe.graph.output import PageData, PageWriter, ShownComparison, html, stamped, stem_of, write_page
from probe.graph.page.columns import Columns
from probe.graph.page.manifest import Manifest
from probe.graph.page.prefixes import Prefixes
from probe.graph.page.without_paths import without_paths
from probe.graph.pairing import load_pairs
from probe.graph.rules import PROBE_GRAPH, GraphRules
from probe.graph.shown_runs import GraphReport, Plan, planned, title, written
from probe.graph.tasks import GraphTask, diff_of_task, located, rows_of

Path = Union[str, "os.PathLike[str]"]

_SHOWN_MEGABYTES = 8.0
"""The largest page that a notebook keeps in its cell."""


def open_graph(path: Path, micro_step: str | int = AUTO) -> Graph:
    """The calls of one dump as a tree in order of execution.

    Args:
        path: dump.json or a journal, the folder that holds one of them, or a step or a run of one process.
        micro_step: ``auto``, ``off`` or the number of micro steps.

    Raises:
        FileCheckException: there is nothing of the kind, or there are several dumps.
        DumpFormatError: a file is damaged; the message names it and the place.

    Example:
        >>> graph = probe.open_graph("run_a/step0/rank0")  # doctest: +SKIP
        >>> graph.names[0], len(graph)  # doctest: +SKIP
        ('Functional.linear.0.forward', 27)
    """
    graph = graph_of(read(only_dump_in(os.fspath(path), "see all of them with probe.graph_diff").path))
    add_micro_steps(graph, micro_step)
    return graph


@dataclass(frozen=True, repr=False)
class GraphView:
    """Dumps as graphs, or pairs of dumps beside each other; a notebook shows the page."""

    diffs: list[GraphDiff]
    """One for each pair of ranks and steps, in order."""
    unpaired: list[str]
    """A sentence for each dump that has nothing beside it."""
    _plan: Plan = field(repr=False)

    @property
    def divergence(self) -> Divergence | None:
        """First divergence: record, reason, cause, stacks; ``None`` if nothing diverges."""
        first = first_of(self._summaries)
        return None if first is None else first.divergence

    @property
    def answer(self) -> list[str]:
        """First lines of ``msprobe compare``: the divergence and its cause, or that there is none."""
        return self._page[1].verdict

    @property
    def first(self) -> tuple[str | None, str | None] | None:
        """The first divergence as names of nodes of target and golden run; ``None`` of a side without such a call.

        By the rules of msProbe it is the first node that these call an error, or else warn of.
        """
        found = first_of(self._summaries)
        if found is not None and found.divergence is not None:
            return found.divergence.first.record or None, found.divergence.first.golden_record or None
        if self._summaries:
            return None
        report = self._page[1]
        return None if report.first is None else report.first_names

    @property
    def _summaries(self) -> list[Summary]:
        return [diff.summary for diff in self.diffs if diff.summary is not None]

    def to_html(self, path: Path, max_megabytes: float = 40) -> str:
        """Write the page.

        Args:
            path: the file, ``something.html``.
            max_megabytes: a page that is larger becomes a folder of that name, without ``.html``.

        Returns:
            The file to open.

        Raises:
            MsprobeException: `path` does not end in ``.html``.
            OSError: it cannot be written.
        """
        text = os.fspath(path)
        if not text.endswith(".html"):
            raise MsprobeException(f"{text}: a page is a file that ends in .html.")
        return write_page(self._page[0], text[: -len(".html")], max_megabytes)

    @cached_property
    def _page(self) -> tuple[PageData, GraphReport]:
        options = self._plan.tasks[0].options
        manifest = Manifest(self._plan.title, options.rules, list(self.unpaired))
        writer = PageWriter(manifest)
        locations = [task.location for task in self._plan.tasks]
        prefixes = Prefixes(options.strip_paths)
        diffs = (without_paths(diff, prefixes) for diff in self.diffs)
        found = (ShownComparison(rows_of(diff, options, at.run_name, at.name)) for diff, at in zip(diffs, locations))
        result = written(found, [writer], manifest)
        return writer.page(), result

    def __repr__(self) -> str:
        nodes = sum(len(diff.target) for diff in self.diffs)
        return f"<GraphView: {nodes} nodes, {self.answer[0]}>"

    def _repr_html_(self) -> str:
        page, report = self._page
        if page.size > _SHOWN_MEGABYTES * 1_000_000:
            more = f"The page has {page.size / 1_000_000:.0f} MB, too much for a notebook: write it with to_html(path)."
            return "".join(map(harmless_text.paragraph, [*report.verdict, more]))
        style = "width:100%;height:720px;border:1px solid #8884"
        # Without the notebook's origin: names come from dumps, and these from anywhere.
        sandbox = 'sandbox="allow-scripts allow-downloads"'
        return f'<iframe {sandbox} style="{style}" srcdoc="{escape(html(page))}"></iframe>'


def graph_diff(
    target: Path | Sequence[Path],
    golden: Path | Sequence[Path] | None = None,
    options: Options | None = None,
    *,
    pairs: Path | None = None,
    rules: GraphRules = PROBE_GRAPH,
    overflow: bool = False,
    micro_step: str | int = AUTO,
    strip_paths: Sequence[str] = (),
) -> GraphView:
    """Show dumps as graphs as ``msprobe graph_visualize`` does.

    Args:
        target: the run under test: dump.json, the folder of a process or a step, or a folder of steps; several beside
            one golden run.
        golden: the run it is compared with, in the same form; several beside one target. Without it the graph of one.
        options: how to match and judge.
        pairs: a file of pairs of nodes that belong together.
        rules: whose statuses nodes get.
        overflow: look for numbers that are too large, even where none is infinite.
        micro_step: ``auto``, ``off`` or the number of micro steps.
        strip_paths: beginnings of paths that the page does not show.

    Raises:
        MsprobeException: the two cannot be compared, and why.

    Example:
        >>> probe.graph_diff("run_a", "run_b").to_html("graph.html")  # doctest: +SKIP
        'graph.html'
    """
    by_hand = () if pairs is None else tuple(load_pairs(os.fspath(pairs)))
    chosen = GraphOptions(options or Options(), by_hand, rules, overflow, str(micro_step), tuple(strip_paths))
    plan = planned(_paths(target), _paths(golden), chosen)
    return GraphView([diff_of_task(task) for task in plan.tasks if isinstance(task, GraphTask)], plan.unpaired, plan)


def _paths(given: Path | Sequence[Path] | None) -> list[str]:
    if given is None:
        return []
    return [os.fspath(given)] if isinstance(given, (str, os.PathLike)) else [os.fspath(path) for path in given]


# --- beside tables


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
    graph = graph_of(target)
    return partial(_rows, graph, graph_beside(target, graph, golden))


def _rows(graph: Graph, golden: Graph, evidence: Evidence) -> Columns:
    """A comparison in rows."""
    diff = without_paths(diff_from(graph, golden, evidence), Prefixes())
    for each in (graph, golden):
        add_micro_steps(each)
    return rows_of(diff, GraphOptions(evidence.options))
