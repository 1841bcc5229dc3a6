"""Running recorded cases within pytest, for the ``test_<framework>_cases.py`` of this folder."""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_cases

SHOWN = 40
OPTIONS = argparse.Namespace(python=sys.executable, timeout=300, keep=None, record=False)

Results = dict[str, "concurrent.futures.Future[run_cases.CaseResult]"]


def folder(framework: str) -> str:
    return str(Path(__file__).parent / framework / "cases")


def names(framework: str) -> list[str]:
    return run_cases.find_cases(folder(framework))


def run_asked(framework: str, request: pytest.FixtureRequest) -> Iterator[Results]:
    """Yield every case that was asked for, begun at once: most of the time is interpreters importing the framework."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        items = [item for item in request.session.items if item.module is request.module]
        asked = {item.callspec.params["name"] for item in items if "results" in item.fixturenames}
        yield {
            name: pool.submit(run_cases.run_case, folder(framework), name, OPTIONS)
            for name in names(framework)
            if name in asked
        }
        pool.shutdown(cancel_futures=True)


def check(name: str, results: Results) -> None:
    problems = results[name].result().problems
    more = f"\n  ... and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    shown = "\n  ".join(problems[:SHOWN])
    assert not problems, f"{name}: {len(problems)} differences\n  {shown}{more}"
