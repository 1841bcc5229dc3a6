"""How long ``msprobe compare`` takes and how much memory: statistics, real data, and starting at all.

    python benchmarks/compare_speed.py                              # 2,000 and 20,000 records, 256 MB of tensors
    python benchmarks/compare_speed.py --records 20000 200000 --megabytes 2048 --real PYTHON

Every number is that of a whole command in a process of its own: wall time, processor time, and the largest memory of
one process. The least of `--repeats` runs is taken; other tools (``--real``: an interpreter with another tool of the
same name) run on the same files in between.

`same` are two dumps that say the same; in `differ` every number does, which is the most work there is; `model` is a
small transformer, dumped here by our tool with and without a little noise on its weights, and its step repeated. Real
data is compared with the time that only reading the files takes, read in the same way, after everything was read once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import compare_dumps
import measure

APART = 1e-5
"""Relative difference of the numbers of two runs."""
_COMMAND = "import sys; from {module} import main; sys.exit(main())"
MODULES = {"ours": "probe.api.cli", "real": "msprobe.msprobe"}


@dataclass(frozen=True)
class Cost:
    """Of one command."""

    wall_s: float
    cpu_s: float
    memory_mib: float


def cost(command: Sequence[str], folder: str, environment: Mapping[str, str] | None = None) -> Cost:
    """Run `command` in `folder` and say what it cost.

    Raises:
        measure.Failed: it ended with another status than 0; the message ends with the last lines it printed.
    """
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            tail = "\n".join(said.read().decode(errors="replace").splitlines()[-15:])
            raise measure.Failed(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def least(costs: Sequence[Cost]) -> Cost:
    """The least of each."""
    return Cost(*(min(getattr(found, name) for found in costs) for name in ("wall_s", "cpu_s", "memory_mib")))


Results = dict[str, dict[str, Cost]]
"""What was measured -> tool -> its cost."""


class Tools:
    """The tools that are measured, each in its interpreter."""

    def __init__(self, real: str | None, repeats: int) -> None:
        self._pythons = {"ours": sys.executable, **({"real": real} if real else {})}
        # What makes ours importable would make it stand in for another tool of the same name.
        without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._environments = {"ours": dict(os.environ), "real": without_path}
        self._repeats = repeats
        self.failed = False

    def measure(self, arguments: Sequence[str], folder: str, only_ours: bool = False) -> dict[str, Cost]:
        """The costs of a command of each tool, run in turns."""
        found: dict[str, list[Cost]] = {}
        for _ in range(self._repeats):
            for tool, python in list(self._pythons.items()):
                if only_ours and tool != "ours":
                    continue
                command = [python, "-c", _COMMAND.format(module=MODULES[tool]), *arguments]
                try:
                    found.setdefault(tool, []).append(cost(command, folder, self._environments[tool]))
                    if "-o" in arguments and not list(Path(folder, "out").glob("compare_result_*.csv")):
                        raise measure.Failed("there is no table.")
                except measure.Failed as error:
                    print(f"{tool}: {error}", file=sys.stderr)
                    del self._pythons[tool]
                    self.failed |= tool == "ours"
                shutil.rmtree(os.path.join(folder, "out"), ignore_errors=True)
        return {tool: least(costs) for tool, costs in found.items() if costs}

    def compare(self, target: Path, golden: Path, folder: str, only_ours: bool = False) -> dict[str, Cost]:
        paths = [str(side / "dump.json") for side in (target, golden)]
        return self.measure(["compare", "-tp", paths[0], "-gp", paths[1], "-o", "out"], folder, only_ours)


# --- what is measured


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="compare_") as folder:
        yield Path(folder)


def start_up(tools: Tools, repeats: int) -> Results:
    with _folder() as folder:
        for side in ("target", "golden"):
            compare_dumps.write_made(folder / side, 20)
        bare = least([cost([sys.executable, "-c", "pass"], str(folder)) for _ in range(repeats)])
        return {
            "python -c pass": {"ours": bare},
            "compare --help": tools.measure(["compare", "--help"], str(folder)),
            "20 records": tools.compare(folder / "target", folder / "golden", str(folder)),
        }


def statistics(tools: Tools, records: int, model: Path | None) -> Results:
    found: Results = {}
    with _folder() as folder:
        compare_dumps.write_made(folder / "golden", records)
        compare_dumps.write_made(folder / "target", records, APART)
        found[_name("same", folder, records)] = tools.compare(folder / "golden", folder / "golden", str(folder))
        found[_name("differ", folder, records)] = tools.compare(folder / "target", folder / "golden", str(folder))
    if model is not None:
        with _folder() as folder:
            for side in ("target", "golden"):
                (dump,) = (model / side).glob("step0/*/dump.json")
                compare_dumps.write_repeated(folder / side, dump.parent, records)
            found[_name("model", folder, records)] = tools.compare(folder / "target", folder / "golden", str(folder))
    return found


def _name(kind: str, folder: Path, records: int) -> str:
    text = (folder / "golden" / "dump.json").read_text(encoding="utf-8")
    return f"{kind}, {records} records of {len(text) / 1e6:.0f} MB"


def real_data(tools: Tools, megabytes: int, kind: str) -> Results:
    with _folder() as folder:
        for side, apart in (("golden", 0.0), ("target", APART)):
            compare_dumps.write_values(folder / side, megabytes * 500_000, kind, apart)
        reading = [sys.executable, os.path.abspath(__file__), "--read", str(folder)]
        cost(reading, str(folder))
        read = least([cost(reading, str(folder)) for _ in range(2)])
        # The real tool looks for .npy beside a MindSpore dump only: it would compare nothing.
        compared = tools.compare(folder / "target", folder / "golden", str(folder), only_ours=kind == ".npy")
        return {f"{megabytes} MB of {kind}, read": {"ours": read}, f"{megabytes} MB of {kind}, compared": compared}


def read_everything(folder: Path) -> None:
    """Only read the tensors of two dumps, as a comparison reads them."""
    import probe

    sides = [probe.read(folder / side) for side in ("target", "golden")]
    for records in zip(*sides):
        for dump, record in zip(sides, records):
            for item in record.items():
                dump.tensor(item)


# --- a real model


def work(folder: str, apart: float) -> bool:
    """In a process of its own: dump a training step of a small Llama into `folder`, statistics of everything."""
    import torch
    import transformers

    from msprobe.pytorch import PrecisionDebugger

    config = {"task": "statistics", "dump_path": folder, "level": "mix", "statistics": {}}
    Path("config.json").write_text(json.dumps({"rank": [], "step": [], **config}), encoding="utf-8")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=128, **sizes))
    if apart:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + apart * torch.randn_like(parameter))
    ids = torch.arange(64).reshape(2, 32)
    debugger = PrecisionDebugger(config_path=os.path.abspath("config.json"))
    debugger.start(model=model)
    model(input_ids=ids, labels=ids).loss.backward()
    debugger.stop()
    debugger.step()
    return True


@contextmanager
def _model() -> Iterator[Path | None]:
    """A folder with both dumps of the model; ``None`` where torch or transformers are not installed."""
    with _folder() as folder:
        try:
            for side, apart in (("target", 1e-6), ("golden", 0.0)):
                measure.run_worker(sys.executable, __file__, {"folder": str(folder / side), "apart": apart})
        except measure.Failed as error:
            print(f"no dump of a model: {error}", file=sys.stderr)
            yield None
            return
        yield folder


# --- in the process the user started


def _table(results: Results) -> str:
    head = ["", "ours s", "cpu s", "MiB", "real s", "cpu s", "MiB", "real / ours"]
    rows = []
    for what, costs in results.items():
        cells = [_cells(costs.get(tool)) for tool in ("ours", "real")]
        both = "ours" in costs and "real" in costs
        ratio = f"{costs['real'].wall_s / costs['ours'].wall_s:.1f}" if both else "-"
        rows.append([what, *cells[0], *cells[1], ratio])
    return measure.table(head, rows)


def _cells(found: Cost | None) -> list[str]:
    return ["-"] * 3 if found is None else [f"{found.wall_s:.2f}", f"{found.cpu_s:.2f}", f"{found.memory_mib:.0f}"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Time and memory of `msprobe compare`.")
    parser.add_argument("--backend", type=measure.check_torch, default="torch")
    parser.add_argument("--records", nargs="*", type=int, metavar="N", default=[2000, 20000])
    parser.add_argument("--megabytes", nargs="*", type=int, metavar="N", default=[256], help="real data on both sides")
    parser.add_argument("--kinds", nargs="*", choices=[".npy", ".pt"], default=[".npy", ".pt"])
    parser.add_argument("--no-model", action="store_true", help="no dump of a real model, which needs transformers")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="the least of N is taken (default 3)")
    parser.add_argument("--real", metavar="PYTHON", help="interpreter with another tool of the same import name")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    parser.add_argument("--read", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.read:
        read_everything(Path(options.read))
        return 0
    if min([1, *options.records, *options.megabytes]) < 1 or options.repeats < 1:
        parser.error("--records, --megabytes and --repeats must be 1 or more")

    about = measure.machine((options.backend, "numpy", "msgspec"), f"{os.cpu_count()} processors")
    print(f"{about}\n", flush=True)
    tools = Tools(options.real, options.repeats)
    results = start_up(tools, options.repeats)
    if options.no_model or not options.records:
        for records in options.records:
            results.update(statistics(tools, records, None))
    else:
        with _model() as model:
            for records in options.records:
                results.update(statistics(tools, records, model))
    for megabytes in options.megabytes:
        for kind in options.kinds:
            results.update(real_data(tools, megabytes, kind))
    print(_table(results), flush=True)
    if options.json:
        content = {what: {tool: asdict(found) for tool, found in costs.items()} for what, costs in results.items()}
        Path(options.json).write_text(json.dumps({"machine": about, "results": content}, indent=1) + "\n", "utf-8")
    return int(tools.failed)


if __name__ == "__main__":
    worker = measure.worker_arguments()
    if worker is not None:
        measure.give_result(work(**worker))
    else:
        sys.exit(main(sys.argv[1:]))
