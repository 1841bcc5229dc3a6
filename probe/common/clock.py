"""The clock for what runs inside a training: a program may have replaced the functions of `time` by some that raise."""

from __future__ import annotations

import time

_time, _monotonic, _strftime, _localtime = time.time, time.monotonic, time.strftime, time.localtime


def now() -> float:
    """Seconds since 1970; 0 if the clock raises."""
    try:
        return float(_time())
    except Exception:
        return 0.0


def monotonic() -> float:
    """Seconds since some moment, which never go back; 0 if the clock raises."""
    try:
        return float(_monotonic())
    except Exception:
        return 0.0


def stamp(form: str, seconds: float | None = None) -> str:
    """A local time as text, that of now without `seconds`; the one of 1970 if the clock raises.

    Args:
        form: As of `time.strftime`.
        seconds: Since 1970.
    """
    try:
        return _strftime(form, _localtime(now() if seconds is None else seconds))
    except Exception:
        for code, text in (("%b", "Jan"), ("%Y", "1970"), ("%m", "01"), ("%d", "01")):
            form = form.replace(code, text)
        return form.replace("%H", "00").replace("%M", "00").replace("%S", "00")
