"""The page: one HTML file that needs nothing else, or a folder where it would be too large for that."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.common import files
from probe.common.report.page import filling
from probe.graph import page

_VIEWER = os.path.join(os.path.dirname(page.__file__), "viewer")
# Files that the page of a folder may load: those next to it, from a disk or from a server.
_BESIDE = " 'self' file:"

_OF_SEVERAL = ("views/matrix.js", "views/several.js")
"""The table of ranks and steps, which also lists what has no partner, and the columns of several targets."""
MEGABYTE = 1_000_000
_BLOCKS_IN_FILE = 16 * MEGABYTE
"""The part of a page in a folder that is in one file: a browser reads it at once when any of it is wanted."""


@dataclass(frozen=True)
class PageData:
    """A page without its viewer."""

    manifest: Mapping[str, Any]
    blocks: Mapping[str, bytes]
    """Base64, by their names in the order in which they are needed."""

    @property
    def size(self) -> int:
        """The number of bytes that its blocks have."""
        return sum(map(len, self.blocks.values()))


def html(data: PageData) -> str:
    """The page as one file."""
    elements = filling.data_elements(data.manifest, data.blocks)
    return filling.page(_VIEWER, str(data.manifest["title"]), elements, without=_not_needed(data.manifest))


def _not_needed(manifest: Mapping[str, Any]) -> Sequence[str]:
    """The scripts of views that a page does not have: those of several comparisons where there is one."""
    return () if len(manifest["comparisons"]) > 1 or manifest["unpaired"] else _OF_SEVERAL


def write_page(data: PageData, path: str, max_megabytes: float) -> str:
    """Write a page to `path`.html, or where that would be larger than it may be, to the folder `path`.

    Returns:
        The file to open.

    Raises:
        OSError: it cannot be written.
    """
    if data.size <= max_megabytes * MEGABYTE:
        _write(f"{path}.html", html(data).encode("utf-8"))
        return f"{path}.html"
    files.make_folder(path)
    groups = list(_grouped(data.blocks))
    for number, group in enumerate(groups):
        lines = [b'probeBlock("%s", "%s");\n' % (name.encode("ascii"), data.blocks[name]) for name in group]
        _write(os.path.join(path, f"block{number}.js"), b"".join(lines))
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    manifest = {**data.manifest, "files": len(groups), "blocks": group_of}
    # Last, so that a page that is there is whole.
    index = os.path.join(path, "index.html")
    elements = filling.data_elements(manifest, {})
    content = filling.page(_VIEWER, str(manifest["title"]), elements, _BESIDE, without=_not_needed(manifest))
    _write(index, content.encode("utf-8"))
    return index


def _grouped(blocks: Mapping[str, bytes]) -> Iterator[list[str]]:
    """The names of the blocks that stand in one file."""
    group: list[str] = []
    size = 0
    for name, block in blocks.items():
        if group and size + len(block) > _BLOCKS_IN_FILE:
            yield group
            group, size = [], 0
        group.append(name)
        size += len(block)
    yield group


def _write(path: str, content: bytes) -> None:
    with files.replacing(path) as stream:
        stream.write(content)


def viewer_file(name: str) -> str:
    """A file of the viewer, or one that all pages share.

    Raises:
        MsprobeException: it is not there.
    """
    return filling.viewer_file(_VIEWER, name)
