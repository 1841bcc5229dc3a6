"""What comparisons of the dumps name, held against what was planted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planted_faults.faults import FAULTS
from planted_faults.settings import NAMES, Setting, Variant
from planted_faults.truth import Truth, truth

from probe import read
from probe.common.align.row import ERROR, Row
from probe.compare.comparison import compare_dumps
from probe.compare.output.summary import SUSPECTS

CLEAN = {
    "clean_a": "plain",
    "clean_b": "everything",
    "clean_threads": "threads",
    "clean_order": "order",
    "clean_wider": "wider",
    "clean_library": "library",
}
"""Runs without fault -> how they round."""
FAULTY = "everything"
"""How a run with a fault rounds; it is held against the first of the others."""
CLEAN_PAIRS = (*(("clean_a", other) for other in CLEAN if other != "clean_a"), ("clean_order", "clean_wider"))
SIDES = ("target", "golden")


@dataclass
class Outcome:
    """What one comparison named."""

    model: str
    fault: str
    """Its kind; of two runs without fault their names."""
    side: str
    """Which side has the fault, or is the second of two runs without fault."""
    setting: Setting
    planted: list[str]
    """The records at fault on either side; none where there is no fault."""
    named: str
    """What was named first, by its name in the target; empty where that does not have it."""
    golden_named: str
    module: str
    reason: str
    """In the words of the comparison."""
    rank: int | None
    """The place of the first that is at fault among what was named, from 1; ``None`` where none is."""
    is_next: bool
    """What was named first is the call after a missing one, or after one too many."""
    by_verdict: bool
    """The first row of the table with an error belongs to a record at fault; what one would look at otherwise."""
    apart: float
    """The share of tensors whose statistics differ in any digit."""

    @property
    def right(self) -> bool:
        return self.rank == 1 if self.planted else not self.shown

    @property
    def shown(self) -> str:
        """What was named first, on whichever side it is."""
        return self.named or self.golden_named


def kinds(faults: Sequence[str], setting: Setting) -> list[str]:
    """Those of the kinds that make sense there: in bfloat16 a cast to it is none."""
    return [fault for fault in faults if setting.dtype != "bfloat16" or fault != "bf16"]


def variants(models: Sequence[str], faults: Sequence[str], setting: Setting) -> list[Variant]:
    """The runs that comparing these takes."""
    found = []
    for model in models:
        found += [Variant(model, name, rounding) for name, rounding in CLEAN.items()]
        found += [Variant(model, fault, FAULTY, fault) for fault in kinds(faults, setting)]
    return found


def outcomes(
    dumps: Path, models: Sequence[str], faults: Sequence[str], settings: Sequence[Setting]
) -> Iterator[Outcome]:
    """Compare everything: each fault in the target and in the golden run, and the runs without fault."""
    for model in models:
        folder = dumps / model
        for setting in settings:
            names = (setting if setting.level == "mix" else NAMES).folder
            for fault in kinds(faults, setting):
                planted = FAULTS[model][fault]
                known = truth(planted, folder / fault / names), truth(planted, folder / "clean_a" / names, clean=True)
                for side in SIDES:
                    yield judge(folder, setting, fault, side, (fault, "clean_a"), known)
            for first, second in CLEAN_PAIRS:
                for side in SIDES:
                    yield judge(folder, setting, f"{first}, {second}", side, (second, first), None)


def judge(
    folder: Path, setting: Setting, fault: str, side: str, runs: tuple[str, str], known: tuple[Truth, Truth] | None
) -> Outcome:
    """Compare the first of `runs`, as `side`, with the second; `known` is at fault in each of them."""
    dumps = [read(folder / run / setting.folder) for run in runs]
    target, golden = dumps if side == "target" else dumps[::-1]
    result = compare_dumps(target, golden)
    divergence = result.divergence
    found = [] if divergence is None else [divergence.first, *divergence.suspects[:SUSPECTS]]
    named = [(suspect.record, suspect.golden_record) for suspect in found]
    first = found[0] if found else None
    outcome = Outcome(
        folder.name, fault, side, setting, [], *(named[0] if named else ("", "")),
        first.module if first else "", first.reason if first else "", None, False,
        False, _share_apart(result.rows),
    )  # fmt: skip
    if known is not None:
        level = setting.level
        here, there = known if side == "target" else known[::-1]
        is_planted = [mine in here.planted(level) or theirs in there.planted(level) for mine, theirs in named]
        is_next = [mine in here.next(level) or theirs in there.next(level) for mine, theirs in named]
        outcome.planted = list(dict.fromkeys([*here.planted(level), *there.planted(level)]))
        outcome.rank = next((place for place, either in enumerate(zip(is_planted, is_next), 1) if any(either)), None)
        outcome.is_next = outcome.rank == 1 and not is_planted[0]
        row = next((row for row in result.rows if row.result == ERROR), None)
        outcome.by_verdict = row is not None and (
            row.record in [*here.planted(level), *here.next(level)]
            or row.golden_record in [*there.planted(level), *there.next(level)]
        )
    return outcome


def _share_apart(rows: Sequence[Row]) -> float:
    pairs = [
        (row.target, row.golden)
        for row in rows
        if row.target is not None and row.golden is not None and row.target.is_tensor and row.golden.is_tensor
    ]
    apart = sum((n.max, n.min, n.mean, n.norm) != (b.max, b.min, b.mean, b.norm) for n, b in pairs)
    return apart / len(pairs)
