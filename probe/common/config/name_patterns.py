"""Patterns with ``*`` and ``?`` for records, as ``--module`` and ``--api`` take them: paths, classes and functions."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache

from probe.common.dump import naming


def api_pattern(wanted: str) -> Callable[[str], bool]:
    """Predicate over record names: true of the calls of a function that fits `wanted`.

    Args:
        wanted: ``softmax``, ``Functional.*``, ``Functional.relu.0``, or a record or item as the tool prints it.

    Example:
        >>> api_pattern("soft*")("Functional.softmax.0.forward")
        True
    """
    pattern = record_in(wanted) or wanted

    def fits(name: str) -> bool:
        if fnmatchcase(name, pattern):
            return True
        parsed = naming.parse(name)
        if parsed is None or parsed.is_module:
            return False
        numbered = f"{parsed.base}.{parsed.number}"
        return any(fnmatchcase(text, pattern) for text in (parsed.base, numbered, naming.function_name(name)))

    return fits


def module_pattern(wanted: str) -> Callable[[str], bool]:
    """Predicate over the bases of module records: true of a module that fits `wanted`, and of modules inside it.

    Args:
        wanted: a path or its end (``layers.1``, ``*.mlp``), a class (``*Norm``), or a record as the tool prints it.

    Example:
        >>> module_pattern("layers.1")("Module.model.layers.1.mlp.MLP")
        True
    """
    record = naming.parse(record_in(wanted))
    # By its path, since gradients of parameters of modules inside of it stand at no call in the tree.
    patterns = (wanted,) if record is None else (record.base, record.base.rpartition(".")[0])

    @cache
    def fits(base: str) -> bool:
        root, _, _ = base.partition(".")
        paths = module_paths(base)
        texts = (base, class_name(base), *paths, *(f"{root}.{path}" for path in paths))
        if any(fnmatchcase(text, pattern) for pattern in patterns for text in texts):
            return True
        return any(_ends(path, wanted) for path in paths)

    return fits


def record_in(text: str) -> str:
    """The record that `text` is the name of, or the name of an item of; empty if it is neither."""
    parts = text.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if naming.parse(name) is not None), "")


def module_paths(base: str) -> list[str]:
    """The paths of a module and of those around it: ``layers``, ``layers.1`` of ``Module.layers.1.Block``."""
    parts = base.split(".")[1:-1]
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def class_name(base: str) -> str:
    """The class of a module: ``Block`` of ``Module.layers.1.Block``."""
    return base.rpartition(".")[2]


def _ends(path: str, wanted: str) -> bool:
    # A number by itself would be one of every list.
    return not wanted.isdecimal() and path.endswith(f".{wanted}")
