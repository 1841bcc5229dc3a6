"""Finding the adapter of a framework.

A framework is heavy, may not be installed, and may be installed and broken; none of that may hurt someone who uses
another one. So an adapter's module, the only place that imports its framework, is imported when the first call needs
it, and what goes wrong then is said in words that name what to install.

Which adapter serves is decided by each call that needs one and not when the package is imported, since a script may
import its framework later. Only what is imported already is looked at: a program whose tensors are those of a
framework has imported it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import NamedTuple

from probe.backends.protocol import FrameworkAdapter
from probe.common import log
from probe.common.errors import MissingDependency


class _Backend(NamedTuple):
    module: str
    adapter: str
    package: str
    install: str
    """What pip is to be given. Not an extra of ours: on the package index that name belongs to somebody else."""


_BACKENDS: dict[str, _Backend] = {
    "torch": _Backend("probe.backends.torch.adapter", "TorchAdapter", "torch", "torch"),
    "mindspore": _Backend(
        "probe.backends.mindspore.adapter", "MindSporeAdapter", "mindspore", "'mindspore==2.10.0' 'numpy<2'"
    ),
    "msadapter": _Backend(
        "probe.backends.msadapter.adapter", "MSAdapterAdapter", "mindspore", "'mindspore==2.7.0' 'numpy<2' ml_dtypes"
    ),
}
_loaded: dict[str, FrameworkAdapter] = {}


def detect(name: str) -> str:
    """The backend that serves who asks for `name` now.

    That is ``msadapter`` where torch is an MSAdapter, under the name `torch` or its own, whose tensors are MindSpore's:
    nothing else can serve such a program, however the user imported us. A real torch beside MindSpore changes nothing.
    """
    base = getattr(sys.modules.get("mindspore"), "Tensor", None)
    for torch in ("torch", "mindtorch"):
        tensor = getattr(sys.modules.get(torch), "Tensor", None)
        if isinstance(tensor, type) and isinstance(base, type) and issubclass(tensor, base):
            return "msadapter"
    return name


def load(name: str) -> FrameworkAdapter:
    """The adapter of a backend, one per process.

    Raises:
        MissingDependency: its framework is not installed.
    """
    adapter = _loaded.get(name)
    if adapter is None:
        backend = _BACKENDS[name]
        adapter = _loaded[name] = getattr(_import(backend, backend.module), backend.adapter)()
        if adapter.absent:
            log.warning(adapter.absent)
    return adapter


def serve(name: str) -> FrameworkAdapter:
    """The adapter for who asks for `name` now: `load` what `detect` finds."""
    return load(detect(name))


def room(name: str, file: str) -> ModuleType:
    """A module of a backend's folder that holds more than the adapter, such as callbacks of the framework's own kind.

    Raises:
        MissingDependency: its framework is not installed.
    """
    backend = _BACKENDS[name]
    return _import(backend, f"{backend.module.rpartition('.')[0]}.{file}")


def _import(backend: _Backend, module: str) -> ModuleType:
    found = importlib.util.find_spec(backend.package)
    # Without an origin it is no package, but any folder of that name in which a script was started.
    if found is None or found.origin is None:
        text = f"{backend.package} is not installed; run: pip install {backend.install}."
        if importlib.util.find_spec("mindtorch") is not None:
            # Installing the real one beside it would hide it.
            text = f"{backend.package} is not imported yet; mindtorch is installed: make torch mean it first."
        raise MissingDependency(text)
    return importlib.import_module(module)
