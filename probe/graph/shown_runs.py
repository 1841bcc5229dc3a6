"""Dumps shown as graphs: each pair of ranks and steps compared, in several processes where that pays, and written."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Optional

from probe.common import log
from probe.common.align.dump_pairs import DumpPair
from probe.common.dump.layout import are_large, holds_records
from probe.common.errors import MsprobeException
from probe.common.parallel.run_tasks import run_where_it_pays
from probe.common.parallel.tasks import Where, finished
from probe.common.progress import ProgressCallback
from probe.compare.evidence import Followers, Options, Summary, check, first_of, headline, hints
from probe.graph.options import HTML, GraphOptions
from probe.graph.output import MakeWriter, ShownComparison, Writer, stamped, writers_of
from probe.graph.page.blocks import arguments_of
from probe.graph.page.columns import Columns, name_of, names_of
from probe.graph.page.manifest import Manifest, comparison_as_json
from probe.graph.page.prefixes import Prefixes
from probe.graph.pairing import without_dumps
from probe.graph.tasks import CommunicationPartners, GraphLocation, GraphTask, MergedGraphTask, Task, located
from probe.shards.merge import folder_of as folder_of_copy
from probe.shards.merge import merged, write
from probe.shards.split import Split
from probe.shards.split_runs import check_folders, common_steps, dumps_of

_MOST_REASONS = 4
"""Dumps of which it is said why they are left out, where none could be shown."""
MOST_RUNS = 8
"""The largest number of runs next to one."""


@dataclass(frozen=True)
class Plan:
    """The comparisons that are to be shown.

    Args:
        tasks: the comparisons, in order.
        unpaired: a sentence for each dump that has nothing beside it.
        title: the name of the page.
        said: what a command that writes the page besides has answered; the page opens with the first comparison then.
    """

    tasks: list[Task]
    unpaired: list[str]
    title: str
    said: Sequence[str] = ()


@dataclass(frozen=True)
class _FirstNode:
    """The first node of a comparison of which its rules find the worst."""

    name: str
    names: tuple[Optional[str], Optional[str]]  # noqa: UP045
    """In target and golden run."""
    status: int

    @classmethod
    def of(cls, columns: Columns, row: int) -> _FirstNode:
        """The node of a row."""
        return cls(name_of(columns, row), names_of(columns, row), int(columns.status[row]))


@dataclass
class GraphReport:
    """The files that were written, and the lines for the end."""

    files: list[str] = field(default_factory=list)
    nodes: int = 0
    """The number of nodes that the targets have."""
    first: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The call where the runs diverge first; by rules that give no summary, the first that these find the worst."""
    first_names: tuple[Optional[str], Optional[str]] = (None, None)  # noqa: UP045
    """The names of that call in target and golden run."""
    first_text: str = ""
    """The first divergence as one line; empty where there is none."""
    verdict: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """The reason why one side lacks what the other has, or what the only one lacks, where the dumps themselves tell."""
    unpaired: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """The parts that could not be read, a sentence each."""
    summaries: list[Summary] = field(default_factory=list)
    """Summaries of the comparisons by our own rules."""


def planned(targets: Sequence[str], goldens: Sequence[str], options: GraphOptions) -> Plan:
    """The comparisons that paths stand for.

    Args:
        targets: files or folders; several only beside one golden run, or beside none.
        goldens: the same of the other side; several only beside one target.
        options: how dumps are shown.

    Raises:
        MsprobeException: the paths do not go together, or the options do not fit.
    """
    if len(targets) > 1 and len(goldens) > 1:
        raise MsprobeException(
            f"-tp is given {len(targets)} times and -gp {len(goldens)} times; give several of one and one of the other."
        )
    if max(len(targets), len(goldens)) > MOST_RUNS:
        raise MsprobeException(f"{max(len(targets), len(goldens))} runs are given; allowed: at most {MOST_RUNS}.")
    for path in {path for side in (targets, goldens) for path in side if side.count(path) > 1}:
        raise MsprobeException(f"{path} is given several times; give each run once.")
    locations: list[GraphLocation] = []
    unpaired: list[str] = []
    for target in targets:
        for golden in goldens or ("",):
            name = golden if len(goldens) > 1 else target if len(targets) > 1 else ""
            found, alone = located(target, golden or None, name)
            locations += found
            unpaired += alone
    if goldens:
        _check(locations, options.compare)
    cut = Prefixes(options.strip_paths)
    names = _names_of_runs([location.run for location in locations], cut)
    locations = [replace(location, run_name=names[location.run]) for location in locations]
    name = title(list(map(cut.path, targets)), list(map(cut.path, goldens)))
    unpaired = [cut.text(sentence, (*targets, *goldens)) for sentence in dict.fromkeys(unpaired)]
    return Plan([GraphTask(location, options) for location in locations], unpaired, name)


