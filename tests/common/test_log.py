"""Lines on standard output, whatever stands in its place."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from probe.common import log


class WithoutFlush:
    """As programs put one there that write to a file too."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


class Raising(io.StringIO):
    def write(self, text: str) -> int:
        raise RuntimeError("not now")


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [WithoutFlush, Raising, closed, object, lambda: None])
def test_no_standard_output_ends_the_training(stream: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream())
    log.error("said to nobody")


def test_an_error_is_one_line_with_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    log.error("first\nsecond")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("[ERROR] first\\nsecond")
