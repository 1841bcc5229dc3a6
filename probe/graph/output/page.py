"""The page: one HTML file that needs nothing else, or a folder where it would be too large for that."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from probe.common import files
from probe.common.errors import MsprobeException
from probe.graph import page
from probe.graph.page.blocks import packed_text
from probe.graph.page.texts import as_json, without_surrogates

_VIEWER = os.path.join(os.path.dirname(page.__file__), "viewer")
_TEMPLATE = "template.html"
_PLACE = re.compile(r"\{\{([\w. ]+)\}\}")
# Types, lines of words, indentation. No text in the scripts holds `/**`.
_COMMENT = re.compile(r"/\*\*.*?\*/[ \t]*|^[ \t]*(?://[^\n]*)?\n|^[ \t]+", re.DOTALL | re.MULTILINE)
_SMALLEST = 9
# What the page of a folder may load: the files beside it, from a disk or from a server.
_BESIDE = " 'self' file:"

MEGABYTE = 1_000_000
_BLOCKS_IN_FILE = 16 * MEGABYTE
"""How much of a page in a folder stands in one file: what a browser reads at once when any of it is wanted."""


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
    parts = [_manifest(data.manifest)]
    parts += [
        f'<script type="text/plain" id="{name}">{block.decode("ascii")}</script>' for name, block in data.blocks.items()
    ]
    return _page(str(data.manifest["title"]), "\n".join(parts))


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
    _write(index, _page(str(manifest["title"]), _manifest(manifest), _BESIDE).encode("utf-8"))
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


def _manifest(manifest: Mapping[str, Any]) -> str:
    text = as_json(manifest).decode("utf-8")
    # Nothing in it ends the element that it stands in.
    return f'<script type="application/json" id="manifest">{text.replace("<", chr(92) + "u003c")}</script>'


def _page(title: str, data: str, sources: str = "") -> str:
    """The template, each place in it filled once: `packed` and names of files with these files, packed."""
    given = {"title": escape(without_surrogates(title)), "sources": sources, "blocks": data}

    def filling(match: re.Match[str]) -> str:
        if match[1] in given:
            return given[match[1]]
        _, *names = match[1].split()
        return _packed(names)

    return _PLACE.sub(filling, viewer_file(_TEMPLATE))


def _packed(names: Sequence[str]) -> str:
    """Files of the viewer as the page unpacks them, without their comments."""
    code = _COMMENT.sub("", "".join(map(viewer_file, names)))
    return packed_text(code.encode("utf-8"), _SMALLEST).decode("ascii")


def viewer_file(name: str) -> str:
    """A file of the viewer.

    Raises:
        MsprobeException: it is not there.
    """
    path = os.path.join(_VIEWER, name)
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return stream.read()
    except OSError as error:
        raise MsprobeException(f"{path} cannot be read ({error.strerror}); install msprobe again.") from None
