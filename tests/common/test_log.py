"""Lines on standard error: their level, clock and text, whatever stands in their place."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from probe.common import log
from probe.common.errors import DumpFormatError, MsprobeException
from probe.common.harmless_text import printable

# --- lines on standard error, whatever stands in its place


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


# --- the clock of the tool, in programs that have replaced Python's

FORMS = ("%Y-%m-%d %H:%M:%S", "%Y%m%d%H%M%S", "%b%d_%H-%M-%S", "%Y-%m-%d %H:%M")


@pytest.mark.parametrize("before", [True, False], ids=["replaced before the import", "replaced after it"])
def test_a_clock_that_raises_ends_nothing(before: bool) -> None:
    names = ("time", "monotonic", "strftime", "localtime")
    replace = f"import time\nfor name in {names}: setattr(time, name, lambda *_: 1 / 0)"
    use = "\n".join(
        [
            "from probe.common import clock, log",
            *([] if before else [replace]),
            "clock.now(), clock.monotonic()",
            f"for form in {FORMS}: assert '%' not in clock.stamp(form), form",
            "log.warning('still here')",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{replace}\n{use}" if before else use], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "still here" in done.stderr, done.stderr


# --- text from elsewhere is printed as one line that commands no terminal


@pytest.mark.parametrize("text", ["", "Torch.relu.0.forward", "a b\\c", "层.卷积", "/data/\u3000x/é.json"])
def test_what_can_be_shown_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\n", "\\n"),
        ("\r", "\\r"),
        ("\t", "\\t"),
        ("\x00", "\\x00"),
        ("\x1b", "\\x1b"),  # begins a command to the terminal
        ("\x7f", "\\x7f"),
        ("\x9b", "\\x9b"),  # the same in one character
        ("\x85", "\\x85"),  # a line break, as the next two
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
        ("\u202e", "\\u202e"),  # turns what follows round
        ("\ud800", "\\ud800"),  # cannot be printed at all
    ],
)
def test_what_a_terminal_would_obey_is_escaped(character: str, shown: str) -> None:
    assert printable(f"a{character}b") == f"a{shown}b"


@pytest.mark.parametrize("kind", [MsprobeException, DumpFormatError])
def test_an_error_is_one_line_wherever_it_is_shown(kind: type[MsprobeException]) -> None:
    assert str(kind("record a\nb")) == "record a\\nb"
