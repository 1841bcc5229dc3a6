"""Packages made for a test, which stand in front of what is installed."""

from __future__ import annotations

from pathlib import Path


def package(folder: Path, name: str, version: str, source: str, distribution: str = "") -> None:
    """A package below `folder` as an installer leaves it.

    Args:
        source: The text of its ``__init__.py``.
        distribution: The name by which pip knows it, if that is another one.
    """
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(source, encoding="utf-8")
    metadata = folder / f"{distribution or name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    text = f"Metadata-Version: 2.1\nName: {distribution or name}\nVersion: {version}\n"
    metadata.write_text(text, encoding="utf-8")
