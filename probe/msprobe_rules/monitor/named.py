"""The two rules of msProbe, ``AnomalyTurbulence`` and ``AnomalyNan``.

As msProbe has them, they alarm on every missing gradient and on every mean close to zero. As we have them
by default, missing gradients are not judged, and a value is compared only when it has a history and a size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from probe.common.config.fields import Location, quoted
from probe.common.errors import MsprobeException
from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats

TURBULENCE, NAN = "AnomalyTurbulence", "AnomalyNan"
NAMES = (TURBULENCE, NAN)
_TURBULENCE_OPS = ("norm", "mean")
_OLD, _NEW = 0.99, 0.01
"""The weights of the history and of a value in the history; those of msProbe (seen, exact)."""
_LEAST_SHARE = 1e-3
"""Ratio of a mean to the root mean square of its row, below which the mean is noise. For few elements the limit is one
divided by the square root of their number, the mean of random signs. A guess for more than a million elements."""


@dataclass(frozen=True)
class NamedRule:
    """One rule of the configuration."""

    name: str
    threshold: float | None = None

    def message(self, key: str, op: str, step: int, value: float, history: float) -> str:
        """The line that msProbe logs."""
        return (
            f"Rule {self.name} reports anomaly signal in ('{key}', '{op}') at step {step}, "
            f"current value {value}, history mean {history}."
        )


@dataclass
class _Histories:
    """The history of abs(value) of every row and op of a family."""

    mean: Floats
    count: Floats
    positions: dict[tuple[str, int, int], int] = field(default_factory=dict)


class NamedRules:
    """A judge that applies msProbe's rules in the order in which they are configured: the first that matches reports.

    Args:
        rules: The rules.
        min_history: Steps that a row needs before it is compared.
        is_exact: True if every value is judged as msProbe does it: from the second one on, missing gradients and means
            of noise as well. By default values that alarm are no history, which begins as an average.
    """

    def __init__(self, rules: Sequence[NamedRule], min_history: int = 5, is_exact: bool = False) -> None:
        self._rules = tuple(rules)
        self._min_history, self._is_exact = 1 if is_exact else min_history, is_exact
        self._histories: dict[str, _Histories] = {}

    def judge(self, rows: Sequence[FamilyRows]) -> list[Finding]:
        found: list[Finding] = []
        first = 0
        for each in rows:
            found += self._judge_family(each, first)
            # Rows are counted over all families where nobody counted calls.
            first += len(each.names)
        return found

    def _judge_family(self, rows: FamilyRows, first: int) -> list[Finding]:
        histories = self._histories.get(rows.family)
        if histories is None:
            empty = np.zeros((0, len(rows.ops)))
            histories = self._histories[rows.family] = _Histories(empty, empty)
        at = _positions(histories, rows)
        values, history, count = np.abs(rows.values), histories.mean[at], histories.count[at]
        # A statistic that msProbe does not compute has no history and is not judged.
        with np.errstate(invalid="ignore", over="ignore"):
            by = self._matching(rows, values, history, count)
            # As msProbe computes it, to the last digit.
            new = np.where(count, _NEW, 1.0) if self._is_exact else np.maximum(_NEW, 1 / (count + 1))
            after = np.where(count == 0, values, (_OLD if self._is_exact else 1 - new) * history + new * values)
            if not self._is_exact:
                after = np.where((by >= 0) | ~np.isfinite(after), history, after)
            histories.mean[at] = after
        histories.count[at] = count + 1
        found = []
        for row, op in zip(*np.nonzero(by >= 0)):
            rule = self._rules[by[row, op]]
            found.append(self._finding(rows, int(row), int(op), first, rule, float(history[row, op])))
        return found

    def _matching(self, rows: FamilyRows, values: Floats, history: Floats, count: Floats) -> np.ndarray:
        """The index of the first rule that matches each value, or -1."""
        found = np.full(values.shape, -1)
        for index, rule in enumerate(self._rules):
            matches = (
                self._nan(rule, values) if rule.name == NAN else self._turbulence(rule, rows, values, history, count)
            )
            found[matches & (found < 0)] = index
        if rows.judged is not None and not self._is_exact:
            found[~rows.judged] = -1
        return found

    @staticmethod
    def _nan(rule: NamedRule, values: Floats) -> Flags:
        found: Flags = np.isnan(values)
        return found if rule.threshold is None else found | (values > rule.threshold)

    def _turbulence(self, rule: NamedRule, rows: FamilyRows, values: Floats, history: Floats, count: Floats) -> Flags:
        found: Flags = np.zeros(values.shape, dtype=np.bool_)
        if rule.threshold is None:
            return found
        for op in set(_TURBULENCE_OPS).intersection(rows.ops):
            column = rows.ops.index(op)
            has_history = count[:, column] >= self._min_history
            jumps = values[:, column] > (1 + rule.threshold) * history[:, column]
            found[:, column] = jumps & has_history & self._has_size(rows, op, values[:, column])
        return found

    def _has_size(self, rows: FamilyRows, op: str, values: Floats) -> Flags | bool:
        norm = rows.column("norm")
        if op != "mean" or norm is None or rows.numel is None or self._is_exact:
            return True
        rms = norm / np.sqrt(np.maximum(rows.numel, 1))
        share = np.maximum(_LEAST_SHARE, 1 / np.sqrt(np.maximum(rows.numel, 1)))
        return ~(values < share * rms)

    def _finding(self, rows: FamilyRows, row: int, op: int, first: int, rule: NamedRule, history: float) -> Finding:
        value = float(rows.values[row, op])
        made = rows.finding(row, rows.ops[op], rule.name, value, f"history mean {history:.6g}", "")
        why = rule.message(made.key, made.op, made.step, value, history)
        call = made.call if rows.calls is not None else first + row
        return Finding(**{**made.as_json(), "why": why, "call": call})


def _positions(histories: _Histories, rows: FamilyRows) -> slice | list[int]:
    """The positions of rows in the histories, which grow with rows that are new."""
    known = histories.positions
    at = [known.setdefault(key, len(known)) for key in rows.row_keys()]
    missing = len(known) - len(histories.mean)
    if missing:
        more = np.zeros((missing, histories.mean.shape[1]))
        histories.mean = np.concatenate((histories.mean, more))
        histories.count = np.concatenate((histories.count, more))
    return at


def named_rules(rules: Sequence[object], location: Location) -> tuple[NamedRule, ...]:
    """The rules of a configuration: each a name, or ``{"rule_name": "AnomalyNan", "args": {"threshold": 1e6}}``.

    Raises:
        MsprobeException: a rule is wrong.
    """
    return tuple(_rule(each, location.item(at)) for at, each in enumerate(rules))


def _rule(entry: object, location: Location) -> NamedRule:
    if isinstance(entry, str):
        entry = {"rule_name": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("rule_name"), str):
        raise location.wrong(entry, 'an object with "rule_name" and "args", or a name')
    name, args = entry["rule_name"], entry.get("args", {})
    if name not in NAMES:
        raise Location(location.origin, f"{location.key}.rule_name").wrong(name, quoted(NAMES))
    inner = Location(location.origin, f"{location.key}.args")
    if not isinstance(args, Mapping):
        raise inner.wrong(args, 'an object with "threshold"')
    threshold, inner = args.get("threshold"), Location(location.origin, f"{inner.key}.threshold")
    if threshold is None:
        if name == TURBULENCE:
            text = f'{inner.origin}: "{inner.key}" is missing; {TURBULENCE} needs a number of 0 or more.'
            raise MsprobeException(text)
        return NamedRule(name)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not threshold >= 0:
        raise inner.wrong(threshold, "a number of 0 or more")
    return NamedRule(name, float(threshold))
