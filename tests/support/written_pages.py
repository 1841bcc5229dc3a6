"""Pages as a browser reads them: blocks found, unpacked, and indices followed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r'<script type="text/plain" id="([^"]*)">([^<]*)</script>')
_BESIDE = re.compile(r'probeBlock\("([^"]*)", "([^"]*)"\);\n')
_MANIFEST = re.compile(r'<script type="application/json" id="manifest">(.*?)</script>', re.DOTALL)


@dataclass
class WrittenPage:
    """A page's file, or the index of its folder."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def packed(self) -> dict[str, str]:
        found = dict(_BLOCK.findall(self.text))
        for name, file in self.manifest["blocks"].items():
            beside = dict(_BESIDE.findall((self.path.parent / f"block{file}.js").read_text(encoding="ascii")))
            found[name] = beside[name]
        return found

    @cached_property
    def manifest(self) -> dict[str, Any]:
        (text,) = _MANIFEST.findall(self.text)
        found: dict[str, Any] = json.loads(text)
        return found

    @cached_property
    def _blocks(self) -> dict[str, Any]:
        return {}

    def block(self, name: str) -> Any:
        if name not in self._blocks:
            self._blocks[name] = json.loads(gzip.decompress(base64.b64decode(self.packed[name])))
        return self._blocks[name]

    @cached_property
    def names(self) -> list[str]:
        found: list[str] = self.block("names")
        return found

    def column(self, name: str, comparison: int = 0) -> Any:
        return self.block(f"c{comparison}")[name]

    def rows(self, comparison: int = 0) -> list[tuple[str | None, str | None]]:
        """The names of target and golden run of each row."""
        targets, goldens = self.column("name", comparison), self.column("golden", comparison)
        goldens = goldens or [-1] * len(targets)
        return [tuple(self.names[name] if name >= 0 else None for name in pair) for pair in zip(targets, goldens)]

    def details(self, comparison: int = 0) -> list[dict[str, Any]]:
        """What is said of each row, items with their tensors in the place of indices."""
        tensors = self.tensors(comparison)
        found = []
        for part in range(-(-self.manifest["comparisons"][comparison]["rows"] // 512)):
            for entry in self.block(f"c{comparison}d{part}"):
                detail = dict(entry or {})
                detail["i"] = [
                    (
                        self.names[name],
                        tensors[target] if target >= 0 else None,
                        tensors[golden] if golden >= 0 else None,
                        *others,
                    )
                    for name, target, golden, *others in detail.get("i", [])
                ]
                found.append(detail)
        return found

    def tensors(self, comparison: int = 0) -> list[dict[str, Any]]:
        found = []
        for part in range(-(-self.manifest["comparisons"][comparison]["tensors"] // 8192)):
            columns = self.block(f"c{comparison}t{part}")
            for place, dtype in enumerate(columns["dtype"]):
                tensor = {key: column[place] for key, column in columns.items() if column != 0}
                found.append({**tensor, "dtype": self.names[dtype], "shape": self.names[columns["shape"][place]]})
        return found

    def stack(self, row: int, comparison: int = 0, of_golden: bool = False) -> list[str]:
        place = (self.column("golden_stack", comparison) or self.column("stack", comparison))[row]
        place = place if of_golden else self.column("stack", comparison)[row]
        frames = self.block("frames")
        return [frames[line] for line in self.block("stacks")[place]] if place >= 0 else []


def page_in(folder: Path) -> WrittenPage:
    """The one page of a folder."""
    (path,) = folder.glob("*.html")
    return WrittenPage(path)
