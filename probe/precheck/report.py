"""The findings of a pre-check, as data, as lines of the terminal and as JSON."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Optional

from probe._version import __version__
from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import FAILURES, NOT_RUN, SUSPECT, KernelVerdict
from probe.common import files
from probe.common.dump.naming import file_name
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.report.json_values import from_json, to_json
from probe.precheck.case_results import AgainstDevice, CaseResult
from probe.precheck.options import PrecheckOptions

NO_RULES = "none"
"""The name of no rules, and so of no tables of another tool."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run.

    Args:
        dump: The path of the dump.
        device: The devices on which cases are run, joined with commas.
        seed: The seed of generated inputs.
        rules: The name of the rules of the drop-in tables; ``none`` if there are none.
        version: The version of msprobe.
    """

    dump: str
    device: str
    seed: int
    rules: str
    version: str

    @classmethod
    def of(cls, path: str, devices: Sequence[str], options: PrecheckOptions) -> RunSettings:
        """The settings of a run that begins now or goes on.

        Args:
            path: The path of the dump.
            devices: The devices that are used.
            options: The other options of the run.
        """
        # Devices share the cases, in whichever order they are given.
        device = ", ".join(sorted(devices))
        # Without tables, nobody asks the rules for rows.
        rules = NO_RULES if options.rules is None else options.rules.name
        return cls(os.path.realpath(path), device, options.seed, rules, __version__)

    def continued_by(self, now: RunSettings) -> RunSettings:
        """The settings of a journal with these settings after a run with the settings `now` has gone on with it.

        Cases that the rules of `now` have not judged are run again, so a run without rules goes on with any, and one
        with rules goes on after one without.

        Raises:
            MsprobeException: a setting differs, so the tables would mix the results of both.
        """
        rules = self.rules if now.rules == NO_RULES else now.rules
        continued = replace(now, rules=rules)
        then = replace(self, rules=rules) if NO_RULES in (self.rules, now.rules) else self
        names = [field.name for field in fields(self)]
        differing = [name for name in names if getattr(then, name) != getattr(continued, name)]
        if differing:
            said = ", ".join(
                f"{name} was {getattr(self, name)} in the earlier run and is {getattr(now, name)} now"
                for name in differing
            )
            raise MsprobeException(
                f"{said}; go on with the same settings, or check the whole dump again without -csv_path."
            )
        return continued

    def plain(self) -> dict[str, Any]:
        """The settings in values of JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, found: Any) -> RunSettings:
        """The settings that `plain` gave.

        Raises:
            ValueError: a setting is missing, unknown, or of another type.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or set(found) != names:
            raise ValueError(f"no settings of a run: {found!r}")
        if not all(type(value) is (int if name == "seed" else str) for name, value in found.items()):
            raise ValueError(f"no settings of a run: {found!r}")
        return cls(**found)


VERSION = 1
"""The version of the file with all cases. 1: the first one (2026-11)."""
JOURNAL_VERSION = 2
"""The version of the journal. 1: cases alone (2026-11). 2: the settings of the run come first (2026-11)."""
_SETTINGS = "settings"


def encode(result: CaseResult) -> str:
    """One case as a line of JSON; numbers that JSON lacks are ``{"number": "NaN"}``."""
    details = None if result.details is None else [to_json(row) for row in result.details]
    return json.dumps({**plain(result), "details": details}, allow_nan=False)


def plain(result: CaseResult) -> dict[str, Any]:
    """One case in values of JSON; its rows have each verdict in full."""
    fields = {**vars(result), "rows": [{**vars(row), "verdict": vars(row.verdict)} for row in result.rows]}
    # They are in their own table.
    del fields["details"]
    found = to_json(fields)
    assert isinstance(found, dict)
    return found


def decode(line: str) -> CaseResult:
    """The result from which `encode` made a line.

    Raises:
        ValueError: it is no such line.
    """
    found = from_json(json.loads(line))
    try:
        rows = tuple(
            JudgedResult(**{**row, "shape": tuple(row["shape"]), "verdict": _verdict(row["verdict"])})
            for row in found["rows"]
        )
        details = found.get("details")
        details = None if details is None else tuple(details)
        return CaseResult(**{**found, "rows": rows, "saved": tuple(found["saved"]), "details": details})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no result of a case: {error}") from None


def _verdict(found: dict[str, Any]) -> KernelVerdict:
    index = found.get("worst_index")
    return KernelVerdict(**{**found, "worst_index": None if index is None else tuple(index)})


class Journal:
    """The lines of one run, in the order in which the cases were done.

    Raises:
        FileCheckException: another run writes it, or it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._stream = files.open_for_writing(path, append=True)
        except OSError as error:
            raise FileCheckException(f"{path}: cannot be written: {error.strerror}.") from None
        if not files.lock(self._stream):
            self._stream.close()
            raise FileCheckException(f"{path}: another run is writing it; wait until it has ended.")

    def read(self) -> tuple[RunSettings | None, list[CaseResult]]:
        """The settings of the run, ``None`` in a new file, and the cases that are done.

        A last line that was cut short is taken off the file.

        Raises:
            FileCheckException: the file cannot be read, another line of it is damaged, or its form is another one.
        """
        try:
            with files.open_for_reading(self.path) as stream:
                content = stream.read()
        except OSError as error:
            raise FileCheckException(f"{self.path}: cannot be read: {error.strerror or error}.") from None
        whole = content.rfind(b"\n") + 1
        settings: RunSettings | None = None
        results: list[CaseResult] = []
        for line in self._decoded(content[:whole].decode("utf-8", "replace").splitlines()):
            if isinstance(line, RunSettings):
                settings = line
            elif settings is None:
                raise FileCheckException(
                    f"{self.path}: it does not begin with the settings of its run, as an older msprobe wrote it; check "
                    "the whole dump again without -csv_path."
                )
            else:
                results.append(line)
        if whole < len(content):
            os.truncate(self.path, whole)
        return settings, results

    def _decoded(self, lines: Sequence[str]) -> Iterator[RunSettings | CaseResult]:
        for number, line in enumerate(lines, 1):
            try:
                yield self._settings(line) if line.startswith('{"version"') else decode(line)
            except ValueError as error:
                raise FileCheckException(f"{self.path}: line {number} is damaged: {error}.") from None

    def _settings(self, line: str) -> RunSettings:
        found = json.loads(line)
        if found["version"] != JOURNAL_VERSION:
            raise FileCheckException(
                f"{self.path}: its version is {found['version']!r}, and this msprobe reads {JOURNAL_VERSION}; go on "
                "with the msprobe that wrote it, or check the whole dump again without -csv_path."
            )
        return RunSettings.from_plain(found.get(_SETTINGS))

    def begin(self, settings: RunSettings) -> None:
        """Append the settings of the cases that follow."""
        self._write(json.dumps({"version": JOURNAL_VERSION, _SETTINGS: settings.plain()}))

    def add(self, result: CaseResult) -> None:
        """Append one case."""
        self._write(encode(result))

    def _write(self, line: str) -> None:
        left = memoryview(line.encode() + b"\n")
        while left:
            # Without a buffer a stream may take less.
            left = left[self._stream.write(left) :]

    def close(self) -> None:
        """Close the file; nothing of it is held back before."""
        self._stream.close()

    def give_up(self) -> None:
        """Close the file of a run that does not begin; one that is new is removed."""
        is_new = os.path.getsize(self.path) == 0
        self.close()
        if is_new:
            os.unlink(self.path)


