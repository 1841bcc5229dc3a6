"""The template of a page, filled: its title, its data, and the scripts and styles, packed without their comments."""

from __future__ import annotations

import binascii
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from probe.common.errors import MsprobeException
from probe.common.harmless_text import printable

_encode = msgspec.json.Encoder().encode
# No name, no time, no system: the same data is the same bytes wherever it is packed.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_LEVEL = 6
"""zlib's own default, between speed and size."""


def packed(data: Any) -> bytes:
    """Values as base64 of gzip of JSON.

    Example:
        >>> packed([1])[:12]
        b'H4sIAAAAAAAA'
    """
    return packed_text(as_json(data))


def packed_text(text: bytes, level: int = _LEVEL) -> bytes:
    """Bytes as base64 of gzip, which are the same wherever that is done."""
    deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    end = struct.pack("<LL", zlib.crc32(text), len(text) & 0xFFFFFFFF)
    return binascii.b2a_base64(_GZIP_HEADER + body + end, newline=False)


def as_json(value: Any) -> bytes:
    """Values as JSON; half a character, which a name may hold that came from broken bytes, is shown as unknown."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(without_surrogates(value))


def without_surrogates(value: Any) -> Any:
    """A value with texts that can be written."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {without_surrogates(key): without_surrogates(each) for key, each in value.items()}
    return [without_surrogates(each) for each in value] if isinstance(value, (list, tuple)) else value


# --- filling


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


# --- tables


_STYLE = """:root{color-scheme:light dark;--text:#1c2126;--soft:#5d6872;--back:#fff;--panel:#f4f6f8;--line:#d9dfe4;
--good:#009e73;--bad:#c9371c;--info:#0072b2;--warn:#b87700}
@media screen and (prefers-color-scheme:dark){:root{--text:#e4e9ed;--soft:#9aa7b2;--back:#15191d;--panel:#1e2429;
--line:#343d45;--good:#33c79b;--bad:#ff7a5c;--info:#4fb0ea;--warn:#efb340}}
body{margin:1.5em;font:13px/1.4 system-ui,sans-serif;color:var(--text);background:var(--back)}
h1{font-size:17px;border-left:4px solid var(--good);padding-left:10px}h1.found{border-color:var(--bad)}
h2{font-size:14px;margin:1.5em 0 .4em}p{margin:.2em 0;color:var(--soft)}
table{border-collapse:collapse}td,th{border:1px solid var(--line);padding:1px 8px;text-align:left;vertical-align:top}
.error{color:var(--bad)}.warning{color:var(--warn)}.pass{color:var(--good)}
"""
"""The colours are those of the page kit, light and dark."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def table_page(title: str, heading: str, parts: Iterable[str], is_found: bool, style: str = "") -> str:
    """A page of one file, which runs no script and loads nothing.

    Args:
        title: The text of the window.
        heading: The answer, as text.
        parts: The HTML below the heading.
        is_found: True marks the heading as a finding.
        style: Further rules.
    """
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(printable(title))}</title><style>{_STYLE}{style}</style>"
    )
    answer = f"<h1{' class=found' if is_found else ''}>{escape(printable(heading))}</h1>"
    body = "".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{answer}{body}</body></html>\n'
