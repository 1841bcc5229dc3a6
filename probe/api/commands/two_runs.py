"""Arguments that `compare` and `graph_visualize` share: the two runs, ranks of split models, ``--fail-on``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.question import Invocation, UsageError
from probe.common import log
from probe.common.dump.layout import MODES, steps_in
from probe.common.errors import FileCheckException

if TYPE_CHECKING:
    from probe.compare.summary import Summary
    from probe.shards.split import Split

DIVERGENCE, NEVER = "divergence", "never"
"""Values of ``--fail-on``; `compare` has the levels of rows besides."""
_MERGING = ("rank_size", "tp", "pp", "vpp", "order")
_DEEPEST = 6
"""Levels of folders that are searched; a run is one to three levels below the folder that people give."""
_MOST_FOLDERS = 20_000
"""Folders that are searched, which takes about a second."""


# --- the two runs


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Add the two runs and ``--last``."""
    arguments.add_run(parser, "target_path", "the run under test", "-tp", "--target_path")
    arguments.add_baseline(parser, "golden_path", "the run it is compared with", "-gp", "--golden_path")
    parser.add_argument(
        "--last", metavar="DIR", type=arguments.path, nargs="?", const=".",
        help="compare the two newest runs below a folder (.): the newest is the run under test",
    )  # fmt: skip


def set_pair(args: argparse.Namespace) -> None:
    """Set ``target_path`` and ``golden_path`` to the two newest runs, if ``--last`` is given.

    Raises:
        UsageError: a run is missing, or is given next to ``--last``.
        MsprobeException: below the folder of ``--last`` are fewer than two runs.
    """
    given = [path for path in (args.target_path, args.golden_path) if path is not None]
    if args.last and given:
        raise UsageError(f"{given[0]} and --last were given; name the two runs in one way.")
    if args.last:
        args.target_path, args.golden_path = newest_runs(args.last, 2)
        log.info(f"--last: {args.target_path} is compared with {args.golden_path}, the run before it.")
    elif len(given) < 2:
        missing = "RUN and BASELINE are" if not given else "BASELINE is" if args.target_path else "RUN is"
        raise UsageError(f"{missing} missing; give two paths, the run under test and the baseline, or --last.")


def newest_runs(folder: str, count: int) -> list[str]:
    """The `count` runs below `folder` that were written last, the newest first.

    A run is a folder with step folders that hold records. Links are not followed.

    Raises:
        FileCheckException: `folder` does not exist, or holds fewer runs.
        OSError: `folder` cannot be read.
    """
    # Not needed by the other commands, and what it imports takes time.
    from probe.common.dump.reading.runs import check_exists

    check_exists(folder)
    found = sorted(_runs_below(folder), reverse=True)
    if len(found) < count:
        names = f" ({found[0][1]})" if found else ""
        number = f"{len(found)} run{'' if len(found) == 1 else 's'}"
        raise FileCheckException(
            f"{folder} holds {number}{names}; {count} are needed. "
            "A run is a folder with step folders that hold records."
        )
    return [run for _, run in found[:count]]


def _runs_below(folder: str) -> Iterator[tuple[float, str]]:
    """The time of the last write in each run, in seconds since the epoch, and its folder."""
    start = folder.rstrip(os.sep).count(os.sep)
    for searched, (path, names, _) in enumerate(os.walk(folder)):
        if searched == _MOST_FOLDERS:
            raise FileCheckException(f"{folder} holds over {_MOST_FOLDERS:,} folders; give one closer to the runs.")
        written = _last_write(path) if _has_steps(path, names) else None
        if written is not None:
            yield written, path
        if written is not None or path.count(os.sep) - start >= _DEEPEST:
            names.clear()


def _has_steps(path: str, names: list[str]) -> bool:
    return bool(steps_in(path)) or any(steps_in(os.path.join(path, mode)) for mode in MODES if mode in names)


def _last_write(run: str) -> float | None:
    from probe.common.dump.reading.runs import find_dumps, last_write

    try:
        return max(last_write(dump.folder) for dump in find_dumps(run).dumps)
    except FileCheckException:
        return None


# --- ranks of a split model


def add_merging(parser: argparse.ArgumentParser) -> None:
    """Add the flags, which have one value for each side."""
    add = parser.add_argument_group("merging the ranks of a split model, a value for each side").add_argument
    ranks = arguments.count("a number of ranks")
    add("--rank_size", metavar="N", type=ranks, nargs="+", help="number of ranks: tp * pp * dp")
    add("--tp", metavar="N", type=ranks, nargs="+", help="ranks that share a layer (tensor parallel)")
    add("--pp", metavar="N", type=ranks, nargs="+", help="stages of layers (pipeline parallel)")
    add("--vpp", metavar="N", type=ranks, nargs="+", help="virtual stages of a stage")
    add("--order", metavar="TEXT", type=_order, nargs="+", help="order in which ranks are numbered (tp-cp-ep-dp-pp)")


def splits_given(args: argparse.Namespace, sides: int) -> list[Split]:
    """Return the split of the runs that the flags of merging give; nothing where none of these is given.

    Raises:
        MsprobeException: a flag is missing, or values do not fit; the message names the flag.
    """
    given = {flag: getattr(args, flag) for flag in _MERGING}
    if all(values is None for values in given.values()):
        return []
    from probe.shards.split import splits_of

    return splits_of(sides, given)


def _order(text: str) -> str:
    """The value of the flag; checked alone, for another flag that is missing says nothing of it."""
    from probe.shards.split import check_order

    return check_order(text)


# --- --fail-on


def is_failed(summaries: Sequence[Summary], level: str, invocation: Invocation, is_by_answer: bool = True) -> bool:
    """Return True if the runs differ by as much as `level`; if that cannot be told, it is reported as a problem.

    Args:
        summaries: The pairs of dumps.
        level: A value of ``--fail-on``.
        invocation: It takes the problem.
        is_by_answer: False if the rules of another tool give rows their results, whatever the answer is.
    """
    from probe.compare.summary import fails

    if level == NEVER:
        return False
    if fails(summaries, level):
        return True
    report_untold(summaries, level, invocation, is_by_answer)
    return False


def report_untold(summaries: Sequence[Summary], level: str, invocation: Invocation, is_by_answer: bool = True) -> None:
    """Report as a problem that runs without a difference of this level may have one in what was not compared."""
    why = why_untold(summaries, level == DIVERGENCE or is_by_answer)
    if why:
        what = "the runs diverge" if level == DIVERGENCE else f"--fail-on {level} applies"
        invocation.problem(f"cannot be told whether {what}: {why}")


def why_untold(summaries: Sequence[Summary], is_by_answer: bool) -> str:
    """Reason why a difference of this level is not excluded; empty if it is."""
    from probe.compare.summary import is_unjudged
    from probe.compare.summary_text import UNTOLD, headline, uncompared

    if not summaries:
        return "no dump of one has a counterpart in the other"
    lines = headline if is_by_answer and is_unjudged(summaries) else uncompared
    said = lines(summaries)[:1]
    return "".join(text for text, _ in said).removeprefix(f"{UNTOLD}: ")
