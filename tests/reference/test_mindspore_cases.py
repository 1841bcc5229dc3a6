"""Our MindSpore dumps against those the real tool wrote; see README.md in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import reference_cases

NAMES = reference_cases.names("mindspore")


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[reference_cases.Results]:
    yield from reference_cases.run_asked("mindspore", request)


@pytest.mark.parametrize("name", NAMES)
def test_dump_is_what_the_reference_holds(name: str, results: reference_cases.Results) -> None:
    reference_cases.check(name, results)


def test_there_are_cases() -> None:
    assert len(NAMES) > 20
