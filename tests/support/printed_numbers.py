"""Numbers in printed text, compared by what they mean: nothing depends on the processor on which a page was written.

A number of a measured effect, a relative error of 1.4e-02, says something about the program: another processor gives it
within a tenth. A number below `ROUNDING` may be the rounding of float32 itself, or a bound made of it, and that is a
property of the kernels that a processor has: such numbers agree if they are of one size, within `FACTOR`. Below
`NOISE`, a few unit roundoffs, a measured error can be any number and also none; these all agree.
"""

from __future__ import annotations

import re

ROUNDING = 1e-4
"""About a thousand unit roundoffs of float32: what some layers of a network make of one rounding each."""
NOISE = 1e-6
FACTOR = 10
TENTH = 1.1

_NUMBER = re.compile(r"(\d+(?:\.\d+)?e[-+]?\d+|\d+\.\d+|\d{3,})")
# The words for no error at all, as the error 0, which rounding makes of it on another processor.
_NONE = ("(identical inputs)", "(inputs have a relative error of 0.0)")


def prints(shown: str, output: str) -> bool:
    """Whether `output` is the text `shown`: spaces aside, with any lines at ``...``, and with numbers that agree."""
    pattern, numbers = "", []
    for line in _lines(shown):
        if line == "...":
            pattern += "(?:.*\n)*?"
            continue
        for place, part in enumerate(_NUMBER.split(line)):
            if place % 2:
                numbers.append(part)
            pattern += _NUMBER.pattern if place % 2 else re.escape(part)
        pattern += "\n"
    found = re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(output)))
    return found is not None and all(map(_agree, numbers, found.groups()))


def _lines(text: str) -> list[str]:
    lines = [" ".join(line.split()).replace(*_NONE) for line in text.splitlines()]
    return [line for line in lines if line]


def _agree(shown: str, number: str) -> bool:
    """Whole numbers of three digits and more are processes, times and sizes, and are not compared."""
    if shown.isdigit() and number.isdigit():
        return True
    small, large = sorted((max(abs(float(shown)), NOISE), max(abs(float(number)), NOISE)))
    return large <= small * (FACTOR if large < ROUNDING else TENTH)
