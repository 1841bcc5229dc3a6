"""``msprobe graph_visualize``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.api.commands.two_runs import DIVERGENCE, NEVER, add_merging, is_failed, splits_given
from probe.api.rules import PROBE, asked_by, chosen, graph_rules, writer
from probe.common.errors import MsprobeException
from probe.common.harmless_text import printable
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.graph.options import GraphOptions
    from probe.graph.shown_runs import GraphReport, Plan
    from probe.shards.split import Split

_FORMATS = ("html", "db", "model-explorer", "json")


class GraphVisualize(Question):
    """Show one dump as a graph, or two next to each other, in one HTML file.

    RUN is the run under test, BASELINE the one it is compared with: dump.json, the folder of one rank, of
    one step, or a folder of steps. The page goes to graph_<time>.html in the output folder and needs nothing else.
    """

    name = "graph_visualize"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        of_target = "the run under test; -tp up to eight times with one baseline"
        of_golden = "the run it is compared with; -gp up to eight times with one run; without it one graph is shown"
        arguments.add_run(parser, "target_path", of_target, "-tp", "--target_path", action=arguments.Several)
        arguments.add_baseline(parser, "golden_path", of_golden, "-gp", "--golden_path", action=arguments.Several)
        arguments.add_output(parser, "files")
        arguments.add_matching(parser)
        add("--pairs", metavar="FILE", type=arguments.path, help="pairs of nodes made by hand, in the page or in YAML")
        arguments.add_rules(parser, "give nodes their statuses (probe)")
        add(
            "-oc",
            "--overflow_check",
            action="store_true",
            help="mark numbers that are too large; automatic if a value is not finite",
        )
        add("--micro_step", metavar="auto|N|off", type=_micro_step, default="auto", help="micro steps of a step (auto)")
        add_merging(parser)
        self._prepare_output(parser)

    def _prepare_output(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--format",
            metavar="NAMES",
            type=_formats,
            default=None,
            help=f"what is written, with commas between: {', '.join(_FORMATS)} (html)",
        )
        add("--file_type", choices=["db", "json"], help="msProbe's flag: db is --format db; json writes merged dumps")
        megabytes = arguments.amount("a size in MB", "0 and more", zero=True)
        add("--max_mb", metavar="N", type=megabytes, default=40.0, help="a larger page becomes a folder (40)")
        add(
            "--strip_paths",
            metavar="PREFIX",
            nargs="?",
            const="auto",
            action="append",
            default=[],
            help="cut this off the paths in the page; without a value: common folders; all: leave out stacks, too",
        )
        arguments.add_tensor_log(parser)
        add(
            "-progress_log", "--progress_log", "--is_print_progress_log", dest="progress_log", action="store_true",
            help="a line for each pair of dumps that is done",
        )  # fmt: skip
        arguments.add_where(parser)
        add("--open", action="store_true", help="open the page in a browser")
        add(
            "--fail-on",
            choices=[DIVERGENCE, NEVER],
            default=NEVER,
            help="exit status 1 if the runs diverge, and 2 if that cannot be told (never)",
        )

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        _refuse_older_forms(args)
        splits = _splits(args)
        _check_fail_on(args)
        if args.file_type == "json":
            from probe.graph.shown_runs import write_merged

            folders = write_merged(args.target_path, args.golden_path, splits, args.output_path)
            return Answer(lambda: folders, lambda: {"folders": folders})
        return _shown(args, splits, watch, invocation)


def _shown(
    args: argparse.Namespace, splits: list[Split], watch: ProgressCallback | None, invocation: Invocation
) -> Answer:
    from probe.common.parallel.tasks import Where
    from probe.graph.shown_runs import show

    plan = _planned(args, splits)
    formats, where = _wanted_formats(args), Where(args.jobs, args.dask)
    writers = {"db": writer("db", "--format db")} if "db" in formats else {}
    report = show(plan, args.output_path, formats, args.max_mb, where, watch, writers)
    for sentence in report.left_out:
        invocation.problem(sentence)
    if args.open:
        _open(report.files)
    content = {
        "files": report.files,
        "nodes": report.nodes,
        "first_divergence": report.first,
        "verdict": report.verdict,
        "remarks": [text.strip() for text in report.remarks],
        "unpaired": report.unpaired,
    }
    return Answer(lambda: _lines(report), lambda: content, is_failed(report.summaries, args.fail_on, invocation))


def _lines(report: GraphReport) -> Iterator[str]:
    # Unreadable dumps are reported already.
    unpaired = [sentence for sentence in report.unpaired if sentence not in report.left_out]
    *others, last = report.files
    yield from (*report.verdict, *report.remarks, *unpaired, *others)
    # With the step and the rank, where there are several.
    first = f", {printable(report.first_text)}" if report.first_text else ""
    yield f"{last}: {report.nodes} nodes{first}"


def _check_fail_on(args: argparse.Namespace) -> None:
    if args.fail_on == NEVER:
        return
    if not args.golden_path:
        raise MsprobeException("--fail-on divergence compares two runs; give the other one with --baseline.")
    if args.file_type == "json":
        raise MsprobeException("--file_type json compares nothing; leave --fail-on out.")
    if chosen(args.rules, PROBE) != PROBE:
        leave = f"leave {asked_by(args.rules)} out" if args.rules else f"{asked_by(None)} is set, so give --rules probe"
        raise MsprobeException(f"--fail-on divergence uses the rules of probe; {leave}.")


def _splits(args: argparse.Namespace) -> list[Split]:
    """Return the split of the runs that the flags of merging give; nothing where none of these is given."""
    found = splits_given(args, 2 if args.golden_path else 1)
    if not found and args.file_type == "json":
        raise MsprobeException("--file_type json writes merged dumps; give --rank_size, --tp and --pp, too.")
    return found


def _planned(args: argparse.Namespace, splits: list[Split]) -> Plan:
    from probe.graph.shown_runs import planned

    if splits:
        from probe.graph.shown_runs import planned_merging

        return planned_merging(args.target_path, args.golden_path, _options(args), splits)
    return planned(args.target_path, args.golden_path, _options(args))


def _options(args: argparse.Namespace) -> GraphOptions:
    from probe.compare.options import Options
    from probe.graph.options import GraphOptions
    from probe.graph.pairing import load_pairs

    rules, rows = graph_rules(args.rules)
    return GraphOptions(
        Options(fuzzy=args.fuzzy_match, layer_mapping=args.layer_mapping, rules=rows),
        tuple(load_pairs(args.pairs)) if args.pairs is not None else (),
        rules,
        args.overflow_check,
        args.micro_step,
        tuple(args.strip_paths),
        args.is_print_compare_log,
        args.progress_log,
    )


def _wanted_formats(args: argparse.Namespace) -> list[str]:
    found = list(args.format or ())
    if args.file_type == "db" and "db" not in found:
        found.append("db")
    return found or ["html"]


def _open(paths: list[str]) -> None:
    import webbrowser
    from pathlib import Path

    for path in paths:
        if path.endswith(".html"):
            webbrowser.open(Path(path).absolute().as_uri())


# --- arguments


def _micro_step(text: str) -> str:
    if text in ("auto", "off") or (text.isdecimal() and int(text) > 0):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of micro steps; allowed: auto, off, 1 and more.")


def _formats(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in _FORMATS:
            raise argparse.ArgumentTypeError(f"{name!r} is not a format; allowed: {', '.join(_FORMATS)}.")
    return found


# --- older forms


def _refuse_older_forms(args: argparse.Namespace) -> None:
    if not args.target_path:
        raise MsprobeException("RUN is missing; give the run to show: dump.json, or the folder of a rank or a step.")
    for path in (*args.target_path, *args.golden_path):
        if path.endswith((".vis", ".vis.db")):
            raise MsprobeException(
                f"{path} is a file that msProbe made of a dump; give the dump itself: dump.json, or its folder."
            )