def _remarks(columns: Columns) -> list[str]:
    """The page's banners on both dumps, or on the only one, for the terminal."""
    if columns.summary is not None:
        return [f"  {text}" for text in hints(columns.summary)]
    sides = filter(None, (columns.target, columns.golden))
    return [f"  {side.path} {side.ending}" for side in sides if side.ending]


def _names_of_runs(runs: Iterable[str], cut: Prefixes) -> dict[str, str]:
    """The name on the page of each run; those that are the same but for what is cut off are numbered."""
    found: dict[str, str] = {}
    for run in dict.fromkeys(runs):
        name, number = cut.path(run), 2
        while name in found.values():
            name, number = f"{cut.path(run)} ({number})", number + 1
        found[run] = name
    return found


def title(targets: Sequence[str], goldens: Sequence[str]) -> str:
    """The name of a page."""
    return " and ".join(targets) + (f" beside {' and '.join(goldens)}" if goldens else "")


def _check(locations: Sequence[GraphLocation], options: Options) -> None:
    check([DumpPair(location.target, location.golden or "") for location in locations], options, True)


def compared(
    plan: Plan, where: Where | None = None, watch: ProgressCallback | None = None
) -> Generator[ShownComparison | str, None, None]:
    """The comparisons of `plan` in order, each when it is asked for; a sentence for one that could not be made.

    Raises:
        MsprobeException: none could be made.
    """
    tasks = plan.tasks
    large = are_large(path for task in tasks for path in task.paths)
    exchanged = CommunicationPartners(tasks)
    shown: set[tuple[str, int | None, int | None]] = set()
    left_out: list[str] = []
    before = 0
    outcomes = run_where_it_pays(where, make, tasks, watch, large)
    with closing(finished(tasks, outcomes, (MsprobeException, OSError))) as done:
        for task, outcome in done:
            if outcome.value is None:
                cut = Prefixes(task.options.strip_paths)
                left_out.append(cut.text(_left_out(task.location, outcome.error), task.paths))
                yield left_out[-1]
                continue
            if task.options.progress_log:
                log.info(f"{task.location}: done")
            for each in outcome.value:
                columns = each.columns
                shown |= {(run, columns.step, columns.rank) for run in (columns.run, task.location.run)}
                each.columns.details.move_parts(before)
                yield exchanged.added(each, task)
            before += len(outcome.value)
    if not shown:
        raise MsprobeException(f"{plan.title}: no dump could be shown. {' '.join(left_out[:_MOST_REASONS])}")
    for sentence in without_dumps(tasks[0].options.pairs, shown):
        log.warning(sentence)


def _left_out(location: GraphLocation, error: Exception | None) -> str:
    """A sentence for a comparison that could not be made; errors of files begin with their paths."""
    text = str(error)
    has_path = any(path in text for path in (location.target, location.golden) if path)
    if location.golden is None:
        return f"{text.rstrip('.')}. It is left out." if has_path else f"{location.target} is left out: {text}"
    name = f"{location.step} {location.label}".strip() or "The comparison"
    return f"{name if has_path else f'The comparison of {location.target} with {location.golden}'} is left out: {text}"


def make(task: Task, watch: ProgressCallback | None = None) -> list[ShownComparison]:
    """Do a task; a function, so that another process finds it."""
    return task.compare(watch)


# --- writing


def show(
    plan: Plan,
    output: str,
    formats: Sequence[str] = (HTML,),
    max_megabytes: float = 40,
    where: Where | None = None,
    watch: ProgressCallback | None = None,
    others: Mapping[str, MakeWriter] | None = None,
) -> GraphReport:
    """Make the comparisons of `plan` and write them to the folder `output`.

    Args:
        plan: the comparisons.
        output: the folder.
        formats: what is written.
        max_megabytes: a page that is larger becomes a folder.
        where: which processes do it.
        watch: a callback for how far the work is.
        others: what makes the writers of formats that are not ours, by format.

    Raises:
        MsprobeException: none could be made.
        OSError: a file cannot be written.
    """
    options = plan.tasks[0].options
    manifest = Manifest(plan.title, options.rules, plan.unpaired, said=plan.said)
    others = {name: make for name, make in (others or {}).items() if name in formats}
    if others:
        plan = replace(plan, tasks=[replace(task, keeps_diff=True) for task in plan.tasks])
    with stamped(output) as when:
        writers = writers_of(formats, output, when, manifest, options, max_megabytes, others)
        return written(compared(plan, where, watch), writers, manifest)


def _with_followers(found: Iterator[ShownComparison | str]) -> Iterator[ShownComparison | str]:
    """The comparisons, in which those that a divergence has reached follow it.

    The ranks of a step are taken together: one that got the difference from another may come before it.
    """
    followers = defaultdict[str, Followers](Followers)
    """By run: several beside one do not follow each other."""
    for (run, _), several in groupby(found, _run_and_step):
        of_step = list(several)
        judged = [each.columns for each in of_step if not isinstance(each, str) and not each.is_part]
        summaries = [(columns, columns.summary) for columns in judged if columns.summary is not None]
        told = followers[run].add_step([summary for _, summary in summaries]) if summaries else []
        for (columns, _), summary in zip(summaries, told):
            columns.summary = summary
            if summary.follows is not None:
                columns.follow()
        yield from of_step


