"""Choice of rules: ``--rules``, its default in the environment, and the one place that loads those of msProbe.

The folder ``probe/msprobe_rules`` may be missing. Everything runs then by our own rules, and asking for those of
msProbe is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from probe.checkpoint.report import Report
    from probe.compare.rules import RowRules
    from probe.configcheck.pack import Pack
    from probe.graph.output.formats import MakeWriter
    from probe.graph.rules.protocol import GraphRules
    from probe.monitor.alerts.rows import Judge
    from probe.monitor.setup.alert import AlertSettings
    from probe.msprobe_rules.monitor.anomaly_file import AnomalyFile
    from probe.msprobe_rules.precheck.two_devices import TwoDevices
    from probe.msprobe_rules.rollout.saved_files import Statistics
    from probe.overflow.report_files import WriteAnomalies
    from probe.precheck.rules import CaseRules
    from probe.rollout.saving.rules import SavingRules
    from probe.rollout.table_rows import SavedTableRules

PROBE, MSPROBE, DOCUMENTED = "probe", "msprobe", "msprobe-documented"
"""Ours; those of msProbe 26.2, its defects included; those that msProbe's documentation describes."""
NAMES = (PROBE, MSPROBE, DOCUMENTED)
VARIABLE = "MSPROBE_RULES"
_WING = "probe.msprobe_rules"


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
    if value is None:
        value = default if are_msprobes_there() or PROBE not in allowed else PROBE
        said = "the default of rules"
    if value not in allowed:
        raise MsprobeException(f"{said} is {value!r}; allowed: {', '.join(allowed)}.")
    if value != PROBE and not are_msprobes_there():
        ours = f"; allowed: {PROBE}" if PROBE in allowed else ""
        raise MsprobeException(f"{said} is {value!r}, and this installation lacks {_WING}{ours}.")
    return value


def asked_by(rules: str | None) -> str:
    """The flag or the variable by which other rules than the default were chosen.

    Example:
        >>> asked_by("msprobe")
        '--rules msprobe'
    """
    return f"{VARIABLE}={os.environ.get(VARIABLE, '')}" if rules is None else f"--rules {rules}"


def _require(what: str) -> None:
    """Refuse what only msProbe's rules can do, where these are not a part of this installation."""
    if not are_msprobes_there():
        raise MsprobeException(f"{what} needs {_WING}, which this installation lacks.")


# --- compare and graphs


def row_rules(rules: str | None) -> RowRules:
    """The rules that give the rows of a comparison their results.

    Args:
        rules: Their name, as for `chosen`; by default those of msProbe's documentation.

    Raises:
        MsprobeException: there are no such rules.
    """
    return _row_rules(chosen(rules, DOCUMENTED))


def _row_rules(name: str) -> RowRules:
    if name == PROBE:
        from probe.compare.rules import PROBE_ROWS

        return PROBE_ROWS
    if name == MSPROBE:
        from probe.msprobe_rules.compare.v26_2 import V26_2_ROWS

        return V26_2_ROWS
    from probe.msprobe_rules.compare.rows import DOCUMENTED_ROWS

    return DOCUMENTED_ROWS


def graph_rules(rules: str | None) -> tuple[GraphRules, RowRules]:
    """The rules that give the nodes of graphs their statuses, and those that give results and messages to their rows.

    Args:
        rules: Their name, as for `chosen`. By default nodes are judged by our rules, and rows as `row_rules` has it.
            msProbe has one set of rules for graphs, which both of its names mean.

    Raises:
        MsprobeException: there are no such rules.
    """
    name = chosen(rules, PROBE)
    is_default = rules is None and not os.environ.get(VARIABLE)
    rows = row_rules(None) if is_default else _row_rules(name)
    if name == PROBE:
        from probe.graph.rules.probe import PROBE_GRAPH

        return PROBE_GRAPH, rows
    from probe.msprobe_rules.graph.rules import MsprobeGraph

    return MsprobeGraph(), rows


def graph_writers(formats: Sequence[str]) -> Mapping[str, MakeWriter]:
    """Factory of the writers for the formats of msProbe.

    Raises:
        MsprobeException: there is such a format, and msProbe's rules are not a part of this installation.
    """
    if "db" not in formats:
        return {}
    _require("--format db")
    from probe.msprobe_rules.graph.database_writer import DatabaseWriter

    return {"db": DatabaseWriter}


# --- other files of msProbe


def anomaly_file(rules: str | None) -> WriteAnomalies | None:
    """Writer of msProbe's file of anomalies; ``None`` by our rules.

    Args:
        rules: Their name, as for `chosen`; by default those of msProbe.

    Raises:
        MsprobeException: there are no such rules.
    """
    if chosen(rules, MSPROBE) == PROBE:
        return None
    from probe.msprobe_rules.anomalies import write_anomalies

    return write_anomalies


