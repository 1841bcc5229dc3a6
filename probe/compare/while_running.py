"""A step compared with that of the golden run while it runs: what both have so far, by the judgement of ``compare``."""

from __future__ import annotations

from collections import Counter

from probe.common.dump.naming import is_gradients
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.common.interfaces import LiveDivergence
from probe.compare.comparison import compared
from probe.compare.options import Comparison, Options
from probe.compare.result import NONE
from probe.compare.summary import summarise
from probe.compare.summary_text import headline


def judge(target: str, golden: str, before: tuple[str, str] | None, is_over: bool) -> LiveDivergence | None:
    """See `probe.common.interfaces.JudgeStep`.

    Raises:
        MsprobeException: one of the two cannot be read, or they cannot be compared.
    """
    mine, theirs = read(target), read(golden)
    if not is_over:
        mine, theirs = _so_far(mine, theirs)
    for dump in (mine, theirs):
        if dump.task != "tensor":
            continue
        # Values are compared by their sketches: reading files would keep the training waiting.
        dump.task = "statistics"
    result = compared(Comparison(mine, theirs, Options(), before), values=False, release=True).result
    summary = summarise(result)
    if summary.answer == NONE or (result.divergence is None and not is_over):
        return None
    lines = tuple(text for text, _ in headline([summary]))
    if result.divergence is None:
        return LiveDivergence("", lines)
    first = result.divergence.first
    return LiveDivergence(first.record or first.golden_record, lines)


def _so_far(target: Dump, golden: Dump) -> tuple[Dump, Dump]:
    """The records of a step that goes on, and those of the golden run up to the last of them.

    Gradients of parameters come one by one, and in another order in each run: of those that are not all there, nobody
    can tell if they are missing.
    """
    names = {record.name for record in target}
    last = max((index for index, record in enumerate(golden) if record.name in names), default=-1)
    reached = {record.name for record in golden.records[: last + 1]}
    if not reached:
        raise MsprobeException(f"{target.path} and {golden.path} have no record in common so far.")
    whole = {name for name in names & reached if not is_gradients(name) or _has_all(target, golden, name)}

    def is_wanted(name: str) -> bool:
        return name in whole or (not is_gradients(name) and name in (names | reached))

    return target.of_records(is_wanted), golden.of_records(lambda name: is_wanted(name) and name in reached)


def _has_all(target: Dump, golden: Dump, name: str) -> bool:
    mine, theirs = (Counter(item.name for item in dump.items(dump[name])) for dump in (target, golden))
    return mine == theirs