# --- precheck report


_MOST_SHOWN = 20
"""Cases that are printed; a guess."""
_MOST_REASONS = 6
"""Reasons that are printed; a guess."""


@dataclass(frozen=True)
class Report:
    """The result of a pre-check."""

    path: str
    """The dump."""
    framework: str
    device: str
    results: Sequence[CaseResult]
    """In the order of the dump."""
    seconds: float
    checked: int
    """The number of cases that were checked in these seconds; others were done by an earlier run."""
    ending: str = ""
    """The reason why the end of the run is missing in the dump, as the end of a sentence; empty if it is not."""
    files: list[str] = field(default_factory=list)
    against: Optional[AgainstDevice] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The verdict of other rules on each case, given the table of another device."""

    @property
    def run(self) -> int:
        """The number of cases that were run."""
        return sum(not result.not_run for result in self.results)

    def with_status(self, *statuses: str) -> list[CaseResult]:
        """The cases whose worst status is one of these."""
        return [result for result in self.results if result.status in statuses]

    @property
    def failed(self) -> list[CaseResult]:
        """The cases that are wrong."""
        return self.with_status(*FAILURES)

    @property
    def suspects(self) -> list[CaseResult]:
        """The cases with an error above what the operation should reach, and below ten times of it."""
        return self.with_status(SUSPECT)


def worst_row(result: CaseResult) -> JudgedResult:
    """The row that a failing case is shown by: the first one with its worst status."""
    return next(row for row in result.rows if row.verdict.status == result.status)


def lines(report: Report) -> Iterator[str]:
    """The answer, the failing cases, and what was not run."""
    if report.ending:
        yield f"{report.path} {report.ending}."
    yield _summary(report)
    shown = [*report.failed, *report.suspects]
    for result in shown[:_MOST_SHOWN]:
        yield from _case(result)
    if len(shown) > _MOST_SHOWN:
        yield f"... and {len(shown) - _MOST_SHOWN} more in {report.files[0] if report.files else 'the tables'}."
    yield from _left_out(report)
    if report.against is not None:
        against = report.against
        rest = len(against.rows) - against.compared
        lacking = f"; {rest} more cannot be compared" if rest else ""
        yield f"against the other device: {len(against.worse)} of {against.compared} cases are worse{lacking}"
        yield from (f"  {name}" for name in against.worse[:_MOST_SHOWN])
    for path in report.files:
        yield f"written: {path}"
    if shown:
        row = worst_row(shown[0])
        direction = "backward" if row.of else "forward"
        # Names come from a dump, and users paste this into a shell.
        words = report.path, f"{shown[0].name}.{direction}", "--emit", file_name(shown[0].name, ".py")
        yield f"next: msprobe replay {shlex.join(map(str, words))}"


def _summary(report: Report) -> str:
    count = Counter(result.status for result in report.results)
    run = report.run
    failed = sum(count[status] for status in FAILURES)
    is_good = run and not (failed or count[SUSPECT])
    good = ": each result is as exact as its operation can be" if is_good else ""
    parts = [
        f"{failed} wrong" if failed else "",
        f"{count[SUSPECT]} suspect" if count[SUSPECT] else "",
        f"{count[NOT_RUN]} not run" if count[NOT_RUN] else "",
    ]
    texts = ", ".join(part for part in parts if part)
    generated = any(result.inputs == "generated" for result in report.results if not result.not_run)
    inputs = "; inputs were generated from the recorded statistics" if generated else ""
    rate = (
        f", {report.checked / report.seconds:.0f} calls per second"
        if report.seconds > 0 and run and report.checked
        else ""
    )
    return f"{run} calls run on {report.device}{rate}{good}{f'; {texts}' if texts else ''}{inputs}."


def _case(result: CaseResult) -> Iterator[str]:
    row = worst_row(result)
    also = f" (represents {result.stands_for} calls)" if result.stands_for > 1 else ""
    cast = f", under autocast to {result.autocast}" if result.autocast else ""
    of = f", the gradient of {row.of.partition('.forward.')[2]}" if row.of else ""
    yield f"{row.verdict.status}: {row.name}{of}: {row.dtype} {list(row.shape)}{cast}{also}"
    fits = f"; fits {row.verdict.fits}" if row.verdict.fits else ""
    yield f"  result:  {row.verdict.interpretation}{fits}"
    worst = worst_element(row.verdict)
    if worst:
        yield f"  worst:   {worst}"


def worst_element(verdict: KernelVerdict) -> str:
    """The worst element with both values and its error in units of the tolerance; empty where there is none."""
    if verdict.worst_index is None:
        return ""
    index = f"element {list(verdict.worst_index)} is " if verdict.worst_index else ""
    text = f"{index}{_digits(verdict.worst_result)}, exact {_digits(verdict.worst_reference)}"
    if verdict.ratio is None or verdict.tolerance is None or not math.isfinite(verdict.ratio):
        return text
    return f"{text}; error {verdict.ratio:.3g} times the tolerance of {verdict.tolerance:.2g}"


def _digits(value: complex | None) -> str:
    return f"{value:.9g}" if isinstance(value, (float, complex)) else str(value)


def _left_out(report: Report) -> Iterator[str]:
    """The reasons for which cases were not run, the most frequent one first."""
    reasons = Counter(result.not_run for result in report.results if result.not_run)
    reasons.update(f"backward: {each.backward_not_run}" for each in report.results if each.backward_not_run)
    for reason, count in reasons.most_common(_MOST_REASONS):
        yield f"not run: {count} call{'' if count == 1 else 's'}: {reason}"
    if len(reasons) > _MOST_REASONS:
        yield f"not run: {len(reasons) - _MOST_REASONS} more reasons are in the tables"


def as_json(report: Report) -> dict[str, Any]:
    """The whole of it, for machines."""
    return {
        "version": VERSION,
        "dump": report.path,
        "framework": report.framework,
        "device": report.device,
        "ending": report.ending,
        "seconds": round(report.seconds, 3),
        "counts": dict(Counter(result.status for result in report.results)),
        "cases": [plain(result) for result in report.results],
        "second_stage": None if report.against is None else list(report.against.rows),
        "files": report.files,
    }
