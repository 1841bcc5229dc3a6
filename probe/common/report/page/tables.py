"""Pages of tables: one file that runs no script and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from probe.common.terminal_text import printable

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
