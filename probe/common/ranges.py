"""Many whole numbers in a sentence: ``0-3, 6`` for the ranks, steps or layers 0, 1, 2, 3 and 6."""

from __future__ import annotations

from collections.abc import Sequence


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in ascending order as a text; three or more in a row are written by the first and the last.

    Example:
        >>> ranges([0, 1, 2, 3, 6]), ranges([4, 5])
        ('0-3, 6', '4, 5')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts)
