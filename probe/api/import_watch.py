"""A callback for when a program has imported a module, which we do not import ourselves."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch(importlib.abc.MetaPathFinder):
    """Calls `imported` with the name of each of `names` when it has been imported, until `remove`.

    Args:
        failed: Called with a name and the error whose import ended with one, which the program gets as well.
    """

    def __init__(
        self,
        names: Sequence[str],
        imported: Callable[[str], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._names = set(names)
        self._imported = imported
        self._failed = failed
        self._searching: set[str] = set()
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._names or name in self._searching:
            return None
        self._searching.add(name)
        try:
            # All finders are asked, us too: the answer is theirs.
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported, self._failed)
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """Loads as `loader` does, which the module has for its loader in the end."""

    def __init__(
        self,
        loader: importlib.abc.Loader,
        imported: Callable[[str], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._loader = loader
        self._imported = imported
        self._failed = failed

    def __getattr__(self, name: str) -> Any:
        # A program may look at the specification and not import the module.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        try:
            self._loader.exec_module(module)
        except Exception as error:
            self._failed(module.__name__, error)
            raise
        self._imported(module.__name__)
