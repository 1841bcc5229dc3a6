"""Pairs of launch settings: the files of two runs, and what is true of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Pair(NamedTuple):
    """The files of two runs, by name, with their content."""

    name: str
    golden: Mapping[str, str]
    target: Mapping[str, str]
    meaning: str
    """The setting that differs and changes numbers; empty if none does."""


class Family(NamedTuple):
    """Files of a launch, and changes of one text in them with the meaning of what differs then."""

    name: str
    files: Mapping[str, str]
    changes: tuple[tuple[str, str, str], ...]

    def pairs(self) -> Iterator[Pair]:
        for old, new, meaning in self.changes:
            target = {name: text.replace(old, new) for name, text in self.files.items()}
            assert target != dict(self.files), f"{self.name}: {old!r} is in no file"
            yield Pair(f"{self.name}: {old.strip()} / {new.strip()}", self.files, target, meaning)
