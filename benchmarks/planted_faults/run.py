"""Single faults planted into ten models, and runs without any that only round differently, dumped for one step.

    run.py OUT      makes the dumps that OUT does not have yet, each level in a process of its own

Each fault is compared from either side. The run with the fault sums products in another order, on two threads and
without oneDNN, so that nearly all tensors differ in their last bits before the fault is met.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tests" / "support")]

from judging import Case
from measure import ONE_THREAD
from planted_faults.faults import FAULTS, KINDS
from planted_faults.settings import NAMES, SETTINGS, Setting, Variant
from planted_faults.truth import truth

CLEAN = {
    "clean_a": "plain",
    "clean_b": "everything",
    "clean_threads": "threads",
    "clean_order": "order",
    "clean_wider": "wider",
    "clean_library": "library",
}
"""Runs without fault -> how they round."""
FAULTY = "everything"
"""How a run with a fault rounds; it is held against the first of the others."""
CLEAN_PAIRS = (*(("clean_a", other) for other in CLEAN if other != "clean_a"), ("clean_order", "clean_wider"))


def kinds(setting: Setting) -> list[str]:
    """The kinds of faults: in bfloat16 a cast to it is none."""
    return [kind for kind in KINDS if setting.dtype != "bfloat16" or kind != "bf16"]


def variants(setting: Setting) -> Iterator[Variant]:
    """The runs at a level."""
    for model in FAULTS:
        yield from (Variant(model, name, rounding) for name, rounding in CLEAN.items())
        yield from (Variant(model, kind, FAULTY, kind) for kind in kinds(setting))


def make(dumps: Path) -> None:
    """Make what is missing."""
    for number, setting in enumerate(SETTINGS):
        if not all(run.path(dumps, setting).is_dir() for run in variants(setting)):
            command = [sys.executable, __file__, str(dumps), str(number)]
            subprocess.run(command, env={**os.environ, **ONE_THREAD}, check=True, stdout=sys.stderr)


def cases(dumps: Path) -> Iterator[Case]:
    """Each fault in the target and in the golden run, and the runs without fault in both roles."""
    for setting in SETTINGS:
        names = (setting if setting.level == "mix" else NAMES).folder
        for model in FAULTS:
            folder = dumps / model
            for kind in kinds(setting):
                fault = FAULTS[model][kind]
                faulty = truth(fault, folder / kind / names).places(setting.level)
                clean = truth(fault, folder / "clean_a" / names, clean=True).places(setting.level)
                yield _case(dumps, model, setting, kind, "clean_a", {"target": faulty, "golden": clean})
                yield _case(dumps, model, setting, "clean_a", kind, {"target": clean, "golden": faulty})
            for first, second in CLEAN_PAIRS:
                yield _case(dumps, model, setting, first, second, None)
                yield _case(dumps, model, setting, second, first, None)


def _case(
    dumps: Path, model: str, setting: Setting, target: str, golden: str, places: dict[str, list[str]] | None
) -> Case:
    folders = (str((dumps / model / run / setting.folder).relative_to(dumps.parent)) for run in (target, golden))
    name = f"{model}-{target}-{golden}-{setting.dtype}@{setting.level}"
    return Case("planted", name, *folders, None, setting.dtype, setting.level, places is not None, places)


def main(dumps: Path, number: str = "") -> None:
    """Make everything, or the runs at one level in this process."""
    if not number:
        make(dumps)
        return
    from planted_faults.dumping import dump_all

    setting = SETTINGS[int(number)]
    dump_all(dumps, setting, 0, [run for run in variants(setting) if not run.path(dumps, setting).is_dir()])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
