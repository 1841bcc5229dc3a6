"""What the site needs besides the pages: the files of the repository that they link to.

On a git host a page links to `../../CONTRIBUTING.md` or `../../probe/common/align/layers.yaml`. The site gets these
files below `repository/`, and its links lead there. mkdocs calls the functions by their names; see `mkdocs.yml`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDER = "repository/"
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages link to and that are outside of `docs`, and those that these link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for link in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            if path in seen or path.startswith("docs/") or not (ROOT / path).is_file():
                continue
            seen.add(path)
            files.append(File.generated(config, _in_site(path), abs_src_path=str(ROOT / path)))
            if path.endswith(".md"):
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Let links that leave `docs`, or come back into it, lead to where the site has the file."""
    uri: str = page.file.src_uri
    own = uri[len(FOLDER) :] if uri.startswith(FOLDER) else f"docs/{uri}"

    def moved(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(own), match[1]))
        return f"]({posixpath.relpath(_in_site(path), posixpath.dirname(uri) or '.')}"

    return _LINK.sub(moved, markdown)


def _in_site(path: str) -> str:
    return path[len("docs/") :] if path.startswith("docs/") else FOLDER + path
