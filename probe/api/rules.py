"""Choice of rules: ``--rules``, its default in the environment, and the one place that loads those of msProbe.

The folder ``probe/msprobe_rules`` may be missing. Everything runs then by our own rules, and asking for those of
msProbe is an error.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Optional

from probe.common import log
from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from probe.compare.judgement import RowRules
    from probe.graph.rules import GraphRules
    from probe.monitor.alerts.rows import Judge
    from probe.monitor.settings import AlertSettings
    from probe.precheck.case_results import CaseRules

PROBE, MSPROBE = "probe", "msprobe"
"""Ours, and those of msProbe 26.2, its defects included."""
NAMES = (PROBE, MSPROBE)
OLDER = "msprobe-documented"
"""A name of earlier releases, for rules that are no more; it stands for the default of a question."""
STANDARDS = {"documented": OLDER, "26.2": MSPROBE}
"""Names of rules by those of the older flag and argument ``standard``."""
VARIABLE = "MSPROBE_RULES"
_WING = "probe.msprobe_rules"

_Locations = dict[str, Optional[str]]

RULES: dict[str, tuple[str, _Locations]] = {
    "rows": (PROBE, {PROBE: None, MSPROBE: f"{_WING}.compare.V26_2_ROWS"}),
    "nodes": (PROBE, {PROBE: "probe.graph.rules.PROBE_GRAPH", MSPROBE: f"{_WING}.graph.rules.MSPROBE_GRAPH"}),
    "cases": (PROBE, {
        PROBE: f"{_WING}.precheck.case_tables.PROBE_METHOD", MSPROBE: f"{_WING}.precheck.case_tables.V26_2",
    }),
    "anomalies": (MSPROBE, {PROBE: None, MSPROBE: f"{_WING}.answers.write_anomalies"}),
    "packs": (PROBE, {PROBE: None, MSPROBE: f"{_WING}.configcheck.sheets"}),
    "saving": (PROBE, {
        PROBE: "probe.rollout.saved_folders.PROBE_SAVING", MSPROBE: f"{_WING}.rollout.V26Saving",
    }),
    "saved tables": (PROBE, {
        PROBE: "probe.rollout.tables.PROBE_TABLES", MSPROBE: f"{_WING}.rollout.V26_TABLES",
    }),
}  # fmt: skip
"""For each question the name that is meant by default, and the location of the rules of each name that it allows.