def _run_and_step(found: ShownComparison | str) -> tuple[str, int | None]:
    """The run and the step of a comparison; of a sentence on one that could not be made nothing."""
    return ("", None) if isinstance(found, str) else (found.columns.run, found.columns.step)


def written(found: Iterator[ShownComparison | str], writers: Sequence[Writer], manifest: Manifest) -> GraphReport:
    """Give each comparison to all writers; returns what is to be said at the end."""
    result = GraphReport(unpaired=manifest.unpaired)
    summaries: dict[int, Summary] = {}
    """By the numbers of the comparisons."""
    without_summary: list[str] = []
    judged_otherwise: dict[int, _FirstNode] = {}
    """By the numbers of the comparisons, the first node of rules that give no summary."""
    number = 0
    for each in _with_followers(found):
        if isinstance(each, str):
            result.left_out.append(each)
            manifest.unpaired.append(each)
            continue
        columns = each.columns
        comparison = comparison_as_json(columns, manifest.rules)
        manifest.arguments.update(arguments_of(columns))
        for writer in writers:
            writer.add(each, comparison)
        if not each.is_part:
            result.remarks += _remarks(columns)
            result.nodes += columns.target.nodes
            if columns.summary is not None:
                summaries[number] = columns.summary
            else:
                without_summary += comparison["verdict"]
                if comparison["first"] is not None:
                    judged_otherwise[number] = _FirstNode.of(columns, comparison["first"])
        number += 1
    result.summaries = list(summaries.values())
    result.verdict = [text for text, _ in headline(result.summaries)] if summaries else without_summary
    first = first_of(summaries.values())
    # The page opens where the terminal says that the runs diverge.
    manifest.first = next((number for number, summary in summaries.items() if summary is first), None)
    if first is not None and first.divergence is not None:
        call = first.divergence.first
        result.first, result.first_text = first.divergence.record, result.verdict[0]
        result.first_names = call.record or None, call.golden_record or None
    elif judged_otherwise:
        # Of the worst the earliest; a number above another is a worse status.
        manifest.first, node = max(judged_otherwise.items(), key=lambda each: (each[1].status, -each[0]))
        result.first, result.first_names = node.name, node.names
        status = manifest.rules.statuses[node.status].name
        result.first_text = f"first {status} by the rules of {manifest.rules.name}: {node.name}"
    for writer in writers:
        result.files += writer.finish()
    return result


# --- merging


def planned_merging(
    targets: Sequence[str], goldens: Sequence[str], options: GraphOptions, splits: Sequence[Split]
) -> Plan:
    """The comparisons of runs whose ranks are merged.

    Args:
        targets, goldens: one folder, of a step or of all steps; of the golden run one or none.
        options: how dumps are shown.
        splits: how the target is split, and the golden run.

    Raises:
        MsprobeException: the paths do not go together.
    """
    if len(targets) > 1 or len(goldens) > 1:
        raise MsprobeException("--rank_size merges the ranks of a run and of a baseline; give at most one of each.")
    check_folders((*targets, *goldens))
    steps, unpaired = common_steps(targets[0], goldens[0] if goldens else None)
    locations = [GraphLocation(each.target, each.golden, step=each.name) for each in steps]
    cut = Prefixes(options.strip_paths)
    name = title(list(map(cut.path, targets)), list(map(cut.path, goldens)))
    unpaired = [cut.text(sentence, (*targets, *goldens)) for sentence in unpaired]
    return Plan([MergedGraphTask(location, options, splits=tuple(splits)) for location in locations], unpaired, name)


def write_merged(targets: Sequence[str], goldens: Sequence[str], splits: Sequence[Split], output: str) -> list[str]:
    """Write the merged dumps of a run to ``step<S>/rank<R>`` below `output`; returns these folders.

    Raises:
        MsprobeException: the ranks cannot be merged, two runs are given, or one of the folders holds a dump. Nothing is
            written then.
    """
    if goldens or len(targets) != 1:
        raise MsprobeException("--file_type json writes the merged dumps of one run; give one run, and no baseline.")
    steps, _ = common_steps(targets[0], None)
    copies = [copy for step in steps for copy in merged(dumps_of(step.target), splits[0], step.target)]
    folders = [folder_of_copy(copy, output) for copy in copies]
    for folder in folders:
        # It may be that of the run itself.
        if os.path.isdir(folder) and holds_records(folder):
            raise MsprobeException(f"{folder} holds a dump already; give another folder with -o.")
        if folders.count(folder) > 1:
            raise MsprobeException(f"{targets[0]} has two dumps for {folder}; give one of its steps.")
    for copy, folder in zip(copies, folders):
        write(copy, folder)
    return folders
