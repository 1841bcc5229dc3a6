"""Versions of the packages that decide what a training computes, found without importing anything.

`importlib.metadata` takes 40 ms to import and reads a file for each distribution; the names of the folders say it too.
"""

from __future__ import annotations

import os
import re
import sys

PACKAGES = (
    "torch", "torch_npu", "mindspore", "mindnlp", "numpy", "transformers", "accelerate", "deepspeed", "megatron_core",
    "mindspeed", "peft", "datasets", "triton", "flash_attn", "transformer_engine", "apex", "lightning", "safetensors",
    "vllm",
)  # fmt: skip
"""By the names of their distributions, ``-`` written as ``_``."""
_FOLDER = re.compile(rf"({'|'.join(PACKAGES)})-([^-]+)\.(?:dist|egg)-info\Z", re.IGNORECASE)


def versions() -> dict[str, str]:
    """The version of each of `PACKAGES` that is installed; of one that is there twice the one that is imported."""
    found: dict[str, str] = {}
    for path in sys.path:
        try:
            names = os.listdir(path or os.curdir)
        except OSError:
            continue
        for name in names:
            match = _FOLDER.match(name) if name.endswith("-info") else None
            if match:
                found.setdefault(match[1].lower(), match[2])
    for name in PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return dict(sorted(found.items()))


def all_versions() -> dict[str, str]:
    """The version of every distribution that is installed, by its name; the first on the path, which is imported."""
    found: dict[str, tuple[str, str]] = {}
    for path in sys.path:
        try:
            folders = os.listdir(path or os.curdir)
        except OSError:
            continue
        for folder in folders:
            stem, dot, kind = folder.rpartition(".")
            name, _, version = stem.partition("-")
            if dot and kind in ("dist-info", "egg-info") and version:
                own = _written_name(os.path.join(path, folder), name)
                # One name in different spellings is one distribution.
                found.setdefault(re.sub(r"[-_.]+", "-", own).lower(), (own, version.split("-py")[0]))
    return dict(found[key] for key in sorted(found))


def _written_name(folder: str, otherwise: str) -> str:
    """The name of a distribution as its author spells it."""
    for name in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
                match = re.search(r"^Name: *([\w.-]+)", stream.read(_HEAD), re.MULTILINE)
        except OSError:
            continue
        if match:
            return match[1]
    return otherwise


_HEAD = 500
"""Characters of a file of metadata, which begins with version and name."""
