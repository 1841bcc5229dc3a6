"""The pre-check in Python, and which adapter runs the calls of a dump."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from probe.api.questions.rules import STANDARDS, case_rules
from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter
from probe.common.dump.frameworks import BACKEND_OF
from probe.common.dump.reading.runs import only_dump_in
from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from probe.precheck.output.precheck_report import Report


def load(framework: str) -> FrameworkAdapter:
    """The adapter of ``pytorch``, ``mindspore`` or ``mindtorch``.

    Raises:
        MissingDependency: the framework is not installed.
        MsprobeException: there is no such framework.
    """
    if framework not in BACKEND_OF:
        allowed = f"allowed: {', '.join(BACKEND_OF)}"
        raise MsprobeException(f'the "framework" of the dump is {framework!r}, which runs no calls; {allowed}.')
    return loader.load(BACKEND_OF[framework])


def acc_check(
    path: str | os.PathLike[str],
    *,
    rules: str | None = None,
    headers: str = "english",
    against: str | None = None,
    standard: str | None = None,
    **options: Any,
) -> Report:
    """Run each recorded call again alone and judge it against a result of higher precision.

    Args:
        path: A dump.json of level L1 or mix, or a folder with one dump: of a process, a step or a run.
        rules: Whose rules judge the drop-in tables; ``msprobe``, or ``probe``, which writes none if it is named.
        headers: ``english`` or ``msprobe``: what the drop-in tables look like.
        against: A table of details of another device, by which the cases are judged as well.
        standard: An older form of `rules`; ``26.2`` is ``msprobe``.
        options: Other fields of `probe.precheck.options.PrecheckOptions`; without ``output`` no files are written, and
            only our own rules judge.

    Raises:
        MsprobeException: the dump is none that can be checked, or an option does not fit.

    Example:
        >>> report = acc_check("dump_path/step0/rank0")  # doctest: +SKIP
        >>> [result.name for result in report.failed]
        ['Functional.silu.0']
    """
    from probe.precheck.options import PrecheckOptions
    from probe.precheck.run_cases import precheck

    if standard is not None and rules is None:
        if standard not in STANDARDS:
            raise MsprobeException(f"standard is {standard!r}; allowed: {', '.join(STANDARDS)}.")
        rules = STANDARDS[standard]
    asked = PrecheckOptions(**options, rules=case_rules(rules, headers, against))
    return precheck(only_dump_in(os.fspath(path)).path, asked, load)
