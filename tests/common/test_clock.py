"""The clock of the tool, in programs that have replaced Python's."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from probe.common import clock

FORMS = ("%Y-%m-%d %H:%M:%S", "%Y%m%d%H%M%S", "%b%d_%H-%M-%S", "%Y-%m-%d %H:%M")


def test_it_tells_the_time() -> None:
    assert abs(clock.now() - time.time()) < 60 and clock.monotonic() <= clock.monotonic()
    for form in FORMS:
        assert clock.stamp(form, 86_400.0 * 200) == time.strftime(form, time.localtime(86_400.0 * 200))


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


@pytest.mark.parametrize("form", FORMS)
def test_the_time_without_a_clock_has_the_form_of_one(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_strftime", lambda *_: 1 / 0)
    time.strptime(clock.stamp(form), form)
