"""The kinds of rows of a run of a monitor, their number, and the faults that nothing recorded could show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.common.report.trends import ACTIVATION, ACTIVATION_GRADIENT, BEFORE, COURSE, REDUCED, START, UNREDUCED
from probe.monitor.alerts.families import Kind, kind_of, module_of
from probe.monitor.reading.run import MonitorRun


class Part(NamedTuple):
    """A kind of rows."""

    title: str
    what: str
    """The things that have rows: modules, or parameters."""
    families: tuple[str, ...]
    keys: str
    """Keys of both monitors that collect it."""
    faults: str


_PARTS = (
    Part("activations", "module", (ACTIVATION,), "xy_distribution, module", "the module that began"),
    Part("gradients of activations", "module", (ACTIVATION_GRADIENT,), "xy_distribution, module",
          "a backward pass that goes wrong"),
    Part("weight gradients", "parameter", (REDUCED, UNREDUCED), "wg_distribution, weight_grad",
          "gradients that explode, vanish or are not reduced"),
    Part("optimizer state", "parameter", (), "mv_distribution, optimizer", "a state that is wrong"),
    Part("weights", "parameter", (BEFORE, "param_updated"), "param_distribution, param",
          "weights that stay the same, jump, or part between ranks"),
    Part("settings", "number", (COURSE,), "written by probe",
          "hyper-parameters that change, a loss scale that collapses, tied weights that part"),
)  # fmt: skip


class Watched(NamedTuple):
    """A kind of rows in a run."""

    part: Part
    number: int
    """Modules, parameters or numbers; 0 if the run has no such rows."""
    statistics: tuple[str, ...]


def watched_in(run: MonitorRun) -> list[Watched]:
    """Every kind of rows, those that the run does not have as well."""
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
    return [Watched(each, len(names[each.title]), tuple(statistics[each.title])) for each in _PARTS]


def coverage_lines(watched: list[Watched]) -> Iterator[str]:
    """Lines on what was watched, such as ``activations (12 modules: norm, mean)``, and on what was not."""
    texts = []
    for part, number, statistics in watched:
        things = f"{number} {part.what}{'' if number == 1 else 's'}"
        if number:
            texts.append(f"{part.title} ({things}{': ' if statistics else ''}{', '.join(statistics)})")
    yield "  watched: " + "; ".join(texts)
    for part, number, _ in watched:
        if not number:
            yield f"  not watched: {part.title} ({part.keys}); it cannot show {part.faults}"


def coverage_json(watched: list[Watched]) -> dict[str, Any]:
    """Kinds of rows that were watched, and that were not, as ``--json`` has it."""
    return {
        "watched": [
            {"rows": part.title, f"{part.what}s": number, "statistics": list(statistics)}
            for part, number, statistics in watched if number
        ],
        "not_watched": [
            {"rows": part.title, "keys": part.keys, "faults": part.faults} for part, number, _ in watched if not number
        ],
    }  # fmt: skip
