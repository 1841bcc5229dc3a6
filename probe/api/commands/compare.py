"""``msprobe compare``."""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.compare.options import Options

_OUTPUT = "./output"


class Compare:
    """Compare two dumps, row by row, and say where they part.

    The target is the run under test, the golden one the run it is held against: dump.json, debug.json, the folder of
    one step, or a folder of steps. The table goes to compare_result_<time>.csv in the output folder.
    """

    name = "compare"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-m", "--mode", choices=["auto"], default="auto", help="kind of data; only that of frameworks is known")
        add("-tp", "--target_path", metavar="PATH", required=True, help="the run under test")
        add("-gp", "--golden_path", metavar="PATH", required=True, help="the run it is held against")
        add("-o", "--output_path", metavar="DIR", nargs="?", default=_OUTPUT, const=_OUTPUT, help="for the tables")
        add("--xlsx", action="store_true", help="write a workbook and not CSV")
        add("-fm", "--fuzzy_match", action="store_true", help="match without regard to the numbers of calls")
        add("-am", "--api_mapping", metavar="FILE", nargs="?", const="", help="APIs that correspond (MindSpore)")
        add("-cm", "--cell_mapping", metavar="FILE", nargs="?", const="", help="cells or modules that correspond")
        add("-dm", "--data_mapping", metavar="FILE", help="items that correspond")
        add("-lm", "--layer_mapping", metavar="FILE", nargs="?", const="", help="names of layers that correspond")
        add("-da", "--diff_analyze", action="store_true", help="find where several ranks part first; writes JSON")
        add("--config", metavar="FILE", help="what is done to tensors before they are compared")
        add(
            "-tensor_log",
            "--is_print_compare_log",
            action="store_true",
            help="a line for each pair of tensors, with its metrics",
        )
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
        from probe.compare.options import Options
        from probe.compare.running import compare
        from probe.compare.summary import fails, summarise
        from probe.compare.terminal import print_metrics, show

        # What a comparison makes is kept until its end; looking for what could be freed costs a quarter of the time.
        gc.disable()
        options = Options(
            compat=args.compat,
            fuzzy=args.fuzzy_match,
            api_mapping=args.api_mapping,
            cell_mapping=args.cell_mapping,
            data_mapping=args.data_mapping,
            layer_mapping=args.layer_mapping,
            post_processing=args.config,
        )
        if args.diff_analyze:
            return self._analyse(args, options)
        summaries = []
        start = time.perf_counter()
        for result in compare(args.target_path, args.golden_path, args.output_path, options, args.xlsx):
            if args.is_print_compare_log:
                print_metrics(result)
            summaries.append(summarise(result))
        if args.json:
            print(json.dumps([summary.as_json() for summary in summaries], indent=1))
        else:
            show(summaries, time.perf_counter() - start)
        return int(fails(summaries, args.fail_on))

    def _analyse(self, args: argparse.Namespace, options: Options) -> int:
        from probe.compare.first_difference import differences_as_json
        from probe.compare.running import analyse

        differs = False
        for analysis in analyse(args.target_path, args.golden_path, args.output_path, options):
            differs = differs or bool(analysis.found)
            if args.json:
                print(json.dumps(differences_as_json(analysis.found)))
                continue
            step = f"{analysis.step}: " if analysis.step else ""
            for rank, entry in analysis.found:
                print(f"{step}rank {rank.number} parts first at {entry.record}")
            if not analysis.found:
                print(f"{step}no rank differs")
            for path in analysis.files:
                print(f"  {path}")
        return int(differs and args.fail_on != "never")
