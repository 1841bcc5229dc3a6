"""What the tests of parallel work do in other processes, which find it here by name."""

from __future__ import annotations

import os
import signal
import time

from probe.common import log
from probe.common.errors import DumpFormatError


def wait(seconds: float) -> float:
    """Take that long."""
    time.sleep(seconds)
    return seconds


def process(task: object) -> int:
    return os.getpid()


def die(how: str) -> str:
    """End this process as `how` says: by a signal, by a status, or not at all."""
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    if how.isdecimal():
        os._exit(int(how))
    return how


def fail(how: str) -> str:
    if how == "user":
        raise DumpFormatError("dump.json is damaged.")
    if how == "disk":
        raise OSError(28, "No space left on device")
    if how == "memory":
        raise MemoryError
    if how == "defect":
        raise ZeroDivisionError("a defect of ours")
    return how


def talk(name: str) -> str:
    """Say three things, one of them twice."""
    log.info(f"{name} begins")
    for _ in range(2):
        log.warning("known to both", once="test_parallel")
    print("a print goes its own way")
    log.error(f"{name} ends")
    return name
