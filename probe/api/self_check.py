"""One framework imported, and a dump made with it and read back; ``msprobe doctor`` runs this in a process of its own.

Nothing stands in for anything: the debugger, the hooks and the reader are those of a training.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from probe.api.run import debugger_class
from probe.backends import loader
from probe.common import log
from probe.common.errors import FrameworkError, MsprobeException, failure_text
from probe.common.log import ERROR_LOG

IMPORTING, COLLECTING, READING = "importing it", "collecting a training step with it", "reading what was collected"
"""The parts of the check, as a message names them."""
PARTS = (IMPORTING, COLLECTING, READING)
RECORDS, BROKEN = "records", "broken"
_SHOWN = 3


def main() -> None:
    """Check the module and the backend (or ``""``) in ``sys.argv``, in a folder; a line for each part that ends."""
    module, backend, folder, answers = sys.argv[1:]
    with open(answers, "a", encoding="utf-8") as stream:

        def tell(key: str, value: Any) -> None:
            stream.write(json.dumps([key, value]) + "\n")
            stream.flush()

        try:
            start = time.perf_counter()
            importlib.import_module(module)
            tell(IMPORTING, time.perf_counter() - start)
            if backend:
                check(backend, folder, tell)
        except Exception as error:
            original = error.__context__ if isinstance(error, FrameworkError) else None
            tell(BROKEN, str(error) if type(error) is MsprobeException else failure_text(original or error))


def check(backend: str, folder: str, tell: Callable[[str, Any], None]) -> None:
    """Collect a training step into `folder`, read it, and look for the numbers that are known.

    Raises:
        MsprobeException: something is missing or wrong, in words for the user.
    """
    known = loader.room(backend, "self_check")
    start = time.perf_counter()
    with log.collected() as lines:
        kind = debugger_class(backend)
        known.train(kind(dump_path=folder, level="mix"))
        kind.reset()
    told = [line.text for line in lines if line.level >= log.WARNING]
    why = _first_failure(folder) or "; ".join(told[:_SHOWN])
    if not why:
        tell(COLLECTING, time.perf_counter() - start)
    try:
        number = _read(folder, known.EXPECTED)
    except MsprobeException as error:
        raise MsprobeException(f"{why}; {error}" if why else str(error)) from None
    if any(line.level >= log.ERROR for line in lines):
        raise MsprobeException(why)
    tell(READING, time.perf_counter() - start)
    tell(RECORDS, number)


def _read(folder: str, expected: Mapping[str, float]) -> int:
    """Number of records in the one dump below `folder`, in which the items of `expected` are correct."""
    # The readers need packages that collecting does not.
    from probe.common.dump.reading.run import Run

    dumps = list(Run(folder))
    if len(dumps) != 1:
        raise MsprobeException(f"{len(dumps)} dumps were written; expected 1")
    (dump,) = dumps
    largest = {item.name: item.max for record in dump for item in dump.items(record)}
    missing = [name for name in expected if name not in largest]
    if missing:
        raise MsprobeException(f"not recorded: {_listed(missing)}; {len(largest)} other items were")
    wrong = [f"{name} is {largest[name]}, not {value}" for name, value in expected.items() if largest[name] != value]
    if wrong:
        raise MsprobeException(f"records with wrong values: {_listed(wrong)}")
    return len(dump)


def _listed(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _first_failure(folder: str) -> str:
    """The first entry in the log of errors below `folder`: the error and its line; empty if there is none."""
    for path, _, names in os.walk(folder):
        if ERROR_LOG in names:
            with open(os.path.join(path, ERROR_LOG), encoding="utf-8") as stream:
                # An entry begins with its time.
                entry = re.split(r"\n\n(?=\d{4}-\d\d-)", stream.read().strip())[0]
            # As in `failure_text`.
            locations = re.findall(r'File "([^"]+)", line (\d+), in (?!__getattr__)', entry)
            where = f" ({locations[-1][0]}, line {locations[-1][1]})" if locations else ""
            return entry.splitlines()[-1] + where
    return ""
