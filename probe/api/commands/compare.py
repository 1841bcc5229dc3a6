"""``msprobe compare``, and ``msprobe merge_result`` for its tables."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Check, Invocation, Question, UsageError
from probe.api.commands.two_runs import (
    DIVERGENCE,
    NEVER,
    add_merging,
    add_pair,
    is_failed,
    report_untold,
    set_pair,
    splits_given,
)
from probe.common.errors import MsprobeException
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.common.parallel.tasks import Where
    from probe.compare.first_difference import Analysis
    from probe.compare.in_python import RunAgain
    from probe.compare.options import Options
    from probe.shards.split import Split


class Compare(Question):
    """Compare two dumps and name the first call that differs by more than rounding.

    The target is the run under test, the golden run is the baseline: dump.json, debug.json, the folder of one step, or
    a folder of steps; or the folders of two runs of task grad_probe. Give two paths, or take the two newest with
    --last. The table goes to compare_result_<time>.csv in the output folder.
    """

    name = "compare"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-m", "--mode", choices=["auto"], default="auto", help="kind of data; only that of frameworks is known")
        add_pair(parser)
        add("--resumed", action="store_true", help="the target was resumed from a checkpoint: which state was lost")
        add("--resumed-at", metavar="STEP", type=int, help="the step of the baseline that it was resumed at (found)")
        add("--ranks", metavar="RUN", type=arguments.path, help="compare the ranks of one run with each other")
        arguments.add_output(parser, "tables")
        add("--xlsx", action="store_true", help="write a workbook instead of CSV")
        arguments.add_matching(parser)
        add("-am", "--api_mapping", metavar="FILE", nargs="?", const="", help="APIs that correspond (MindSpore)")
        add("-cm", "--cell_mapping", metavar="FILE", nargs="?", const="", help="cells or modules that correspond")
        add("-dm", "--data_mapping", metavar="FILE", type=arguments.path, help="items that correspond")
        add("-da", "--diff_analyze", action="store_true", help="first difference of several ranks; writes JSON")
        add("--config", metavar="FILE", type=arguments.path, help="operations on tensors before they are compared")
        add(
            "--algorithms",
            metavar="FILE",
            action="append",
            default=[],
            help="Python files with metrics of your own, a list with commas; the files are executed",
        )
        arguments.add_tensor_log(parser)
        arguments.add_where(parser)
        add("--html", action="store_true", help="write the page of msprobe graph_visualize, too")
        add(
            "--fail-on",
            choices=[DIVERGENCE, "error", "warning", NEVER],
            help="exit status 1 if the runs diverge, or a row has this result or a worse one; "
            "2 if that cannot be told (never)",
        )
        add("--ci", action="store_true", help="for a job: write junit.xml, annotate on GitHub, fail if runs diverge")
        add("--rerun", action="store_true", help="run the first calls that diverge again on the golden run's inputs")
        arguments.add_max_memory(parser, "with --rerun: ")
        add_merging(parser)
        arguments.add_compat(arguments.add_rules(parser, "give rows their results; named, probe adds columns (probe)"))

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        if args.fail_on is None:
            args.fail_on = DIVERGENCE if args.ci else NEVER
        if not args.ci:
            return self._answer(args, invocation, watch)
        from probe.api.commands import ci

        try:
            answer = self._answer(args, invocation, watch)
        except (MsprobeException, OSError) as error:
            ci.report_trouble(str(error), args.output_path, args.json)
            raise
        return ci.reported(answer, args.output_path, invocation.problems)

    def _answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        # Not needed by the other commands, and what it imports takes time.
        from probe.api.rules import PROBE, is_asked_for, rules_for
        from probe.common.parallel.tasks import Where
        from probe.compare.options import Options
        from probe.monitor.gradient_files import probed_ranks

        is_resumed = args.resumed or args.resumed_at is not None
        if args.ranks is not None:
            return _of_ranks(args, invocation, is_resumed)
        if is_resumed:
            return _resumed(args, invocation)
        set_pair(args)
        if probed_ranks(args.target_path) and probed_ranks(args.golden_path):
            return _gradients(args)
        options = Options(
            rules=rules_for("rows", args.rules),
            distances=is_asked_for(PROBE, args.rules),
            fuzzy=args.fuzzy_match,
            api_mapping=args.api_mapping,
            cell_mapping=args.cell_mapping,
            data_mapping=args.data_mapping,
            layer_mapping=args.layer_mapping,
            post_processing=args.config,
            algorithms=tuple(name for names in args.algorithms for name in names.split(",") if name),
        )
        where = Where(args.jobs, args.dask)
        splits = _splits(args)
        run_again = _run_again(args, splits)
        if args.diff_analyze:
            return _analysed(args, options, where, invocation, watch)
        given = {"where": where, "watch": watch, "left_out": invocation.problem}
        return _compared(args, options, splits, run_again, invocation, given)


def _run_again(args: argparse.Namespace, splits: list[Split]) -> RunAgain | None:
    """Return what runs calls that diverge again, where that is asked for."""
    if not args.rerun:
        if args.max_memory is not None:
            raise MsprobeException("--max-memory is for --rerun; leave it out, or give both.")
        return None
    if args.diff_analyze:
        raise MsprobeException("--diff_analyze compares rank with rank; leave it out, or --rerun.")
    # It loads a framework.
    from probe.api.replaying import run_again_for

    return run_again_for(args.target_path, args.golden_path, splits, args.max_memory)


def _splits(args: argparse.Namespace) -> list[Split]:
    """Return the split of the runs that the flags of merging give; nothing where none of these is given."""
    found = splits_given(args, 2)
    if found and args.diff_analyze:
        raise MsprobeException("--diff_analyze compares rank with rank; leave it out, or --rank_size.")
    if found and args.html:
        raise MsprobeException("--html shows no merged ranks; give the same flags to msprobe graph_visualize instead.")
    return found


def _compared(
    args: argparse.Namespace,
    options: Options,
    splits: list[Split],
    run_again: RunAgain | None,
    invocation: Invocation,
    given: dict[str, Any],
) -> Answer:
    from probe.compare.in_python import with_reruns
    from probe.compare.runner import summaries
    from probe.compare.summary_text import styled_lines

    if args.html:
        from probe.graph.in_python import summaries_and_page

    start = time.perf_counter()
    paths = args.target_path, args.golden_path, args.output_path, options, args.xlsx
    given = {**given, "tensor_log": args.is_print_compare_log}
    page = ""
    if args.html:
        found, page = summaries_and_page(*paths, **given)
    else:
        # Ctrl-C leaves it early, and no process may go on then.
        with contextlib.closing(summaries(*paths, **given, splits=splits)) as compared:
            found = list(compared)
    if run_again is not None:
        found = list(with_reruns(found, run_again))
    left_out = list(invocation.problems)
    is_bad = is_failed(found, args.fail_on, invocation, options.rules is None)

    def checks() -> list[Check]:
        from probe.api.commands import ci

        return [*ci.of_pairs(found, args.fail_on, options.rules is None), *ci.of_problems(left_out)]

    last = [f"time: {time.perf_counter() - start:.2f} s", *([f"page: {page}"] if page else [])]

    def as_json() -> list[dict[str, Any]]:
        return [{**summary.as_json(), "page": page or None} for summary in found]

    return Answer(lambda: [*styled_lines(found), *last], as_json, is_bad, checks)


def _analysed(
    args: argparse.Namespace, options: Options, where: Where, invocation: Invocation, watch: ProgressCallback | None
) -> Answer:
    from probe.compare.first_difference import analyse, differences_as_json

    paths = args.target_path, args.golden_path, args.output_path
    with contextlib.closing(analyse(*paths, options, where=where, watch=watch)) as analyses:
        found = list(analyses)
    is_found = any(analysis.found for analysis in found)
    compared = [summary for analysis in found for summary in analysis.summaries]
    if args.fail_on == DIVERGENCE and not is_found:
        # A divergence may be smaller than what -da looks for.
        is_found = is_failed(compared, DIVERGENCE, invocation)
    elif args.fail_on != NEVER and not is_found:
        report_untold(compared, args.fail_on, invocation, options.rules is None)
    steps = [
        {
            "step": each.step,
            "ranks": differences_as_json(each.found),
            "answer": each.answer or None,
            "files": each.files,
        }
        for each in found
    ]
    return Answer(lambda: _first_of_ranks(found), lambda: {"steps": steps}, args.fail_on != NEVER and is_found)


def _first_of_ranks(analyses: list[Analysis]) -> Iterator[str]:
    """The first difference of the ranks, step by step."""
    for analysis in analyses:
        step = f"{analysis.step}: " if analysis.step else ""
        for rank, record in analysis.found:
            yield f"{step}rank {rank.number} diverges first at {record.name}"
        if not analysis.found:
            yield f"{step}{analysis.answer}"
        yield from (f"  {path}" for path in analysis.files)


def _of_ranks(args: argparse.Namespace, invocation: Invocation, is_resumed: bool) -> Answer:
    """Compare the ranks of one run with each other."""
    from probe.compare.ranks.answer import compare_ranks, lines

    if args.target_path or args.golden_path or args.last:
        raise UsageError("--ranks compares the ranks of one run; give no other run")
    if is_resumed:
        raise UsageError("--ranks and --resumed are two questions; give one of them")
    found = compare_ranks(args.ranks)
    if args.fail_on != NEVER and not found.is_judged:
        invocation.problem(f"cannot be told: the ranks of {args.ranks} have nothing recorded in common")
    return Answer(lambda: lines(found), found.as_json, args.fail_on != NEVER and bool(found.findings))


def _resumed(args: argparse.Namespace, invocation: Invocation) -> Answer:
    """Hold a run that was resumed from a checkpoint against one that was not interrupted."""
    from probe.compare.resumed.answer import compare_resumed, lines

    set_pair(args)
    found = compare_resumed(args.target_path, args.golden_path, args.resumed_at)
    if args.fail_on != NEVER and not found.differs and not found.is_enough:
        invocation.problem("cannot be told whether the run was resumed in the same state: not enough in common")
    return Answer(lambda: lines(found), found.as_json, args.fail_on != NEVER and found.differs)


def _gradients(args: argparse.Namespace) -> Answer:
    """Compare two folders of task ``grad_probe``, and write the results to the output folder."""
    from probe.monitor.directions import turn_of_probes
    from probe.monitor.gradients import compare_runs, lines_of, write_results

    found, turn = compare_runs(args.target_path, args.golden_path), turn_of_probes(args.target_path, args.golden_path)
    write_results(args.output_path, found)
    is_bad = args.fail_on != NEVER and (turn is not None or any(rank.suspicions() for rank in found))
    ranks = [
        {
            "rank": each.rank,
            "total": {str(step): value for step, value in each.line(None)},
            "suspicious": [suspicion._asdict() for suspicion in each.suspicions()],
            "notes": each.notes,
        }
        for each in found
    ]
    text = f"tables and pictures: {args.output_path}"
    content = {"ranks": ranks, "first_turn": None if turn is None else turn.as_json()}
    return Answer(lambda: [*lines_of(found, turn), text], lambda: content, is_bad)


# --- merge result


class MergeResult(Question):
    """Collect a metric of communication calls over all ranks, from the tables that compare wrote.

    The file of -config holds `api:`, a list of names such as Distributed.all_reduce, and, if you like,
    `compare_index:`, a list of columns.
    """

    name = "merge_result"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        required: dict[str, Any] = {"type": arguments.path, "required": True}
        tables = "holds compare_result_rank<N>_<time>.csv or .xlsx"
        add("-i", "--input_dir", metavar="DIR", help=tables, **required)
        add("-o", "--output_dir", metavar="DIR", help="for the workbook", **required)
        add("-config", "--config-path", metavar="FILE", help="what to collect", **required)

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.compare.merged_tables import load_choice, merge

        path = merge(args.input_dir, args.output_dir, load_choice(args.config_path))
        return Answer(lambda: [path], lambda: {"files": [path]})
