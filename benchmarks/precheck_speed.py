"""How fast the pre-check is: cases a second, its start, several processes, large tensors; printed, never judged.

    python benchmarks/precheck_speed.py                        # needs torch
    python benchmarks/precheck_speed.py --real PYTHON POSE     # and msProbe on the same dump: the interpreter that has
                                                               # it, and a script that lets the CPU pose as its device

The dump is that of `tests/support/recorded_step.py`, several steps of it: small calls of many kinds in three dtypes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from msprobe.pytorch import PrecisionDebugger, seed_all

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
STEPS = 8
LARGE = 1 << 26
"""Elements of the large tensors: 256 MiB of float32."""


def small(folder: Path, task: str) -> Path:
    """A dump of some hundred small calls."""
    import recorded_step

    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), task=task, level="L1")
    debugger.start()
    for _ in range(STEPS):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            recorded_step.calls(dtype).backward()
    debugger.stop()
    debugger.step()
    (path,) = folder.glob("step0/*/dump.json")
    return path


def large(folder: Path) -> Path:
    """A dump of three calls of large tensors."""
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    x = torch.randn(LARGE // 1024, 1024)
    debugger.start()
    x * 2.5, x.sum(), torch.nn.functional.gelu(x)
    debugger.stop()
    debugger.step()
    (path,) = folder.glob("step0/*/dump.json")
    return path


def timed(command: list[str]) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - began


def ours(dump: Path, folder: Path, *arguments: str) -> tuple[float, float, int]:
    """Seconds of the whole command, seconds of checking alone, and cases."""
    command = [sys.executable, "-m", "probe.api.cli", "acc_check", "-api_info", str(dump), "-o", str(folder)]
    whole = timed([*command, *arguments])
    (path,) = folder.glob("precheck_*.json")
    found = json.loads(path.read_text())
    return whole, found["seconds"], sum(count for status, count in found["counts"].items() if status != "not run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", nargs=2, metavar=("PYTHON", "POSE"))
    args = parser.parse_args()
    seed_all(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        framework = timed([sys.executable, "-c", "import torch"])
        for task in ("tensor", "statistics"):
            dump = small(folder / task, task)
            for jobs in ("1", "2"):
                whole, checking, cases = ours(dump, folder / f"{task}-{jobs}", "--jobs", jobs)
                start = f", start {whole - checking - framework:.2f} s beyond `import torch`" if jobs == "1" else ""
                print(f"{task}, {jobs} process(es): {cases} cases, {cases / checking:.0f} a second{start}", flush=True)
        if args.real is not None:
            python, pose = args.real
            dump = folder / "tensor" / "step0"
            (path,) = dump.glob("*/dump.json")
            (folder / "real").mkdir()
            took = timed([python, pose, "acc_check", "-f", "-api_info", str(path), "-o", str(folder / "real")])
            (table,) = (folder / "real").glob("accuracy_checking_result_*.csv")
            checked = len(table.read_text(encoding="utf-8-sig").splitlines()) - 1
            print(f"msProbe, -f: {checked} cases, {checked / took:.1f} a second, {took:.0f} s in all", flush=True)
            whole, _, cases = ours(path, folder / "filtered", "-f")
            print(f"this one, the same: {cases} cases, {cases / whole:.1f} a second, {whole:.1f} s in all", flush=True)
        for element in [large(folder / "large")]:
            whole, checking, cases = ours(element, folder / "large-out")
            print(f"{cases} calls of 256 MiB: {checking:.1f} s")


if __name__ == "__main__":
    main()
