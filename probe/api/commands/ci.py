"""The answer of a comparison where a CI looks: JUnit XML, and annotations of GitHub at the user's line."""

from __future__ import annotations

import os
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from probe.api.commands.question import Answer, Check
from probe.api.commands.two_runs import DIVERGENCE, why_untold
from probe.common import files
from probe.common.harmless_text import print_text, printable

if TYPE_CHECKING:
    from probe.compare.summary import Summary

FAILURE, ERROR, SKIPPED = "failure", "error", "skipped"
"""The elements of JUnit XML for a test that fails, that could not be made, and that was left out."""
JUNIT_FILE = "junit.xml"
_NEWLINE = "\n"


def report_trouble(text: str, folder: str, as_json: bool) -> None:
    """Write `JUNIT_FILE` and print the annotation of a comparison that has no answer.

    Args:
        text: The reason.
        folder: The folder of ``-o``.
        as_json: Standard output is for a program and gets no annotation.
    """
    checks = of_problems([text])
    write_junit(folder, checks)
    if not as_json:
        for line in github_lines(checks, os.environ):
            print_text(line)


def of_problems(problems: Sequence[str]) -> list[Check]:
    """Return a check for each thing that could not be compared."""
    return [Check("compare", f"problem {number}", ERROR, [text]) for number, text in enumerate(problems, 1)]


def reported(answer: Answer, folder: str, problems: Sequence[str]) -> Answer:
    """Write the checks of an answer to a folder; returns the answer with the annotations and the path of the file.

    Args:
        answer: The answer of a comparison.
        folder: The folder of ``-o``.
        problems: What could not be compared.
    """
    checks = _of_answer(answer, bool(problems)) if answer.checks is None else answer.checks()
    if not any(check.problem == ERROR for check in checks):
        checks += of_problems(problems)
    path = write_junit(folder, checks)
    more = [f"junit: {path}", *github_lines(checks, os.environ)]
    return answer._replace(lines=lambda: [*answer.lines(), *more])


def _of_answer(answer: Answer, is_untold: bool) -> list[Check]:
    found = answer.found() if callable(answer.found) else answer.found
    lines = [line if isinstance(line, str) else line[0] for line in answer.lines()]
    return [Check("compare", "all", FAILURE if found else ERROR if is_untold else "", lines)]


def of_pairs(summaries: Sequence[Summary], level: str, is_by_answer: bool) -> list[Check]:
    """Return a check for each pair of dumps.

    Args:
        summaries: The pairs.
        level: The value of ``--fail-on``.
        is_by_answer: False if the rules of another tool give rows their results.
    """
    return [_of_pair(summary, _name(summary, summaries), level, is_by_answer) for summary in summaries]


def _name(summary: Summary, summaries: Sequence[Summary]) -> str:
    """Return the rank; of the only process of a step no number, which is another one in each run."""
    from probe.compare.summary import in_words

    is_only = sum(each.step == summary.step for each in summaries) == 1
    return "process" if is_only and summary.label.startswith("proc") else in_words("", summary.label) or "all"


def _of_pair(summary: Summary, name: str, level: str, is_by_answer: bool) -> Check:
    from probe.common.dump.stack_text import parse_frame, users_line
    from probe.compare.summary import fails, in_words
    from probe.compare.summary_text import headline, lines

    if fails([summary], level):
        problem = FAILURE
    elif summary.follows is not None:
        problem = SKIPPED
    else:
        problem = ERROR if why_untold([summary], level == DIVERGENCE or is_by_answer) else ""
    stack = [] if summary.divergence is None else summary.divergence.stack or summary.divergence.golden_stack
    frame = parse_frame(users_line(stack)) if stack else None
    return Check(
        in_words(summary.step, "") or "compare",
        name,
        problem,
        [summary.untold] if problem == SKIPPED else [text for text, _ in headline([summary])],
        [text for text, _ in lines(summary)],
        "" if frame is None else frame.path,
        0 if frame is None else frame.line,
    )


def write_junit(folder: str, checks: Sequence[Check]) -> str:
    """Write `JUNIT_FILE` in a folder, which is made if it is not there; returns its path."""
    numbers = {"tests": str(len(checks))}
    for problem, key in ((FAILURE, "failures"), (ERROR, "errors"), (SKIPPED, SKIPPED)):
        numbers[key] = str(sum(check.problem == problem for check in checks))
    suites = xml.Element("testsuites", numbers)
    suite = xml.SubElement(suites, "testsuite", {"name": "msprobe compare", **numbers})
    for check in checks:
        case = xml.SubElement(suite, "testcase", {"classname": printable(check.group), "name": printable(check.name)})
        if check.problem:
            found = xml.SubElement(case, check.problem, {"message": printable(check.lines[0])})
            found.text = "\n".join(map(printable, check.lines))
        xml.SubElement(case, "system-out").text = "\n".join(map(printable, [*check.lines, *check.details]))
    xml.indent(suites)
    files.make_folder(folder)
    path = os.path.join(folder, JUNIT_FILE)
    with files.replacing(path) as stream:
        stream.write(xml.tostring(suites, encoding="utf-8", xml_declaration=True))
    return path


def github_lines(checks: Iterable[Check], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines by which a job of GitHub Actions shows what failed; none anywhere else.

    https://docs.github.com/actions/reference/workflow-commands-for-github-actions has the form.
    """
    if environment.get("GITHUB_ACTIONS") != "true":
        return
    top = environment.get("GITHUB_WORKSPACE", "")
    for check in checks:
        if check.problem not in (FAILURE, ERROR):
            continue
        title, _, rest = check.lines[0].partition(": ")
        properties = {"title": f"msprobe: {title}" if rest else "msprobe compare"}
        if check.path:
            properties = {"file": _of_checkout(check.path, top), "line": str(check.line), **properties}
        text = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
        yield f"::error {text}::{_data(_NEWLINE.join([rest or title, *check.lines[1:]]))}"


def _of_checkout(path: str, top: str) -> str:
    """Return the path relative to the checkout; a path of another machine or of an installed package stays as it is."""
    relative = os.path.relpath(path, top) if top else os.pardir
    return path if relative.split(os.sep)[0] == os.pardir else relative


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
