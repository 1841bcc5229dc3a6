"""The kinds of rows of a run of a monitor, their number, and the faults that nothing recorded could show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.common.report.trends import ACTIVATION, ACTIVATION_GRADIENT, BEFORE, COURSE, REDUCED, START, UNREDUCED
from probe.monitor.alerts.families import Kind, kind_of
from probe.monitor.reading.run import MonitorRun
from probe.monitor.report.names import module_of


class _Part(NamedTuple):
    """One kind of rows."""

    title: str
    what: str
    """The things that have rows: modules, or parameters."""
    families: tuple[str, ...]
    keys: str
    """Keys of both monitors that collect it."""
    faults: str


_PARTS = (
    _Part("activations", "module", (ACTIVATION,), "xy_distribution, module", "the module that began"),
    _Part("gradients of activations", "module", (ACTIVATION_GRADIENT,), "xy_distribution, module",
          "a backward pass that goes wrong"),
    _Part("weight gradients", "parameter", (REDUCED, UNREDUCED), "wg_distribution, weight_grad",
          "gradients that explode, vanish or are not reduced"),
    _Part("optimizer state", "parameter", (), "mv_distribution, optimizer", "a state that is wrong"),
    _Part("weights", "parameter", (BEFORE, "param_updated"), "param_distribution, param",
          "weights that stay the same, jump, or part between ranks"),
    _Part("settings", "number", (COURSE,), "written by probe",
          "hyper-parameters that change, a loss scale that collapses, tied weights that part"),
)  # fmt: skip


class Watched(NamedTuple):
    """A kind of rows in a run."""

    part: str
    number: int
    """Modules, parameters or numbers."""
    what: str
    statistics: tuple[str, ...]
    keys: str
    faults: str

    @property
    def text(self) -> str:
        """The kind with its number, such as ``activations (12 modules: norm, mean)``."""
        things = f"{self.number} {self.what}{'' if self.number == 1 else 's'}"
        return f"{self.part} ({things}{': ' if self.statistics else ''}{', '.join(self.statistics)})"


def watched_in(run: MonitorRun) -> list[Watched]:
    """Every kind of rows; `number` is 0 for those that the run does not have."""
    names: dict[str, set[tuple[int, str]]] = {each.title: set() for each in _PARTS}
    statistics: dict[str, dict[str, None]] = {each.title: {} for each in _PARTS}
    for columns in (each for families in run.of_rank.values() for each in families.values()):
        part = next((each for each in _PARTS if columns.family in each.families), None)
        if part is None and kind_of(columns.family) is Kind.STATE and columns.family != START:
            part = _PARTS[3]
        if part is None:
            continue
        found = set(zip(columns.stage, columns.name))
        names[part.title] |= {(at, module_of(name)) for at, name in found} if part.what == "module" else found
        statistics[part.title].update(dict.fromkeys(columns.statistics if part.what != "number" else ()))
    return [
        Watched(each.title, len(names[each.title]), each.what, tuple(statistics[each.title]), each.keys, each.faults)
        for each in _PARTS
    ]


def coverage_lines(watched: list[Watched]) -> Iterator[str]:
    """Lines on what was watched, and on what was not."""
    yield "  watched: " + "; ".join(each.text for each in watched if each.number)
    for each in watched:
        if not each.number:
            yield f"  not watched: {each.part} ({each.keys}); it cannot show {each.faults}"


def coverage_json(watched: list[Watched]) -> dict[str, Any]:
    """Kinds of rows that were watched, and that were not, as ``--json`` has it."""
    return {
        "watched": [
            {"rows": each.part, each.what + "s": each.number, "statistics": list(each.statistics)}
            for each in watched if each.number
        ],
        "not_watched": [
            {"rows": each.part, "keys": each.keys, "faults": each.faults} for each in watched if not each.number
        ],
    }  # fmt: skip
