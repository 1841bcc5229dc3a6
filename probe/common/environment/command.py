"""The command line of this process without secrets, and its arguments by name for the comparison of two runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from probe.common.environment.secrets import WITHHELD, clean_argument, has_form_of_secret, is_secret_argument

PROGRAM = "program"
"""The name of what runs: the script, or ``-m`` and the module."""
_KERNEL = "ipykernel_launcher"
"""Runs a notebook; its arguments are a file of the connection, another one in each run."""
_MOST_WORDS = 200
"""Words of a command that are kept. No training is known that has as many arguments; the number is a guess."""
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
_ASSIGNED = re.compile(r"(\+{0,2}[A-Za-z_][\w./-]*)=(.*)\Z", re.DOTALL)
"""``trainer.lr=0.1``, as Hydra and OmegaConf take it."""


def command() -> list[str]:
    """The command line of this process as words: ``python train.py --lr 0.1``, ``python -m package.train --lr 0.1``.

    Of a path only the last part is kept, and the value of an argument that may be a secret or name a machine is left
    out. Empty if the program keeps no words there.
    """
    try:
        first, *words = map(str, sys.argv)
    except (ValueError, TypeError):
        return []  # a program may do what it likes with its arguments
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = "" if spec is None else re.sub(r"\.__main__$", "", spec.name)
    program = ["-m", module] if module else [os.path.basename(first) if os.path.isabs(first) else first]
    if program[-1].startswith(_KERNEL):
        words = []
    return ["python", *program, *_clean(words[:_MOST_WORDS])]


def _clean(words: Sequence[str]) -> Iterator[str]:
    is_secret = False
    for word in words:
        # All values of a secret option are secrets: --tokens A B. One in base64 ends with "=" and is no assignment.
        option = _OPTION.match(word) or (None if is_secret else _ASSIGNED.match(word))
        if option is None:
            yield WITHHELD if is_secret else clean_argument(word)
            continue
        name, value = option.groups()
        is_secret = is_secret_argument(name)
        if has_form_of_secret(name):
            yield WITHHELD
        elif value is None:
            yield name
        else:
            yield f"{name}={WITHHELD if is_secret else clean_argument(value)}"
        is_secret = is_secret and value is None


def named(words: Sequence[str]) -> dict[str, Any]:
    """The words of a command by name: `PROGRAM`, ``--lr``, ``trainer.lr``, and ``argument 1`` of those without a name.

    The value of an option without one is ``True``; of several it is their list.
    """
    rest = list(words[1:])
    program, rest = (" ".join(rest[:2]), rest[2:]) if rest[:1] == ["-m"] else (" ".join(rest[:1]), rest[1:])
    found: dict[str, Any] = {PROGRAM: program}
    last, position = "", 0
    for word in rest:
        option = _OPTION.match(word) or _ASSIGNED.match(word)
        if option is not None:
            name, value = option.groups()
            last = name if value is None else ""
            _add(found, name, True if value is None else value)
        elif last:
            _add(found, last, word)
        else:
            position += 1
            _add(found, f"argument {position}", word)
    return found


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    before = found.get(name, True)
    if before is True:
        found[name] = value
    elif value is not True:
        found[name] = [*(before if isinstance(before, list) else [before]), value]
