"""How long `msprobe overflow_check` takes, and how much memory: many ranks, and one large one.

    python benchmarks/overflow_check.py                         # 64 ranks of 20,000 records, one rank of 200,000
    python benchmarks/overflow_check.py --ranks 8 --records 5000 --large 20000

The dumps are made of a recorded one (`deep_dumps.py`), with an all_reduce after every hundred records. In the middle of
the forward one rank makes a NaN, which reaches the others with the next all_reduce; all that comes after is NaN. Ranks
that hold the same are links to one file, which is read and decoded for each of them. It prints a table; it needs
nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import deep_dumps

ROOT = Path(__file__).parents[1]
_RECORDED = ROOT / "tests" / "graph" / "cases" / "dumps" / "llama"
_FILES = ("dump.json", "construct.json", "stack.json")
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_EVERY = 100
"""Records between two calls of all_reduce."""
# A child that records the largest resident size of all processes below it, and the time of their processors.
_MEASURE = """
import resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
wall = time.perf_counter() - begin
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
print(done.stderr[-500:], file=sys.stderr)
"""


class Cost(NamedTuple):
    """What one command took."""

    name: str
    megabytes: float
    """Of all dumps together."""
    wall: float
    processor: float
    memory: float
    """MiB of the largest process."""


def _tensor(value: float) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [32, 32]}
    return {**found, **dict.fromkeys(_STATISTICS, value), "requires_grad": False}


def _all_reduce(ranks: int, before: float, after: float) -> dict[str, Any]:
    group = {"type": "torch.ProcessGroup", "group_ranks": list(range(ranks)), "group_id": "00000000"}
    return {"input_args": [_tensor(before)], "input_kwargs": {"group": group}, "output": [_tensor(after), group]}


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        if "Max" in value and isinstance(value["Max"], float):
            return {**value, **dict.fromkeys(_STATISTICS, float("nan"))}
        return {key: _with_nan(item) for key, item in value.items()}
    return [_with_nan(item) for item in value] if isinstance(value, list) else value


def _records(clean: dict[str, Any], ranks: int, bad_from: int, is_faulty: bool) -> Iterator[tuple[str, Any]]:
    """The records of a rank: NaN from `bad_from` on where it is the faulty one, else from the next all_reduce on."""
    number, reached = 0, False
    for index, (name, record) in enumerate(clean.items()):
        is_origin = index == bad_from and is_faulty
        if is_origin:
            yield name, {**record, "output": _with_nan(record["output"])}
        else:
            yield name, _with_nan(record) if reached else record
        was_reached, is_source = reached, is_faulty and index >= bad_from
        reached = reached or is_source
        if ranks > 1 and index % _EVERY == _EVERY - 1:
            nan = float("nan")
            after = nan if index >= bad_from else 1.0
            yield f"Distributed.all_reduce.{number}.forward", _all_reduce(ranks, nan if reached else 1.0, after)
            reached, number = was_reached or index >= bad_from, number + 1


def make(folder: Path, ranks: int, records: int) -> int:
    """Dumps of so many ranks with about so many records each; returns the records of one."""
    recorded = deep_dumps.recorded(_RECORDED)
    # Not every node has a record.
    nodes = records * len(recorded.tree) // len(recorded.dump["data"])
    deep_dumps.write_deep(folder / "made", recorded, deep_dumps.layers_of(nodes))
    dump = json.loads((folder / "made" / "dump.json").read_text("utf-8"))
    clean = dump["data"]
    names = [name for name in clean if isinstance(clean[name], dict) and ".forward" in name and "output" in clean[name]]
    bad_from = list(clean).index(names[len(names) // 2])
    count = 0
    for kind in ("faulty", "other"):
        data = dict(_records(clean, ranks, bad_from, kind == "faulty"))
        count = len(data)
        (folder / kind).mkdir()
        (folder / kind / "dump.json").write_text(json.dumps({**dump, "data": data}, indent=1), encoding="utf-8")
        for name in _FILES[1:]:
            os.link(folder / "made" / name, folder / kind / name)
    for rank in range(ranks):
        place = folder / "run" / "step0" / f"rank{rank}"
        place.mkdir(parents=True)
        for name in _FILES:
            os.link(folder / ("faulty" if rank == ranks // 2 else "other") / name, place / name)
    return count


def cost(name: str, run: Path, jobs: int, repeats: int) -> Cost:
    """The least of several runs of the command.

    Raises:
        RuntimeError: it does not find what is there.
    """
    command = [sys.executable, "-c", "from probe.api.cli import main; import sys; sys.exit(main())", "overflow_check"]
    command += ["-i", str(run), "-o", str(run.parent / "output"), "--no_page", "--jobs", str(jobs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    megabytes = sum(path.stat().st_size for path in run.rglob("dump.json")) / 1e6
    costs = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, *command], env=environment, capture_output=True, text=True, check=True
        )
        status, *numbers = map(float, done.stdout.split())
        if status != 1:
            raise RuntimeError(f"{name}: status {status:.0f} for 1: {done.stderr}")
        costs.append(Cost(name, megabytes, *numbers))
    return min(costs, key=lambda each: each.wall)


def table(costs: Sequence[Cost]) -> str:
    head = ["| dumps | MB | wall s | processor s | MiB of the largest process |", "|---|--:|--:|--:|--:|"]
    rows = [
        f"| {each.name} | {each.megabytes:,.0f} | {each.wall:.1f} | {each.processor:.1f} | {each.memory:,.0f} |"
        for each in costs
    ]
    return "\n".join([*head, *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How long overflow_check takes.")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--records", type=int, default=20_000, help="of each of these ranks")
    parser.add_argument("--large", type=int, default=200_000, help="records of a single rank")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    costs = []
    for ranks, records, jobs in ((options.ranks, options.records, options.jobs), (1, options.large, 1)):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            count = make(Path(folder), ranks, records)
            print(f"made in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
            name = f"{ranks} ranks of {count:,} records, {jobs} processes"
            if ranks == 1:
                name = f"1 rank of {count:,} records, 1 process"
            costs.append(cost(name, Path(folder, "run"), jobs, options.repeats))
            print(costs[-1], file=sys.stderr, flush=True)
    print(table(costs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
