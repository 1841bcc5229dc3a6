"""The pairs of `programs.py`, and what is right of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from judging import CANNOT_TELL, Case

_PROGRAMS = Path(__file__).parent / "programs.py"
_MASK = r"(?i)mask|causal|softmax|scaled_dot_product"
_WINDOW = r"(?i)tril|where|__add__\.0\b|mask|diagonal"
_ATTENTION = r"scaled_dot_product_attention\.0\b|softmax\.0\.|__matmul__\.[01]\.|blocks\.0\.(out\b|Block\.)"


class Pair(NamedTuple):
    program: str
    target: str
    golden: str
    right: str | None = None
    cause: str = ""
    precision: str = "float32"
    planted: bool = True


_SHORT = "autocast bfloat16"
PAIRS = (
    Pair("eager_without_mask", "bug", "right", _ATTENTION, _MASK, _SHORT),
    Pair("eager_without_mask", "eager", "right", precision=_SHORT),
    Pair(
        "rotary_in_bfloat16", "bug", "right", r"(?i)einsum\.0\b|\brotary\b|inv_freq", r"inv_freq|bfloat16", "bfloat16"
    ),
    *(
        Pair("missing_gradient", mode, "right", r"^step0.*\bup\b", r"(?i)gradient")
        for mode in ("reentrant", "no_grad", "detached", "frozen")
    ),
    Pair("forgotten_train", "bug", "right", r"(?i)^step1.*(training|dropout|\b2\.)", r"(?i)training|\beval"),
    Pair("other_order", "swapped", "plain"),
    Pair("other_optimizer", "own", "torch"),
    Pair("weight_of_expert", "exchanged", "golden", r"3\.experts\.2\b"),
    Pair("weight_of_expert", "inside", "golden"),
    Pair("window_of_mask", "window", "causal", _WINDOW, _WINDOW),
    Pair("keywords", "by_name", "by_place"),
    Pair("epsilon", "larger", "usual", r"^step0.*\b0\.0\b", r"eps"),
    Pair("epsilon", "usual-without-step1", "usual", CANNOT_TELL, planted=False),
    Pair("epsilon", "usual", "usual-without-step1", CANNOT_TELL, planted=False),
    Pair("epsilon", "larger-without-step1", "usual", r"^step0.*\b0\.0\b", r"eps"),
)


def cases(dumps: Path, python: str) -> Iterator[Case]:
    """Make the dumps that are missing; the pairs."""
    for level in ("mix", "L0"):
        for pair in PAIRS:
            target, golden = (_run(dumps, python, pair.program, mode, level) for mode in (pair.target, pair.golden))
            right = pair.right
            if level == "L0" and pair.program == "window_of_mask":
                right = r"Module\.0\.Masked"
            yield Case(
                "field", f"{pair.program}-{pair.target}-{pair.golden}@{level}", target, golden, right, pair.precision,
                level, right is not None and pair.planted, cause=pair.cause,
            )  # fmt: skip
    statistics = _of_mode(dumps, python, "statistics")
    md5, xor = (_of_mode(dumps, python, mode) for mode in ("md5", "xor"))
    for name, target, golden in (("md5-statistics", md5, statistics), ("md5-xor", md5, xor)):
        yield Case(
            "field", f"{name}@mix", target, golden, None, "float32", "mix", False, refused="(?i)md5|xor|checksum"
        )


def _run(dumps: Path, python: str, program: str, mode: str, level: str) -> str:
    """The dump of a run, made if it is missing; of ``usual-without-step1`` without that step."""
    folder = dumps / f"{program}-{mode}-{level}"
    if not folder.exists():
        whole, _, without = mode.partition("-without-")
        if without:
            shutil.copytree(dumps.parent / _run(dumps, python, program, whole, level), folder)
            shutil.rmtree(folder / without)
        else:
            _msprobe(python, folder, "--level", level, "--step", "all", program=(program, mode))
    return str(folder.relative_to(dumps.parent))


def _of_mode(dumps: Path, python: str, mode: str) -> str:
    folder = dumps / f"summary-{mode}"
    if not folder.exists():
        configuration = dumps / f"{mode}.json"
        content = {"task": "statistics", "level": "mix", "step": [], "statistics": {"summary_mode": mode}}
        configuration.write_text(json.dumps(content), encoding="utf-8")
        _msprobe(python, folder, "--config", str(configuration), program=("keywords", "by_place"))
    return str(folder.relative_to(dumps.parent))


def _msprobe(python: str, folder: Path, *options: str, program: tuple[str, str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [python, "-W", "ignore", "-m", "msprobe", "run", "-q", *options, "-o", str(folder)]
    subprocess.run([*command, str(_PROGRAMS), *program], env=environment, check=True, stdout=sys.stderr)
