"""Keep pairs of dumps with their right answers for ``tests/compare/test_judged_pairs.py``.

    python benchmarks/verdicts.py --keep DIR                 makes the dumps
    python benchmarks/verdicts/keep.py DIR                   takes those that are kept anew
    python benchmarks/verdicts/keep.py DIR SET/CASE ...      takes these; of SET/CASE=2 two steps
    python benchmarks/verdicts/keep.py                       judges those that are kept, and marks what is missed

Of each run what a comparison reads is kept: of `stack.json` two frames of each call, of the settings none of the
machine. A set is one archive, in which equal runs take no room of their own.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from judging import RIGHT, Case, judge

KEPT = Path(__file__).parents[2] / "tests" / "compare" / "judged"
CASES = KEPT / "cases.json"
_KEYS = [field.name for field in fields(Case)]
_ALWAYS = ("right", "planted")
_FRAMES = 2
_FILES = ("dump.json", "construct.json", "stack.json", "sketch.npz", "updates.npz")
_OF_MACHINE = ("variables", "command", "platform", "withheld", "python", "tool")
_PATH = re.compile(r"(?<![\w.])/(?:[^/\s\"',]+/)+")


def cases_of(dumps: Path) -> dict[str, dict[str, Any]]:
    """The cases that a run of the benchmark left in `dumps`, by set and name."""
    found = (json.loads(line) for file in dumps.glob("*/cases.jsonl") for line in file.read_text("utf-8").splitlines())
    return {f"{case['set']}/{case['case']}": case for case in found}


def files_of(run: Path, steps: int) -> Iterator[tuple[str, bytes]]:
    """What is kept of a run: names and contents."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        step = re.match(r"step(\d+)/", name)
        if step is not None and int(step[1]) >= steps:
            continue
        # The number of a process says nothing.
        name = re.sub(r"proc\d+", "proc0", name)
        if path.name in _FILES:
            content = path.read_bytes()
            yield name, content if path.suffix == ".npz" else _anonymous(path.name, json.loads(content))
        elif re.fullmatch(r"environment_\w+\.json", path.name):
            values = json.loads(path.read_bytes())
            yield name, _anonymous(path.name, {key: value for key, value in values.items() if key not in _OF_MACHINE})


def _anonymous(name: str, values: Any) -> bytes:
    if name == "stack.json":
        values = {key: [names, _frames(frames)] for key, (names, frames) in values.items()}
    elif name == "dump.json":
        values["dump_data_dir"] = None
    # Keys keep their order, which is that of the calls.
    text = json.dumps(values, separators=(",", ":"))
    return _PATH.sub("", text).encode()


def _frames(frames: Sequence[str]) -> list[str]:
    """The innermost frames outside of the framework, with paths from the packages on."""
    outside = [frame for frame in frames if not re.search("site-packages/(torch|mindspore|mindtorch)/", frame)]
    return [re.sub(r"^File \S*?/(?=site-packages/)", "File ", frame) for frame in (outside or frames)[:_FRAMES]]


def write(archive: Path, cases: Sequence[dict[str, Any]], dumps: Path) -> None:
    """Write the runs of one set."""
    with tarfile.open(archive, "w:xz", preset=9) as stream:
        for case in cases:
            for side in ("target", "golden"):
                for name, content in files_of(dumps / case[side], case["steps"]):
                    entry = tarfile.TarInfo(f"{case['case']}/{side}/{name}")
                    entry.size = len(content)
                    stream.addfile(entry, io.BytesIO(content))


def keep(dumps: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Write the archives anew; the cases that are in them.

    Raises:
        KeyError: there is no such case in `dumps`.
    """
    there = cases_of(dumps)
    sets: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for given in names:
        name, _, steps = given.partition("=")
        case = {key: value for key, value in there[name].items() if key in _KEYS and (value or key in _ALWAYS)}
        case["steps"] = int(steps or 1)
        sets[case["set"]].append(case)
    KEPT.mkdir(exist_ok=True)
    for old in KEPT.glob("*.tar.xz"):
        old.unlink()
    for name, cases in sets.items():
        write(KEPT / f"{name}.tar.xz", cases, dumps)
        for case in cases:
            case["target"], case["golden"] = (f"{case['case']}/{side}" for side in ("target", "golden"))
    return [case for cases in sets.values() for case in cases]


def mark(cases: Sequence[dict[str, Any]]) -> None:
    """Say of each case that is not answered rightly what is answered."""
    with tempfile.TemporaryDirectory() as name:
        for archive in KEPT.glob("*.tar.xz"):
            with tarfile.open(archive) as stream:
                stream.extractall(Path(name) / archive.name.partition(".")[0])
        for case in cases:
            case.pop("missed", None)
            judged = judge(Case.of(case), Path(name) / case["set"])
            if judged.word != RIGHT:
                case["missed"] = judged.word


def main(arguments: Sequence[str]) -> int:
    cases = json.loads(CASES.read_text("utf-8")) if CASES.exists() else []
    if arguments:
        those = [f"{case['set']}/{case['case']}={case['steps']}" for case in cases]
        cases = keep(Path(arguments[0]), arguments[1:] or those)
    mark(cases)
    lines = ",\n".join(map(json.dumps, cases))
    CASES.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
