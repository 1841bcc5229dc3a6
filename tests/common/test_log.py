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


@pytest.mark.parametrize("stream", [Raising, closed, object, lambda: None])
def test_a_standard_output_that_takes_nothing_raises_nothing(
    stream: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream())
        log.error("said to nobody")
    log.error("said to somebody")
    assert "said to nobody" not in (out := capsys.readouterr().out) and "said to somebody" in out


def test_a_standard_output_without_flush_gets_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = WithoutFlush()
    monkeypatch.setattr(sys, "stdout", stream)
    log.error("first")
    log.error("second")
    assert [line.rpartition(" ")[2] for line in stream.text.splitlines()] == ["first", "second"]


def test_an_error_is_one_line_with_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    log.error("first\nsecond")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("[ERROR] first\\nsecond")
