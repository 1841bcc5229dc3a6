"""The outcomes as tables."""

from __future__ import annotations

from collections.abc import Sequence

from measure import table
from planted_faults.faults import FAULTS
from planted_faults.judging import CLEAN, SIDES, Outcome
from planted_faults.settings import NAMES, Setting

EXPLANATION = """\
Each model is dumped without fault and with one fault of each kind in one layer in its middle, for one training step.
The run with the fault sums products in another order, on two threads and without oneDNN, so that nearly all tensors
differ in their last bits before the fault is met. Each pair is compared twice, with the fault in the target and in the
golden run. Right is a first divergence that names the call at fault: at L0 the innermost module that holds it, at L1
the function call, at mix either. Where a call is missing or one too many, it is that one or the one that gets another
value for it. Clean pairs have no fault and round differently: another number of threads, another order of sums, sums in
float64, without oneDNN, and all of these; right is to name nothing.

At bfloat16 both runs have weights and inputs in that type, where a cast to it is no fault.

"or a suspect" counts the faults that are named first or among the next suspects, "first error" those that one would
find at the first row of the table whose result is an error.
"""

EACH_FAULT = """\
Two entries are those with the fault in the target and with the fault in the golden run. A rank is the place of the
planted call among what is named, - where it is not named."""


def report(found: Sequence[Outcome], settings: Sequence[Setting], faults: Sequence[str]) -> str:
    """All tables, in Markdown."""
    parts = [f"## Totals\n\n{totals(found, settings, faults)}", _next_calls(found, settings)]
    parts.append(f"## Clean pairs\n\n{clean_pairs(found, settings)}")
    if any(outcome.planted for outcome in found):
        parts.append(f"## Each fault\n\n{EACH_FAULT}\n\n{each_fault(found, settings)}")
    parts.append(f"## What was named wrongly\n\n{wrong(found)}")
    return "\n\n".join(part for part in parts if part)


def totals(found: Sequence[Outcome], settings: Sequence[Setting], faults: Sequence[str]) -> str:
    """How many are right, by level and task and by kind of fault."""
    rows = []
    for setting in settings:
        here = [outcome for outcome in found if outcome.setting == setting]
        planted = [outcome for outcome in here if outcome.planted]
        at_all = sum(outcome.rank is not None for outcome in planted)
        rows.append(
            [
                str(setting),
                *(_share([outcome for outcome in planted if outcome.fault == fault]) for fault in faults),
                _share(planted),
                f"{at_all} of {len(planted)}",
                f"{sum(outcome.by_verdict for outcome in planted)} of {len(planted)}",
                _share([outcome for outcome in here if not outcome.planted]),
            ]
        )
    return table(["level, task", *faults, "all", "or a suspect", "first error", "clean, silent"], rows)


def _share(found: Sequence[Outcome]) -> str:
    return f"{sum(outcome.right for outcome in found)} of {len(found)}" if found else "-"


def _next_calls(found: Sequence[Outcome], settings: Sequence[Setting]) -> str:
    counts = {setting: sum(each.is_next for each in found if each.setting == setting) for setting in settings}
    parts = [f"{count} at {setting}" for setting, count in counts.items() if count]
    if not parts:
        return ""
    return f"Of the right ones these name the call after a missing one, or after one too many: {'; '.join(parts)}."


def clean_pairs(found: Sequence[Outcome], settings: Sequence[Setting]) -> str:
    """How many of them are silent, and how much the rounding changes."""
    clean = [outcome for outcome in found if not outcome.planted]
    rows = []
    for pair in dict.fromkeys(outcome.fault for outcome in clean):
        here = [outcome for outcome in clean if outcome.fault == pair]
        apart = [outcome.apart for outcome in here]
        silent = [_share([outcome for outcome in here if outcome.setting == setting]) for setting in settings]
        roundings = " against ".join(CLEAN[run] for run in pair.split(", "))
        rows.append([roundings, f"{min(apart):.0%} to {max(apart):.0%}", *silent])
    return table(["how they round", "tensors that differ", *(str(each) for each in settings)], rows)


def each_fault(found: Sequence[Outcome], settings: Sequence[Setting]) -> str:
    """A line for each fault."""
    shown = NAMES if NAMES in settings else settings[-1]
    by_fault: dict[tuple[str, str], dict[tuple[Setting, str], Outcome]] = {}
    for outcome in found:
        if outcome.planted:
            by_fault.setdefault((outcome.model, outcome.fault), {})[outcome.setting, outcome.side] = outcome
    ranked = [f"rank at {each}" for each in settings]
    head = ["model", "fault", "planted", f"named first at {shown}", *ranked]
    lines = [head, ["---"] * len(head)]
    for (model, fault), here in by_fault.items():
        planted = FAULTS[model][fault]
        first = [here[shown, side].shown for side in SIDES]
        named = dict.fromkeys(f"`{record}`" if record else "nothing" for record in first)
        ranks = [_ranks(here, setting) for setting in settings]
        lines.append([model, fault, f"{planted.what}, in `{planted.module}`", " / ".join(named), *ranks])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ranks(here: dict[tuple[Setting, str], Outcome], setting: Setting) -> str:
    """In bfloat16 not every kind of fault is planted."""
    if (setting, "target") not in here:
        return ""
    return " / ".join(str(here[setting, side].rank or "-") for side in SIDES)


def wrong(found: Sequence[Outcome]) -> str:
    """What is not right, in full."""
    lines = []
    for outcome in found:
        if not outcome.right:
            wanted = f" Planted: {', '.join(outcome.planted)}; rank {outcome.rank or '-'}." if outcome.planted else ""
            named = f"{outcome.shown} ({outcome.reason})" if outcome.shown else "nothing"
            where = f"{outcome.setting}: {outcome.model}, {outcome.fault} in the {outcome.side}"
            lines.append(f"* {where}: named {named}.{wanted}")
    return "\n".join(lines) or "Nothing."
