"""The answer as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from probe.checkpoint.report import DIFFERENT, FINE, IDENTICAL, MISSING, SHAPE, Parameter, Report, counted

_MOST_ROWS = 20
_MOST_SETTINGS = 10
_STYLES = {DIFFERENT: "red", MISSING: "red", SHAPE: "red"}


def lines(report: Report) -> Iterator[tuple[str, str]]:
    """Lines, each with a style of rich."""
    yield f"{report.answer}: {report.why}", "bold red" if report.found else "bold green"
    yield f"first:  {report.path} ({report.format}, {_count(report, True)})", ""
    yield f"second: {report.other_path} ({report.other_format}, {_count(report, False)})", ""
    for sentence in report.layers:
        yield sentence, ""
    bad = [each for each in [*report.parameters, *report.optimizer] if not each.is_fine]
    for each in bad[:_MOST_ROWS]:
        yield f"  {parameter(each)}", _STYLES.get(each.verdict, "yellow")
    if len(bad) > _MOST_ROWS:
        yield f"  ... and {len(bad) - _MOST_ROWS} more; --json and -o DIR list them", ""
    for replica in report.replicas[:_MOST_ROWS]:
        yield (
            f"  {replica.name}: copies on {replica.ranks} of {replica.path} differ, max_abs {replica.max_abs:.3g}",
            "red",
        )
    for sentence in remarks(report):
        yield f"  {sentence}", ""
    if report.settings:
        many = len(report.settings) > 1
        verb, they = ("differ", "they do") if many else ("differs", "it does")
        yield f"{counted(len(report.settings), 'setting')} {verb} ({they} not change the answer):", ""
        for setting in report.settings[:_MOST_SETTINGS]:
            yield f"  {setting.name}: {setting.value!r} and {setting.other_value!r}", ""
    for note in report.notes:
        yield f"note: {note}", ""


def _count(report: Report, first: bool) -> str:
    return counted(len({each.name if first else each.other_name for each in report.parameters} - {""}), "parameter")


def parameter(of: Parameter) -> str:
    """A parameter in a line, with numbers that have labels."""
    names = of.shown if not of.name or not of.other_name or of.name == of.other_name else f"{of.name} | {of.other_name}"
    if of.verdict == MISSING:
        side = "second" if of.name else "first"
        return f"{names}: missing in the {side} checkpoint" + (f" ({of.how})" if of.how else "")
    shown = [
        f"{label} {of.numbers[label]:.3g}" for label in ("max_abs", "max_rel", "ulp_max", "cos") if label in of.numbers
    ]
    how = f" ({of.how})" if of.how else ""
    return f"{names}: {of.verdict}{how}" + (f", {', '.join(shown)}" if shown and of.verdict != IDENTICAL else "")


def remarks(report: Report) -> Iterator[str]:
    """Conversions that make parameters equal that are stored differently; a line for each kind, with an example."""
    kinds: dict[str, list[Parameter]] = {}
    for each in report.parameters:
        if each.how and (each.verdict in FINE or each.harmless):
            kinds.setdefault(_kind(each.how), []).append(each)
    for of_kind in kinds.values():
        first = of_kind[0]
        names = first.shown if not first.name or not first.other_name else f"{first.name} = {first.other_name}"
        many = f"; the same for {counted(len(of_kind) - 1, 'other')}" if len(of_kind) > 1 else ""
        yield f"{names}: {first.how}{many}"


def _kind(how: str) -> str:
    """The words without numbers and names."""
    return "".join("#" if each.isdigit() else each for each in how.split(" and the other side")[0].split(" to ")[0])
