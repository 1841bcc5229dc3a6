"""Which module `PrecisionChecker` names for faults of compilers, and whether it accuses one of right compilers.

Writes benchmarks/COMPILED_MODULES.md. ``--only mlp`` takes what has this in its name, ``--backends eager,aot_eager``
leaves out inductor, which compiles C++ for a minute per model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import torch  # noqa: E402
from compiled.faults import FAULTS, Planted  # noqa: E402
from compiled.held_out import HELD_OUT, held_out  # noqa: E402
from compiled.held_out_faults import HELD_OUT_FAULTS  # noqa: E402
from compiled.models import MODELS, made  # noqa: E402

from msprobe.pytorch import PrecisionChecker  # noqa: E402

_FILE = ROOT / "benchmarks" / "COMPILED_MODULES.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--backends", default="eager,aot_eager,inductor")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--held-out", action="store_true", help="print those that no constant was chosen with")
    args = parser.parse_args()
    if args.held_out:
        missing: dict[str, list[str]] = {}
        backends = args.backends.split(",")
        for line in chain(_held_out(args.only, backends, missing), _held_out_faults(args.only, missing)):
            print(line, flush=True)
        for error, models in missing.items():
            print(f"\nNot run: {', '.join(dict.fromkeys(models))}: {error}", flush=True)
        return
    lines = [
        "# Compiled modules", "",
        f"`python benchmarks/compiled_modules.py`, torch {torch.__version__}, {args.seeds} seeds: the first module "
        "that `PrecisionChecker` names. One fault is",
        "planted below what the dtype rounds itself: the cast inside of a norm whose block returns bfloat16.", "",
    ]  # fmt: skip
    for line in chain(_right(args.only, args.backends.split(","), args.seeds), _faults(args.only, args.seeds)):
        print(line, flush=True)
        lines.append(line)
    if not args.only:
        with open(_FILE, "w") as stream:
            stream.write("\n".join(lines) + "\n")


def _right(only: str, backends: list[str], seeds: int) -> Iterator[str]:
    yield "## Right compilers: no module is accused"
    yield ""
    yield "| model | backend | modules | tensors | in other bits | accused | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for name in MODELS:
        for backend in backends if only in name else ():
            for seed in range(seeds):
                begun = time.process_time()
                checker = PrecisionChecker(backend=backend)
                model, classes, step = made(name, seed)
                checker.wrap_by_policy(model, classes)
                report = checker.compare(step, model)
                parts = [part for part in report.parts if part.stage]
                accused = [f"{part.module} {part.tensor}: {part.why}" for part in parts if part.status == "different"]
                unchecked = [part.why for part in report.parts if part.status == "not checked"]
                other = sum(part.status == "rounding" for part in parts)
                found = accused + unchecked or "none"
                seconds = time.process_time() - begun
                yield f"| {name} | {backend} | {report.modules} | {len(parts)} | {other} | {found} | {seconds:.0f} |"


def _faults(only: str, seeds: int) -> Iterator[str]:
    yield ""
    yield "## Planted faults: the module that has the fault is named"
    yield ""
    yield "| fault | model | planted in | named | tensor | largest difference | what is said |"
    yield "|---|---|---|---|---|---|---|"
    for name, fault in FAULTS.items():
        for seed in range(seeds if only in name or only in fault.model else 0):
            model, classes, step = made(fault.model, seed)
            checked = [name for name, each in model.named_modules() if isinstance(each, classes)]
            planted = Planted(fault)
            checker = PrecisionChecker(backend=planted)
            checker.wrap_by_policy(model, classes)
            report = checker.compare(step, model)
            first = report.first
            named = ("nothing", "", "", "")
            if first is not None:
                largest = "" if first.max_abs_diff is None else f"{first.max_abs_diff:.1e}"
                named = (first.module, first.tensor, largest, first.why)
            where_text = checked[fault.where] if planted.is_planted else "not planted"
            yield f"| {name} | {fault.model} | {where_text} | {' | '.join(named)} |"


def _held_out(only: str, backends: list[str], missing: dict[str, list[str]]) -> Iterator[str]:
    """Rows of right compilers. `missing` gets the models that are left out, by the error of their package."""
    yield "| model | dtype | backend | modules | tensors | in other bits | accused |"
    yield "|---|---|---|---|---|---|---|"
    for name in HELD_OUT:
        for dtype, backend in product(("float32", "bfloat16"), backends) if only in name else ():
            try:
                model, classes, step = held_out(name, 0, dtype)
            except ImportError as error:
                missing.setdefault(str(error), []).append(name)
                continue
            checker = PrecisionChecker(backend=backend)
            checker.wrap_by_policy(model, classes)
            report = checker.compare(step, model)
            parts = [part for part in report.parts if part.stage]
            accused = [f"{part.module} {part.tensor}" for part in parts if part.status == "different"]
            accused += [f"{part.module}: {part.why}" for part in report.parts if part.status == "not checked"]
            other = sum(part.status == "rounding" for part in parts)
            found = "; ".join(accused) or "none"
            yield f"| {name} | {dtype} | {backend} | {report.modules} | {len(parts)} | {other} | {found} |"


def _held_out_faults(only: str, missing: dict[str, list[str]]) -> Iterator[str]:
    yield ""
    yield "| fault | model | planted in | named | tensor |"
    yield "|---|---|---|---|---|"
    for fault_name, fault in HELD_OUT_FAULTS.items():
        if only not in fault.model:
            continue
        name, _, dtype = fault.model.partition(", b")
        try:
            model, classes, step = held_out(name, 0, "bfloat16" if dtype else "float32")
        except ImportError as error:
            missing.setdefault(str(error), []).append(name)
            continue
        planted = Planted(fault)
        checker = PrecisionChecker(backend=planted)
        checker.wrap_by_policy(model, classes)
        report = checker.compare(step, model)
        # The graphs are made in the order in which the modules returned.
        called = list(dict.fromkeys(part.module for part in report.parts))
        first = report.first
        named = "nothing | " if first is None else f"{first.module} | {first.tensor}"
        where = called[fault.where] if planted.is_planted else "not planted"
        yield f"| {fault_name} | {fault.model} | {where} | {named} |"


if __name__ == "__main__":
    main()