``None``: these rules are our judgement and nothing besides, such as a file of msProbe's to write. A folder of saved
values has ``V26Saving``, a class that needs the statistics of a framework.
"""
WRITERS = {
    "db": f"{_WING}.graph.database.DatabaseWriter",
    "similarity": f"{_WING}.answers.write_similarity",
    "monitor": f"{_WING}.monitor.data2db",
    "devices": f"{_WING}.precheck.case_tables.compare_devices",
    "anomalies of a rank": f"{_WING}.monitor.AnomalyFile",
    "anomalies": f"{_WING}.monitor.analyse",
}
"""Files that msProbe alone has."""


def are_msprobes_there() -> bool:
    """True if the rules of msProbe are a part of this installation."""
    found = find_spec(_WING)
    # A folder that holds caches alone is found, too.
    return found is not None and found.origin is not None


def chosen(rules: str | None, default: str, allowed: Sequence[str] = NAMES) -> str:
    """The name of the rules that judge.

    Args:
        rules: The name that was given; ``None`` for that of the environment, or else the default.
        default: The default, if the rules of msProbe are there; otherwise ours.
        allowed: Names that mean something for the question.

    Raises:
        MsprobeException: there are no such rules, or they are not a part of this installation.
    """
    said, value = "rules", rules
    if value is None:
        said, value = VARIABLE, os.environ.get(VARIABLE) or None
    if value == OLDER:
        log.warning(f"{said} is {OLDER!r}, and these rules are no more: the default, {default!r}, is used.", once=OLDER)
        value = None
    if value is None:
        value = default if are_msprobes_there() or PROBE not in allowed else PROBE
        said = "the default of rules"
    if value not in allowed:
        raise MsprobeException(f"{said} is {value!r}; allowed: {', '.join(allowed)}.")
    if value != PROBE and not are_msprobes_there():
        ours = f"; allowed: {PROBE}" if PROBE in allowed else ""
        raise MsprobeException(f"{said} is {value!r}, and this installation lacks {_WING}{ours}.")
    return value


def is_asked_for(name: str, rules: str | None) -> bool:
    """True if these rules were chosen by name, in an argument or in the environment."""
    return (os.environ.get(VARIABLE) if rules is None else rules) == name


def asked_by(rules: str | None) -> str:
    """The flag or the variable by which other rules than the default were chosen.

    Example:
        >>> asked_by("msprobe")
        '--rules msprobe'
    """
    return f"{VARIABLE}={os.environ.get(VARIABLE, '')}" if rules is None else f"--rules {rules}"


def rules_for(question: str, rules: str | None) -> Any:
    """The rules that answer a question of the table.

    Args:
        question: A key of `RULES`.
        rules: Their name, as for `chosen`; ``None`` for that of the environment, or else the default of the question.

    Raises:
        MsprobeException: there are no such rules, or they are not a part of this installation.
    """
    default, locations = RULES[question]
    return _load(locations[chosen(rules, default, tuple(locations))])


def writer(file: str, wanted_by: str) -> Any:
    """The writer of a file that msProbe alone has.

    Args:
        file: A key of `WRITERS`.
        wanted_by: The option or the command that needs it, for the error.

    Raises:
        MsprobeException: msProbe's rules are not a part of this installation.
    """
    if not are_msprobes_there():
        raise MsprobeException(f"{wanted_by} needs {_WING}, which this installation lacks.")
    return _load(WRITERS[file])


def _load(location: str | None) -> Any:
    if location is None:
        return None
    module, _, name = location.rpartition(".")
    return getattr(importlib.import_module(module), name)


def graph_rules(rules: str | None) -> tuple[GraphRules, RowRules | None]:
    """The rules that give the nodes of graphs their statuses, and those that give results and messages to their rows.

    Args:
        rules: Their name, as for `chosen`.
    """
    return rules_for("nodes", rules), rules_for("rows", rules)


def case_rules(rules: str | None, headers: str = "english", against: str | None = None) -> CaseRules | None:
    """The rules of the drop-in tables of a pre-check; ``None`` for no such tables.

    Args:
        rules: Their name, as for `chosen`. Ours, if they are named, write no tables in the form of another tool; by
            default such tables follow our verdicts.
        headers: ``english`` or ``msprobe``: what the tables look like.
        against: A table of details of another device, by which the cases are judged as well.

    Raises:
        MsprobeException: there are no such rules, or `against` is given and there are no tables to compare with it.
    """
    is_left_out = is_asked_for(PROBE, rules)
    if not is_left_out and (are_msprobes_there() or chosen(rules, PROBE) != PROBE):
        made: CaseRules = _load(f"{_WING}.precheck.case_tables.MsprobeCases")(
            rules_for("cases", rules), headers, against
        )
        return made
    if against is not None:
        why = f"{asked_by(rules)} writes none" if is_left_out else f"this installation lacks {_WING}"
        raise MsprobeException(f"{against} is compared with the drop-in tables, and {why}.")
    return None


def monitor_rules(alert: AlertSettings, origin: str, as_msprobe: bool) -> Judge | None:
    """The rules of msProbe that a configuration names; ``None`` if it names none.

    Args:
        alert: The key ``alert``.
        origin: The file of the configuration.
        as_msprobe: True if every value is judged, as msProbe does.

    Raises:
        MsprobeException: a rule is wrong, or msProbe's rules are not a part of this installation.
    """
    if alert.rules or alert.dump:
        writer("anomalies", f'{origin}: "alert" with "{"rules" if alert.rules else "dump"}"')
    if not alert.rules:
        return None
    from probe.common.config.fields import Location
    from probe.msprobe_rules.monitor import NamedRules, named_rules

    rules = named_rules(alert.rules, Location(origin, "alert.rules"))
    return NamedRules(rules, alert.min_history, as_msprobe)
