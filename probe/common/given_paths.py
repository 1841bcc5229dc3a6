"""Paths in a temporary folder as the user gave them: ``run_a.zip/step0`` for ``/tmp/msprobe_x1/run_a/step0``.

The folder itself says what it stands for, in a file of it, so that a process that was started for a part of the work
shows the same path, and two runs of a command give the same text.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from probe.common import files

PREFIX = "msprobe_"
"""The beginning of the name of a temporary folder."""
_GIVEN = "given_path"
"""The file in it with the path that its only folder stands for."""


def remember(folder: str, given: str) -> None:
    """Let the folders in the temporary folder `folder` be shown as the path `given`."""
    with files.open_for_writing(os.path.join(folder, _GIVEN)) as stream:
        stream.write(os.fsencode(given))


def as_given(text: str) -> str:
    """A path, or a text with paths, in which none is below a temporary folder of `remember`."""
    if PREFIX not in text:
        return text
    # The log is imported in every process, and hardly any line comes here.
    import tempfile

    return _below(tempfile.gettempdir()).sub(lambda found: _given(found[1]) or found[0], text)


def values_as_given(value: Any) -> Any:
    """Content of JSON, in whose texts no path is below a temporary folder; see `as_given`."""
    if isinstance(value, str):
        return as_given(value)
    if isinstance(value, dict):
        return {key: values_as_given(each) for key, each in value.items()}
    return [values_as_given(each) for each in value] if isinstance(value, list) else value


@lru_cache(maxsize=4)
def _below(temporary: str) -> re.Pattern[str]:
    return re.compile(rf"({re.escape(os.path.join(temporary, PREFIX))}\w+)/[\w.-]+")


@lru_cache(maxsize=64)
def _given(folder: str) -> str:
    """The path that the content of a folder stands for; empty of one that is none of `remember`."""
    try:
        with files.open_for_reading(os.path.join(folder, _GIVEN)) as stream:
            return os.fsdecode(stream.read())
    except OSError:
        return ""
