"""Independent packages that implement one network, each pair correct and with faults, judged.

    run.py --judge-only DIR [--pairs NAME ...] [--settings mix:statistics ...] [--only PATTERN] [--summary]
    run.py DIR --python packages=PYTHON [--python engine=PYTHON] [--pairs NAME ...]    makes the dumps that are missing
    run.py DIR --environments FOLDER    makes the environments there first, from requirements/*.txt

Judging needs no package and takes seconds. A correct pair has to be silent. Of a fault, its place has to be named. An
answer that it cannot be told is counted by itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
for folder in (ROOT, HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from package_index import SILENT, Row, judge, pairs_in  # noqa: E402

PAIRS = {
    "packages": (
        "litgpt-llama", "litgpt-neox", "timm-vit", "torchvision-vit", "transformers-resnet", "open-clip", "peft-lora",
        "torch-encoder", "mambapy", "megatron-gpt",
    ),
    "torchtune": ("torchtune-llama",),
    "layouts": ("fair-esm", "curated-albert", "curated-mpt", "torchaudio-wav2vec2"),
    "reshapes": ("transformer-lens", "mlp-mixer", "monai-vit"),
    "engine": ("vllm-llama",),
}  # fmt: skip
"""Names of the pairs, by the environment in which they are made."""
REQUIREMENTS = HERE / "requirements"


def make_environment(name: str, folder: Path) -> str:
    """Make an environment with the packages of a list and return its interpreter.

    It takes torch and what else is there from the interpreter that runs this. The lists are complete, so that no
    package brings another torch.
    """
    place = folder / name
    python = place / "bin" / "python"
    marker = place / "complete"
    if marker.exists():
        return str(python)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    mine = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "base.pth").write_text(f"import site; site.addsitedir({mine!r})\n", encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "-r", str(REQUIREMENTS / f"{name}.txt")], check=True)
    marker.touch()
    return str(python)


def make(out: Path, pythons: Mapping[str, str], names: Iterable[str] = ()) -> list[str]:
    """Make the dumps that are missing, as far as there are environments; return what could not be made."""
    there, missing = pairs_in(out), []
    chosen = list(names)
    for environment, pairs in PAIRS.items():
        wanted = [name for name in pairs if name not in there and (not chosen or name in chosen)]
        if not wanted:
            continue
        if environment not in pythons:
            missing += wanted
            continue
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        command = [pythons[environment], "-W", "ignore", str(HERE / "package_dumping.py"), str(out), *wanted]
        done = subprocess.run(command, env={**os.environ, **_SETTINGS, "PYTHONPATH": paths}, check=False)
        if done.returncode:
            missing += [name for name in wanted if name not in pairs_in(out)]
    return missing


_SETTINGS = {
    "HF_HUB_OFFLINE": "1", "KERAS_BACKEND": "torch", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def rows(out: Path, environments: Path, names: Sequence[str] = ()) -> list[Row]:
    """Make the environments and the dumps that are missing, of the named pairs or of all, and judge."""
    wanted = [name for name, pairs in PAIRS.items() if not names or set(names) & set(pairs)]
    missing = make(out, {name: make_environment(name, environments) for name in wanted}, names)
    if missing:
        print(f"not made: {', '.join(missing)}", file=sys.stderr)
    there = [name for name in pairs_in(out) if not names or name in names]
    return list(judge(out, there)) if there else []


def summary(rows: Sequence[Row]) -> str:
    """One line for each pair, type and setting: the answer of the correct pair, and the faults that are named."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        pair, type_, setting, *_ = row.name.split(" ")
        groups.setdefault(f"{pair} {type_} {setting}", []).append(row)
    lines = []
    for name, each in groups.items():
        correct = [row for row in each if row.truth == SILENT]
        faults = [row for row in each if row.truth != SILENT]
        answer = " ".join(_answer(row) for row in correct)
        unsure = sum(row.unsure for row in faults)
        named = f"{sum(row.right for row in faults)} of {len(faults)} faults named"
        lines.append(f"{name}: correct pair {answer or '-'}; {named}{f', {unsure} cannot tell' if unsure else ''}")
    return "\n".join(lines)


def _answer(row: Row) -> str:
    if row.right:
        return SILENT
    return "cannot tell" if row.unsure else "WRONG"


def totals(rows: Sequence[Row]) -> str:
    """The last line."""
    correct = [row for row in rows if row.truth == SILENT]
    faults = [row for row in rows if row.truth != SILENT]
    parts = []
    for what, each, good in (("correct pairs", correct, "silent"), ("faults", faults, "named")):
        right, unsure = sum(row.right for row in each), sum(row.unsure for row in each)
        quiet = sum(row.said == SILENT for row in each) if each is faults else 0
        rest = f", {quiet} silent" if each is faults else ""
        parts.append(f"{what}: {right} of {len(each)} {good}, {unsure} cannot be told{rest}")
    return f"{'; '.join(parts)}; {sum(row.right for row in rows)} of {len(rows)} right"


def main(arguments: Sequence[str]) -> int:
    """Make, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", metavar="DIR", help="folder for the dumps")
    parser.add_argument("--judge-only", type=Path, metavar="DIR", help="judge the dumps in this folder")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="of an environment")
    parser.add_argument("--environments", type=Path, metavar="FOLDER", help="make the environments in this folder")
    parser.add_argument("--pairs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--settings", nargs="+", default=[], metavar="LEVEL:TASK")
    parser.add_argument("--only", default="", metavar="PATTERN", help="pattern for the names of the rows")
    parser.add_argument("--summary", action="store_true", help="print one line for each pair and setting only")
    options = parser.parse_args(arguments)
    out = (options.judge_only or options.out).resolve() if options.judge_only or options.out else None
    if out is None:
        parser.error("DIR or --judge-only DIR is missing")
    if options.judge_only is None:
        pythons = dict(each.split("=", 1) for each in options.python)
        if options.environments is not None:
            for name in PAIRS:
                pythons.setdefault(name, make_environment(name, options.environments))
        missing = make(out, pythons, options.pairs)
        if missing:
            print(f"not made: {', '.join(missing)}", file=sys.stderr)
    found, start = [], time.time()
    chosen = [name for name in pairs_in(out) if not options.pairs or name in options.pairs]
    for row in judge(out, chosen, options.settings, options.only) if chosen else ():
        found.append(row)
        if not options.summary:
            label = "right" if row.right else "UNSURE" if row.unsure else "WRONG"
            print(f"{label:6s} {row.name} :: {row.said[:300]}", flush=True)
    if options.summary:
        print(summary(found))
    print(f"{totals(found)} ({time.time() - start:.0f} s)")
    return int(not all(row.right for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
