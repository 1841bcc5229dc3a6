"""Names and columns of the files of the gradient probe, for who writes and who reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from probe.common.dump.naming import file_name
from probe.common.report.trends import CHECKSUM

NAME, SHAPE, ZEROS = "param_name", "shape", "=0"
STATISTICS = ("max", "min", "norm")
RANK = re.compile(r"rank(\d+)")
SUMMARY = re.compile(r"grad_summary_(\d+)\.csv")


def ops_of(level: str, bounds: Sequence[float]) -> tuple[str, ...]:
    """The columns of numbers at a level."""
    return (*intervals(bounds), ZEROS, *STATISTICS) if level == "L2" else STATISTICS


def has_checksum(level: str) -> bool:
    """True if a level has MD5."""
    return level == "L0"


def has_signs(level: str) -> bool:
    """True if a level has the signs of elements."""
    return level != "L0"


def intervals(bounds: Sequence[float]) -> tuple[str, ...]:
    """The names of the intervals that bounds make: ``(-inf, -1]``, ``(-1, 0]``, ..., ``(1, inf)``."""
    ends = [f"{bound}" for bound in bounds]
    return (*(f"({low}, {high}]" for low, high in zip(["-inf", *ends], ends)), f"({ends[-1]}, inf)")


def header(ops: Sequence[str], more: Sequence[str]) -> str:
    """The first line of a summary, as its documentation has it."""
    columns = (NAME, *(each for each in more if each == CHECKSUM), *ops, SHAPE)
    return ",".join(f'"{each}"' if "," in each else each for each in columns) + "\n"


def summary_file(step: int) -> str:
    """The name of the table of a step."""
    return f"grad_summary_{step}.csv"


def signs_folder(step: int) -> str:
    """The name of the folder of a step."""
    return f"step{step}"


def signs_file(parameter: str) -> str:
    """The name of the file with the signs of a parameter's gradient."""
    return file_name(parameter, ".npy")


def is_probed(path: str) -> bool:
    """True if the gradient probe has written to the folder `path`."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return any(RANK.fullmatch(name) and steps_in(os.path.join(path, name)) for name in names)


def steps_in(folder: str) -> tuple[int, ...]:
    """The steps whose tables are in the folder of a rank, ascending."""
    if not os.path.isdir(folder):
        return ()
    return tuple(sorted(int(match[1]) for name in os.listdir(folder) if (match := SUMMARY.fullmatch(name))))
