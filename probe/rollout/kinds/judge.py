"""All kinds of mismatch that a set of differences shows, the strongest first.

What concerns a group of tokens is looked for first and taken out, until rounding explains the rest or no group is left;
what concerns all tokens is looked for in the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.rollout.kinds.differences import LAYERS, Differences, Level, level_of
from probe.rollout.kinds.finding import (
    NONE,
    PRECISION,
    ROUNDING,
    SHIFTED,
    SPECIAL,
    STALE,
    TEMPERATURE,
    Finding,
    is_beyond_rounding,
    routing,
    shifted,
    unrelated,
)
from probe.rollout.kinds.groups import Groups
from probe.rollout.kinds.processed import penalty, raised_ids, renormalised, temperature

_MOST_GROUPS = 3
"""Groups that are named one after the other; a guess."""
_ONE_TOKEN = 5.0
"""Ratio of the differences of special tokens to those of the others."""
_FEWEST = 8
"""Tokens of which something can be told."""
_APART = 2.5
"""Ratio of the differences of a group to those of the others: a little less than the factor of three that the
logarithms must show, whose means are not those of squares."""
_FAR_APART = 20.0
"""Ratio that no right run has between groups, even where the level of the dtype allows both: it is a bound, and the
others show what rounding does. Long contexts and other batches change it by a few times."""
_STEPS_APART = 7.0
"""Ratio between steps or ranks that no right run has: they run the same kernels over many tokens. A guess: errors of
contexts that grow, or of batches of another size, change by two or three times."""
_FEW = 0.2
"""Share of the tokens that are too few to show what rounding does, unless they are a step or a rank: the first tokens
come from the prefill, which has no cache of a shorter dtype. A guess."""


@dataclass(frozen=True)
class Judgement:
    """The kinds, the strongest first; never empty."""

    findings: tuple[Finding, ...]
    dtype: str
    """The dtype whose rounding explains most tokens, or several of them; empty if none does."""
    explained: float
    """The size of differences relative to 1 - p that this rounding explains."""
    size: float
    """Their size, of all tokens."""
    is_assumed: bool = False
    """True if nobody said in which dtype both sides compute."""


def judge(differences: Differences) -> Judgement:
    """Name the kinds of mismatch of some differences, all of which are finite."""
    if not np.any(differences.signed):
        exact = Finding(NONE, "the log-probabilities of both sides are equal")
        return Judgement((exact,), differences.dtype, 0.0, 0.0)
    found = list(_found(differences))
    level, explained = differences.level, differences.explained
    if not found:
        level = differences.level_of_body
        explained = differences.size_at_level(level)
        found = [_rounding(differences)]
    dtype = differences.described(level) if differences.typical <= explained else ""
    return Judgement(tuple(found), dtype, explained, differences.size, not differences.dtype)


def _found(differences: Differences) -> list[Finding]:
    rest, found = differences, []
    if rest.size > rest.explained:
        moved = shifted(rest)
        if moved is not None:
            found.append(moved)
            rest = _without(rest, moved)
        raised = raised_ids(rest)
        if raised is not None:
            # All others are lower by it, as with a temperature.
            return [*found, raised]
    punished = penalty(rest)
    if punished is not None:
        # What grows with the number of tokens that were there grows with the position.
        heated = temperature(rest)
        return [*found, punished if heated is None or heated.strength < punished.strength else heated]
    for _ in range(_MOST_GROUPS):
        if len(rest.tokens) < _FEWEST:
            break
        group = _group(rest)
        if group is None:
            break
        found.append(group)
        rest = _without(rest, group)
    of_all = []
    if len(rest.tokens) >= _FEWEST:
        of_all = _findings_on_all(rest, bool(found))
    elif not found and rest.size > rest.explained:
        of_all = [_precision(rest)]
    if found and found[0].picked is not None and not any(each.kind == TEMPERATURE for each in of_all):
        of_all += _findings_on_most(differences, found[0])
    # A temperature changes some tokens more than others, but no group has it alone. A penalty on one token does, and
    # moves the others by a little.
    is_of_all = any(each.kind == TEMPERATURE for each in of_all) and not (
        any(each.kind == SPECIAL for each in found) and differences.size_of(_picked(found)) > _ONE_TOKEN * rest.size
    )
    return of_all + found if is_of_all else found + of_all


def _picked(found: list[Finding]) -> Any:
    """The tokens of the first group, by which the others are taken out, too."""
    return found[0].picked


def _findings_on_most(differences: Differences, group: Finding) -> list[Finding]:
    """Findings on a group of most tokens, if it is processed logits: the others have nothing to be processed."""
    assert group.picked is not None
    if np.count_nonzero(group.picked) * 2 < len(group.picked) or group.kind == SHIFTED:
        return []
    most = replace(differences, tokens=differences.tokens.only(group.picked))
    return [found for test in (temperature, renormalised) if (found := test(most)) is not None][:1]


def _group(differences: Differences) -> Finding | None:
    """The group of tokens that explains most, if rounding does not explain its differences."""
    best = None
    for each in Groups(differences).findings():
        assert each.picked is not None
        left = ~each.picked
        size, others = differences.size_of(each.picked), differences.size_of(left)
        # A growing difference is not a separate group.
        apart = 1.0 if each.numbers.get("grows") else _APART
        is_stale = each.kind == STALE
        is_apart = size > max(differences.explained_by(left), apart * others) or (
            (each.factor >= _STEPS_APART if is_stale else max(size, each.factor * others) >= _FAR_APART * others)
            and (is_stale or np.count_nonzero(left) > _FEW * len(left))
            and _are_measured(differences, left, others)
        )
        if is_apart and (best is None or each.strength > best.strength):
            best = each
    return best


def _are_measured(differences: Differences, left: Any, size: float) -> bool:
    """True if tokens show how large rounding is in this run, and not that both sides ran one kernel on them.

    Results of one kernel are equal, or differ by the float32 in which log_softmax may be computed. In a run in float32
    errors of logits add to that rounding, whose mean square is a third of that of its bound if it is uniform.
    """
    least = level_of("float32", differences.choices, differences.entropy, differences.layers or LAYERS)
    is_exact = differences.level.dtype == least.dtype
    smallest = least.floor / math.sqrt(3) if is_exact else differences.size_at_level(least)
    return bool(np.count_nonzero(differences.signed[left]) * 2 > np.count_nonzero(left) and size > smallest)


def _findings_on_all(differences: Differences, has_groups: bool) -> list[Finding]:
    """Findings on tokens of any sequence and position."""
    is_beyond = differences.size > differences.explained
    if is_beyond and (found := unrelated(differences)) is not None:
        return [found]
    if (found := temperature(differences)) is not None:
        return [found]
    is_small = differences.size <= differences.size_at_level(differences.levels[0])
    if not is_small and (found := renormalised(differences)) is not None:
        return [found]
    if not is_beyond:
        return []
    spread = routing(differences)
    if spread is not None:
        return [spread]
    # A few tokens that are nearly certain are no sign of a dtype.
    if differences.body <= differences.size_at_level(differences.level_of_body) and not is_beyond_rounding(differences):
        return []
    # The rest after a group, such as the tokens after it, is not a part of its own.
    return [] if has_groups else [_precision(differences)]


def _without(differences: Differences, finding: Finding) -> Differences:
    assert finding.picked is not None
    return replace(differences, tokens=differences.tokens.only(~finding.picked))


def _precision(differences: Differences) -> Finding:
    level = differences.level_of_body
    explained = differences.size_at_level(level)
    where = "the differences are as large everywhere and have no trend" if differences.body > explained else (
        f"{int(np.count_nonzero(differences.far))} tokens are far off, without a pattern"
    )  # fmt: skip
    text = (
        f"{where}; size relative to 1 - p: {differences.size:.2g} nats, expected at most {explained:.2g} by rounding "
        f"of {_assumed(differences, level)}: another dtype or kernel in a part, or other weights"
    )
    return Finding(PRECISION, text, {"size": differences.size, "explained": explained})


def _rounding(differences: Differences) -> Finding:
    level = differences.level_of_body
    explained = differences.size_at_level(level)
    text = (
        f"the rounding of {_assumed(differences, level)} explains the differences; size relative to 1 - p: "
        f"{differences.size:.2g} nats, expected at most {explained:.2g}"
    )
    return Finding(ROUNDING, text, {"size": differences.size, "explained": explained})


def _assumed(differences: Differences, level: Level) -> str:
    return differences.described(level) + ("" if differences.dtype else " (assumed: no dtype is given)")