def similarity_file(wanted_by: str = "--format msprobe") -> Callable[[Report, str], None]:
    """Writer of msProbe's file of two checkpoints: takes the report and the path.

    Args:
        wanted_by: The option or the command that needs it, for the error.

    Raises:
        MsprobeException: msProbe's rules are not a part of this installation.
    """
    _require(wanted_by)
    from probe.msprobe_rules.checkpoints import write_similarity

    return write_similarity


def monitor_database() -> Callable[[str, str, Mapping[str, str] | None], str]:
    """Writer of the database of a monitor.

    Raises:
        MsprobeException: the rules of msProbe are not a part of this installation.
    """
    _require("data2db")
    from probe.msprobe_rules.monitor.database import data2db

    return data2db


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
        _require(f"{origin}: \"alert\" with \"{'rules' if alert.rules else 'dump'}\"")
    if not alert.rules:
        return None
    from probe.common.config.fields import Location
    from probe.msprobe_rules.monitor.named import NamedRules, named_rules

    rules = named_rules(alert.rules, Location(origin, "alert.rules"))
    return NamedRules(rules, alert.min_history, as_msprobe)


def monitor_anomalies() -> tuple[type[AnomalyFile], Callable[..., str]]:
    """Writer of a rank's file of anomalies, and of the file of all ranks.

    Raises:
        MsprobeException: msProbe's rules are not a part of this installation.
    """
    _require("anomaly.json")
    from probe.msprobe_rules.monitor.anomaly_file import AnomalyFile, analyse

    return AnomalyFile, analyse


# --- the pre-check


def case_rules(rules: str | None, headers: str = "english", against: str | None = None) -> CaseRules | None:
    """The rules of the drop-in tables of a pre-check; ``None`` for ours alone, which write no such tables.

    Args:
        rules: Their name, as for `chosen`; by default those of msProbe's documentation.
        headers: ``english`` or ``msprobe``: what the tables look like.
        against: A table of details of another device, by which the cases are judged as well.

    Raises:
        MsprobeException: there are no such rules, or `against` is given and there are no tables to compare with it.
    """
    name = chosen(rules, DOCUMENTED)
    if name == PROBE:
        if against is not None:
            raise MsprobeException(
                f"{against} is compared by msProbe's rules only, but there is {asked_by(rules)}; allowed: {MSPROBE}, "
                f"{DOCUMENTED}."
            )
        return None
    from probe.msprobe_rules.precheck.cases import MsprobeCases

    return MsprobeCases(_method(name), headers, against)


def _method(name: str) -> Any:
    from probe.msprobe_rules.precheck import methods

    return methods.V26_2 if name == MSPROBE else methods.DOCUMENTED


def compare_devices(npu: str, gpu: str, folder: str, rules: str | None = None, headers: str = "english") -> TwoDevices:
    """Judge the table of details of an NPU by that of a GPU, and write the two tables of that.

    Args:
        npu, gpu: The two tables of details.
        folder: Where the tables are written.
        rules: Whose rules judge, as for `chosen`; by default those of msProbe's documentation. There are none of ours.
        headers: ``english`` or ``msprobe``: what the tables look like.

    Raises:
        FileCheckException: a file cannot be read, or the folder cannot be made.
        MsprobeException: there are no such rules, or a table is damaged.
    """
    name = chosen(rules, DOCUMENTED, (MSPROBE, DOCUMENTED))
    from probe.msprobe_rules.precheck import two_devices

    return two_devices.compare_devices(npu, gpu, folder, _method(name), headers)


# --- configuration check


def configuration_sheets() -> Callable[[Pack, Pack], dict[str, list[list[Any]]]]:
    """Maker of the sheets of msProbe's ``result.xlsx`` of two packs.

    Raises:
        MsprobeException: the rules of msProbe are not a part of this installation.
    """
    _require("config_check --rules msprobe")
    from probe.msprobe_rules.configcheck.sheets import sheets

    return sheets


# --- what a script saves, and its tables


def saving_rules(rules: str | None, statistics: Statistics) -> SavingRules:
    """The form of the files of saved values.

    Args:
        rules: The name of the rules, as for `chosen`; ours by default. Both names of msProbe mean its release 26.2.
        statistics: Max, min, mean and norm of values of a dtype, as the framework computes them.

    Raises:
        MsprobeException: there are no such rules.
    """
    if chosen(rules, PROBE) == PROBE:
        from probe.rollout.saving.rules import PROBE_SAVING

        return PROBE_SAVING
    from probe.msprobe_rules.rollout.saved_files import V26Saving

    return V26Saving(statistics)


def saved_table_rules(rules: str | None) -> SavedTableRules:
    """The rows of the tables of saved values.

    Args:
        rules: The name of the rules, as for `chosen`; ours by default. Both names of msProbe mean its release 26.2.

    Raises:
        MsprobeException: there are no such rules.
    """
    if chosen(rules, PROBE) == PROBE:
        from probe.rollout.table_rows import PROBE_TABLES

        return PROBE_TABLES
    from probe.msprobe_rules.rollout.saved_tables import V26_TABLES

    return V26_TABLES
