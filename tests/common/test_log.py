"""Lines on standard error, whatever stands in its place."""

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
def test_a_standard_error_that_takes_nothing_raises_nothing(
    stream: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream())
        log.error("said to nobody")
    log.error("said to somebody")
    assert "said to nobody" not in (out := capsys.readouterr().err) and "said to somebody" in out


def test_a_standard_error_without_flush_gets_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = WithoutFlush()
    monkeypatch.setattr(sys, "stderr", stream)
    log.error("first")
    log.error("second")
    assert [line.rpartition(" ")[2] for line in stream.text.splitlines()] == ["first", "second"]


def test_an_error_is_one_line_with_its_kind_and_not_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    log.error("first\nsecond")
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == ""
    assert line.endswith("[ERROR] first\\nsecond")


@pytest.mark.parametrize(
    ("level", "environment", "shown"),
    [
        (log.INFO, None, ["information", "a warning", "an error"]),
        (log.WARNING, None, ["a warning", "an error"]),
        (log.ERROR, None, ["an error"]),
        (log.SILENT, None, []),
        (log.SILENT, "2", ["a warning", "an error"]),
        (log.WARNING, "loud", ["a warning", "an error"]),
    ],
)
def test_the_level_decides_what_is_shown_and_the_environment_wins(
    level: int, environment: str | None, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if environment is None:
        monkeypatch.delenv("MSPROBE_LOG_LEVEL", raising=False)
    else:
        monkeypatch.setenv("MSPROBE_LOG_LEVEL", environment)
    log.set_level(level)
    try:
        log.info("information")
        log.warning("a warning")
        log.error("an error")
    finally:
        log.reset()
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == shown


def test_after_a_reset_what_is_said_once_is_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        log.set_rank(3)
        log.warning("again", once="test-reset")
        log.warning("again", once="test-reset")
        log.reset()
    log.info("of no rank")
    out = capsys.readouterr().err
    assert out.count("[rank 3] [WARNING] again") == 2 and "[rank" not in out.splitlines()[-1]
