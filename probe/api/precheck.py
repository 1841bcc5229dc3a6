"""The pre-check in Python, and which adapter runs the calls of a dump."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter
from probe.common.dump.frameworks import BACKEND_OF
from probe.common.dump.reading.runs import only_dump_in

if TYPE_CHECKING:
    from probe.precheck.output.report import Report


def load(framework: str) -> FrameworkAdapter:
    """The adapter of ``pytorch``, ``mindspore`` or ``mindtorch``.

    Raises:
        MissingDependency: the framework is not installed.
    """
    return loader.load(BACKEND_OF[framework])


def acc_check(path: str | os.PathLike[str], **options: Any) -> Report:
    """Run each recorded call again alone and judge it against a result of higher precision.

    Args:
        path: A dump.json of level L1 or mix, or a folder with one dump: of a process, a step or a run.
        options: Fields of `probe.precheck.options.PrecheckOptions`; without ``output`` no files are written.

    Raises:
        MsprobeException: the dump is none that can be checked, or an option does not fit.

    Example:
        >>> report = acc_check("dump_path/step0/rank0")  # doctest: +SKIP
        >>> [result.name for result in report.failed]
        ['Functional.silu.0']
    """
    from probe.precheck.options import PrecheckOptions
    from probe.precheck.runner import precheck

    return precheck(only_dump_in(os.fspath(path)).path, PrecheckOptions(**options), load)
