"""How long ``msprobe graph_visualize`` takes, how much memory and how large a file, and how quick its page is.

    python benchmarks/graph.py                                          # 303, 5,429 and 21,554 nodes a side
    python benchmarks/graph.py --nodes 303 5429 21554 107000 --ranks --real VENV/bin/msprobe --browser /usr/bin/chromium

Every number of the first table is that of a whole command in a process of its own: wall time, processor time, and the
largest memory of one process. The least of `--repeats` runs is taken; another tool (``--real``: its command) runs on
the same files in between. The model is a recorded two-layer Llama, its second layer there again until there are so many
nodes; one side has a weight shifted from the layer in the middle on.

With ``--browser`` each page is opened from ``file://`` by playwright; what a key does is timed in the page, from the
event until the frame after it is drawn. ``--ranks`` adds 8 ranks of 4 steps of 5,000 nodes on two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measure
from compare_speed import Cost, cost, least
from deep_dumps import Recorded, layers_of, recorded, write_deep

ROOT = Path(__file__).resolve().parents[1]
DUMPS = ROOT / "tests" / "graph" / "cases" / "dumps"
NODES = (303, 5429, 21554)
RANKS, STEPS, NODES_OF_RANK = 8, 4, 5000
_OURS = [sys.executable, "-c", "import sys; from probe.api.cli import main; sys.exit(main())"]
# Another tool has the same import name.
_ENVIRONMENTS = {
    "ours": {**os.environ, "PYTHONPATH": str(ROOT)},
    "real": {name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
}


@dataclass(frozen=True)
class Made:
    """What one command cost, and how large its files are."""

    cost: Cost
    megabytes: float


def measured(command: Sequence[str], repeats: int, folder: Path, environment: Mapping[str, str]) -> Made:
    """The least of some runs of a command that writes into `folder`.

    Raises:
        measure.Failed: it failed.
    """
    found = []
    for _ in range(repeats):
        shutil.rmtree(folder, ignore_errors=True)
        # Other tools want a folder that only its owner writes to.
        folder.mkdir(mode=0o750, parents=True)
        found.append(cost([*command, "-o", str(folder)], str(folder.parent), environment))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Made(least(found), size / 1e6)


class Bench:
    """The dumps, and the tools that read them."""

    def __init__(self, folder: Path, repeats: int, real: str | None) -> None:
        self.folder, self._repeats = folder, repeats
        self.tools = {"ours": _OURS, **({"real": [os.path.abspath(real)]} if real else {})}
        self._clean, self._faulty = recorded(DUMPS / "llama"), recorded(DUMPS / "llama_weight")

    def pair(self, nodes: int) -> tuple[Path, Path]:
        """The dumps of a pair of so many nodes, made when they are first wanted."""
        place = self.folder / str(nodes)
        if not place.is_dir():
            self._write(place, nodes, 0, "")
        return place / "target", place / "golden"

    def _write(self, place: Path, nodes: int, seed: int, below: str) -> None:
        layers = layers_of(nodes)
        sides: dict[str, Recorded | None] = {"golden": None, "target": self._faulty}
        for side, faulty in sides.items():
            write_deep(place / side / below, self._clean, layers, faulty, layers // 2, seed)

    def ranks(self) -> tuple[Path, Path]:
        """Two runs of several ranks and steps."""
        place = self.folder / "ranks"
        if not place.is_dir():
            for step in range(STEPS):
                for rank in range(RANKS):
                    self._write(place, NODES_OF_RANK, RANKS * step + rank, f"step{step}/rank{rank}")
        return place / "target", place / "golden"

    def single(self, tool: str, nodes: int) -> Made:
        """One graph."""
        target, _ = self.pair(nodes)
        return self._run(tool, ["-tp", str(target)], f"{nodes}-build")

    def both(self, tool: str, nodes: int) -> Made:
        """Two graphs beside each other."""
        target, golden = self.pair(nodes)
        return self._run(tool, ["-tp", str(target), "-gp", str(golden)], f"{nodes}-compare")

    def all_ranks(self, tool: str) -> Made:
        """All ranks and steps."""
        target, golden = self.ranks()
        jobs = ["--jobs", "2"] if tool == "ours" else []
        return self._run(tool, ["-tp", str(target), "-gp", str(golden), *jobs], "ranks-compare")

    def page(self, name: str) -> Path:
        """The page that was written last for `name`."""
        folder = self._output("ours", name)
        (found,) = [*folder.glob("*.html"), *folder.glob("*/index.html")]
        return found

    def _run(self, tool: str, arguments: list[str], name: str) -> Made:
        command = [*self.tools[tool], "graph_visualize", *arguments]
        return measured(command, self._repeats, self._output(tool, name), _ENVIRONMENTS[tool])

    def _output(self, tool: str, name: str) -> Path:
        return self.folder / "output" / f"{name}-{tool}"


def row(name: str, made: dict[str, Made], tools: Sequence[str]) -> list[str]:
    """A line of the table of commands."""
    cells = [name]
    for tool in tools:
        if tool not in made:
            cells += ["-"] * 4
            continue
        found = made[tool]
        cells += [f"{found.cost.wall_s:.2f}", f"{found.cost.cpu_s:.2f}", f"{found.cost.memory_mib:.0f}"]
        cells.append(f"{found.megabytes:.2f}")
    return cells


def commands(bench: Bench, options: argparse.Namespace) -> dict[str, dict[str, Made]]:
    """What was measured -> tool -> what it cost; what fails is said, and left out."""
    wanted: dict[str, Any] = {}
    for nodes in options.nodes:
        wanted[f"one graph, {nodes:,} nodes"] = lambda tool, nodes=nodes: bench.single(tool, nodes)
        wanted[f"two graphs, {nodes:,} nodes each"] = lambda tool, nodes=nodes: bench.both(tool, nodes)
    if options.ranks:
        wanted[f"{RANKS} ranks, {STEPS} steps, {NODES_OF_RANK:,} nodes"] = bench.all_ranks
    found: dict[str, dict[str, Made]] = {}
    for name, run in wanted.items():
        found[name] = {}
        for tool in bench.tools:
            try:
                found[name][tool] = run(tool)
                print(f"{name}, {tool}: {found[name][tool]}", file=sys.stderr, flush=True)
            except measure.Failed as error:
                print(f"{name}, {tool}: {error}", file=sys.stderr, flush=True)
    return found


def report(found: dict[str, dict[str, Made]], pages: dict[str, dict[str, float]]) -> str:
    """The tables."""
    tools = list(dict.fromkeys(tool for made in found.values() for tool in made))
    head = ["", *(f"{tool} {unit}" for tool in tools for unit in ("wall s", "CPU s", "MiB", "MB"))]
    tables = measure.table(head, [row(name, made, tools) for name, made in found.items()])
    if pages:
        actions = list(next(iter(pages.values())))
        rows = [[action, *(f"{pages[name][action]:.0f}" for name in pages)] for action in actions]
        tables += "\n\n" + measure.table(["milliseconds", *pages], rows)
    return tables


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description="Time, memory and size of graph pages, and how quick they are.")
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES, metavar="N", help="nodes of a side")
    parser.add_argument("--ranks", action="store_true", help="several ranks and steps, too")
    parser.add_argument("--real", metavar="COMMAND", help="msprobe of another installation, measured beside ours")
    parser.add_argument("--browser", metavar="CHROMIUM", help="open the pages with it; needs playwright")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="the least of N is taken (default 3)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave dumps and pages there; dumps are made once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if options.repeats < 1 or min(options.nodes) < 303:
        parser.error("--repeats must be 1 or more, and --nodes 303 or more")
    about = measure.machine(("msprobe",), "two cores")
    print(about, flush=True)
    with tempfile.TemporaryDirectory(prefix="graph_") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        bench = Bench(folder, options.repeats, options.real)
        found = commands(bench, options)
        pages: dict[str, dict[str, float]] = {}
        if options.browser:
            from graph_page import page_times

            for nodes in options.nodes:
                pages[f"{nodes:,} nodes"] = page_times(bench.page(f"{nodes}-compare"), options.browser)
    print(f"\n{report(found, pages)}", flush=True)
    if options.json is not None:
        made = {name: {tool: asdict(each) for tool, each in tools.items()} for name, tools in found.items()}
        content = {"machine": about, "commands": made, "pages": pages}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all("ours" in made for made in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
