"""``msprobe compare``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.common.terminal_text import print_text

if TYPE_CHECKING:
    from probe.common.parallel.tasks import Where
    from probe.compare.options import Options
    from probe.compare.ranks.analysis import Analysis

UNREADABLE = 2
"""The exit status when a pair was left out, or values could not be read, although the others were compared."""


class Compare:
    """Compare two dumps, row by row, and say where they part.

    The target is the run under test, the golden one the run it is held against: dump.json, debug.json, the folder of
    one step, or a folder of steps. The table goes to compare_result_<time>.csv in the output folder.
    """

    name = "compare"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-m", "--mode", choices=["auto"], default="auto", help="kind of data; only that of frameworks is known")
        add("-tp", "--target_path", metavar="PATH", type=arguments.path, required=True, help="the run under test")
        add(
            "-gp",
            "--golden_path",
            metavar="PATH",
            type=arguments.path,
            required=True,
            help="the run it is held against",
        )
        arguments.add_output(parser, "tables")
        add("--xlsx", action="store_true", help="write a workbook and not CSV")
        arguments.add_matching(parser)
        add("-am", "--api_mapping", metavar="FILE", nargs="?", const="", help="APIs that correspond (MindSpore)")
        add("-cm", "--cell_mapping", metavar="FILE", nargs="?", const="", help="cells or modules that correspond")
        add("-dm", "--data_mapping", metavar="FILE", type=arguments.path, help="items that correspond")
        add("-da", "--diff_analyze", action="store_true", help="find where several ranks part first; writes JSON")
        add("--config", metavar="FILE", type=arguments.path, help="what is done to tensors before they are compared")
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
        add("--json", action="store_true", help="print the summary as JSON")
        add(
            "--fail-on",
            choices=["divergence", "error", "warning", "never"],
            default="never",
            help="exit with status 1 when the runs diverge, or when any row is that bad (never)",
        )
        add("--compat", action="store_true", help="judge as msProbe 26.2 does, its defects included")

    def run(self, args: argparse.Namespace) -> int:
        # Not needed by the other commands, and what it imports takes time.
        from probe.common.parallel.tasks import Where
        from probe.compare.options import Options

        options = Options(
            compat=args.compat,
            fuzzy=args.fuzzy_match,
            api_mapping=args.api_mapping,
            cell_mapping=args.cell_mapping,
            data_mapping=args.data_mapping,
            layer_mapping=args.layer_mapping,
            post_processing=args.config,
            algorithms=tuple(name for names in args.algorithms for name in names.split(",") if name),
            all_divergences=args.json,
        )
        where = Where(args.jobs, args.dask)
        return self._analyse(args, options, where) if args.diff_analyze else self._compare(args, options, where)

    def _compare(self, args: argparse.Namespace, options: Options, where: Where) -> int:
        from probe.common.align.dump_pairs import locate
        from probe.common.report.progress_bar import Progress
        from probe.compare.output.summary import fails, is_unjudged
        from probe.compare.output.summary_text import show
        from probe.compare.runner import summaries

        if args.html:
            from probe.graph.beside_tables import summaries_and_page

        start = time.perf_counter()
        paths = args.target_path, args.golden_path, args.output_path
        with _prints_beside_json(args.json), Progress(not args.json) as progress:
            page = None
            if args.html:
                found, page = summaries_and_page(
                    *paths, options, args.xlsx, where=where, tensor_log=args.is_print_compare_log, watch=progress.watch
                )
            else:
                compared = summaries(
                    *paths, options, args.xlsx, where=where, tensor_log=args.is_print_compare_log, watch=progress.watch
                )
                # Ctrl-C leaves it early, and no process may go on then.
                with contextlib.closing(compared):
                    found = list(compared)
        if args.json:
            print(json.dumps([summary.as_json() for summary in found], indent=1))
        else:
            show(found, time.perf_counter() - start)
        if page is not None:
            print_text(f"page: {page}", sys.stderr if args.json else sys.stdout)
        if args.fail_on != "never" and len(found) < len(locate(args.target_path, args.golden_path)):
            # What could not be read may differ.
            return UNREADABLE
        if fails(found, args.fail_on):
            return 1
        return UNREADABLE if args.fail_on == "divergence" and is_unjudged(found) else 0

    def _analyse(self, args: argparse.Namespace, options: Options, where: Where) -> int:
        from probe.common.report.progress_bar import Progress
        from probe.compare.ranks.analysis import analyse

        paths = args.target_path, args.golden_path, args.output_path
        with _prints_beside_json(args.json), Progress(not args.json) as progress:
            analyses = analyse(*paths, options, where=where, watch=progress.watch)
            with contextlib.closing(analyses):
                found = list(analyses)
        for analysis in found:
            _show(analysis, args.json)
        return int(any(analysis.found for analysis in found) and args.fail_on != "never")


def _prints_beside_json(as_json: bool) -> AbstractContextManager[Any]:
    """A metric of the user's may print: to standard error, if standard output is for a machine to read."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _show(analysis: Analysis, as_json: bool) -> None:
    if as_json:
        from probe.compare.ranks.first_difference import differences_as_json

        print(json.dumps(differences_as_json(analysis.found)))
        return
    step = f"{analysis.step}: " if analysis.step else ""
    for rank, record in analysis.found:
        print_text(f"{step}rank {rank.number} diverges first at {record.name}")
    if not analysis.found:
        print_text(f"{step}no rank differs")
    for path in analysis.files:
        print_text(f"  {path}")
