"""The template of a page, filled: its title, its data, and the scripts and styles, packed without their comments."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from probe.common.errors import MsprobeException
from probe.common.report.page.packing import as_json, packed_text, without_surrogates

_SHARED = os.path.dirname(__file__)
_TEMPLATE = "template.html"
_PLACE = re.compile(r"\{\{([\w./ ]+)\}\}")
# Types, lines of words, indentation. No text in the scripts holds `/**`.
_COMMENT = re.compile(r"/\*\*.*?\*/[ \t]*|^[ \t]*(?://[^\n]*)?\n|^[ \t]+", re.DOTALL | re.MULTILINE)
_SMALLEST = 9
"""The level of zlib that packs best."""


def data_elements(manifest: Mapping[str, Any], blocks: Mapping[str, bytes]) -> str:
    """The elements that hold the data of a page.

    Args:
        manifest: The data that the scripts read first.
        blocks: Packed data by the names that the scripts ask for.
    """
    text = as_json(manifest).decode("utf-8")
    # Nothing in it ends the element that it stands in.
    parts = [f'<script type="application/json" id="manifest">{text.replace("<", chr(92) + "u003c")}</script>']
    parts += [
        f'<script type="text/plain" id="{name}">{block.decode("ascii")}</script>' for name, block in blocks.items()
    ]
    return "\n".join(parts)


def page(viewer: str, title: str, data: str, sources: str = "", without: Collection[str] = ()) -> str:
    """The template of a viewer, each place in it filled once: ``packed`` and names of files with these files, packed.

    Args:
        viewer: The folder with ``template.html``, scripts and styles.
        title: The title of the page.
        data: Its data, as `data_elements` makes them.
        sources: The addresses that it may load beside itself.
        without: Files of the template that this page does not need.
    """
    given = {"title": escape(without_surrogates(title)), "sources": sources, "blocks": data}

    def filling(match: re.Match[str]) -> str:
        if match[1] in given:
            return given[match[1]]
        _, *names = match[1].split()
        return _packed(viewer, [name for name in names if name not in without])

    return _PLACE.sub(filling, viewer_file(viewer, _TEMPLATE))


def _packed(viewer: str, names: Sequence[str]) -> str:
    """Files of a viewer as the page unpacks them, without their comments."""
    code = _COMMENT.sub("", "".join(viewer_file(viewer, name) for name in names))
    return packed_text(code.encode("utf-8"), _SMALLEST).decode("ascii")


def viewer_file(viewer: str, name: str) -> str:
    """A file of a viewer, or one that all viewers share.

    Raises:
        MsprobeException: it is not there.
    """
    path = os.path.join(viewer, name)
    shared = os.path.join(_SHARED, name)
    if not os.path.exists(path) and os.path.exists(shared):
        path = shared
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return stream.read()
    except OSError as error:
        raise MsprobeException(f"{path} cannot be read ({error.strerror}); install msprobe again.") from None
