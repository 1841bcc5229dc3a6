"""Under a signal a program ends with its own status, as without the tool, wherever the signal reaches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WAITS = "print('ready', flush=True)\ntime.sleep(10)\n"
WORK = "def work():\n    print('ready', flush=True)\n    time.sleep(2)\n    print('worked', flush=True)\n"
PROGRAMS = {
    "does not handle it": WAITS,
    "handles it": f"try:\n    {WAITS.replace(chr(10), chr(10) + '    ')}\nexcept KeyboardInterrupt:\n    sys.exit(7)\n",
    "has a handler": f"signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\n{WAITS}",
    "waits for a thread": f"{WORK}threading.Thread(target=work).start()\n",
    "has failed, and waits for a thread": f"{WORK}threading.Thread(target=work).start()\nraise SystemExit(3)\n",
    "waits for a pool": f"{WORK}ThreadPoolExecutor(1).submit(work)\n",
    "is at its end": f"{WORK}atexit.register(work)\nraise SystemExit(4)\n",
}
BEGIN = "import atexit, signal, sys, threading, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
# A process that a shell has put into the background ignores the signal.
DEFAULT = (
    "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nos.execv(sys.executable, sys.argv[1:])\n"
)


def ended(folder: Path, program: str, number: int, tool: tuple[str, ...]) -> tuple[int, str]:
    """Status and output of a program to which a signal is sent once it is ready."""
    (folder / "program.py").write_text(BEGIN + program, encoding="utf-8")
    command = [sys.executable, "-c", DEFAULT, sys.executable, *tool, "program.py"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.2)  # until it waits
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_interrupted_ends_as_without_the_tool(tmp_path: Path, name: str) -> None:
    alone = ended(tmp_path, PROGRAMS[name], signal.SIGINT, ())
    assert ended(tmp_path, PROGRAMS[name], signal.SIGINT, ("-m", "msprobe", "run")) == alone


def test_a_program_that_is_terminated_ends_by_the_signal(tmp_path: Path) -> None:
    assert ended(tmp_path, WAITS, signal.SIGTERM, ("-m", "msprobe", "run")) == (-signal.SIGTERM, "")
