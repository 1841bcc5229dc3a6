"""One key of a configuration file changed, and everything else in it left as it is."""

from __future__ import annotations

import re

from probe.common.files import replacing


def switched_off(text: str, key: str) -> str:
    """The text of a JSON file in which ``"key": true`` became false; the same text where it is not true.

    Example:
        >>> switched_off('{"a": 1, "dynamic_on" : true}', "dynamic_on")
        '{"a": 1, "dynamic_on" : false}'
    """
    return re.sub(rf'("{re.escape(key)}"\s*:\s*)true\b', r"\1false", text, count=1)


def switch_off(path: str, key: str) -> None:
    """Write ``false`` for a key of the file, which is replaced as a whole.

    Raises:
        OSError: it cannot be read or written.
    """
    with open(path, encoding="utf-8") as stream:
        before = stream.read()
    after = switched_off(before, key)
    if after != before:
        with replacing(path) as target:
            target.write(after.encode())
