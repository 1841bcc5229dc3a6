"""Changes of single bytes, and readers that answer or raise one of our errors."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from probe.common.errors import MsprobeException

CHANGES = st.lists(st.tuples(st.integers(0, 10**4), st.binary(max_size=4), st.integers(0, 6)), max_size=4)


def changed(content: bytes, changes: list[tuple[int, bytes, int]]) -> bytes:
    """`content` in which some bytes are replaced, added or left out."""
    for place, put, left_out in changes:
        place %= len(content) + 1
        content = content[:place] + put + content[place + left_out :]
    return content


def answered(name: str, content: bytes, read: Callable[[str], Any], **beside: bytes) -> Any:
    """What `read` makes of the file, ``None`` after one of our errors; any other fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        for other, text in beside.items():
            Path(folder, f"{other}.json").write_bytes(text)
        path = os.path.join(folder, name)
        Path(path).write_bytes(content)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                return read(path)
        except MsprobeException as error:
            assert name in str(error) and len(str(error)) < 2000
            return None
