"""Writers of graphs: each takes one comparison after the other, and makes its files at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from probe.common.errors import MsprobeException
from probe.graph.options import HTML, JSON, MODEL_EXPLORER, GraphOptions
from probe.graph.output.json_file import JsonWriter
from probe.graph.output.model_explorer import ModelExplorerWriter
from probe.graph.output.page import PageData, write_page
from probe.graph.output.shown import ShownComparison
from probe.graph.output.stamps import in_words
from probe.graph.page.blocks import Blocks
from probe.graph.page.manifest import Manifest


class Writer(Protocol):
    """Makes files of comparisons."""

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        """Take the next one; `comparison` is what the manifest says of it."""

    def finish(self) -> list[str]:
        """Write the files; returns their paths."""


MakeWriter = Callable[[str, GraphOptions, datetime], Writer]
"""Makes a writer of a folder, the options and the time in the names of its files."""


class PageWriter:
    """Puts comparisons on a page; without a path no file is written."""

    def __init__(self, manifest: Manifest, path: str = "", max_megabytes: float = 0) -> None:
        self._path, self._manifest, self._max_megabytes = path, manifest, max_megabytes
        self._blocks = Blocks()
        self._comparisons: list[dict[str, Any]] = []

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        self._blocks.add(shown.columns)
        self._comparisons.append(comparison)

    def finish(self) -> list[str]:
        return [write_page(self.page(), self._path, self._max_megabytes)] if self._path else []

    def page(self) -> PageData:
        """The page so far; it can be asked for once."""
        return PageData(self._manifest.as_json(self._comparisons), self._blocks.finished())


def stem_of(folder: str, when: datetime) -> str:
    """The beginning of the names of all files but the database."""
    return os.path.join(folder, f"graph_{in_words(when)}")


def writers_of(
    formats: Sequence[str],
    folder: str,
    when: datetime,
    manifest: Manifest,
    options: GraphOptions,
    max_megabytes: float,
    others: Mapping[str, MakeWriter],
) -> list[Writer]:
    """The writers of these formats, whose files are named after `when`; the page comes last.

    Args:
        others: what makes the writers of formats that are not ours, by format.

    Raises:
        MsprobeException: nothing writes one of the formats.
    """
    unknown = [name for name in formats if name not in (HTML, JSON, MODEL_EXPLORER, *others)]
    if unknown:
        raise MsprobeException(f"{unknown[0]!r} is a format that nothing here writes.")
    stem = stem_of(folder, when)
    found = [make(folder, options, when) for make in others.values()]
    if MODEL_EXPLORER in formats:
        found.append(ModelExplorerWriter(stem, options.rules))
    if JSON in formats:
        found.append(JsonWriter(stem, options.rules, manifest.unpaired))
    if HTML in formats:
        found.append(PageWriter(manifest, stem, max_megabytes))
    return found
