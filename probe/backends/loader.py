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
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, TypeVar

from probe.backends.protocol import FrameworkAdapter
from probe.common import log
from probe.common.dump.frameworks import FRAMEWORKS, Framework, is_installed
from probe.common.errors import FrameworkError, MissingDependency, MsprobeException, failure_text

_Result = TypeVar("_Result")


class _Backend(NamedTuple):
    module: str
    adapter: str
    framework: Framework

    @property
    def package(self) -> str:
        """The module that has to be installed. An MSAdapter need not be the one of the table."""
        return FRAMEWORKS[self.framework.base].module if self.framework.base else self.framework.module


_BACKENDS: dict[str, _Backend] = {
    "torch": _Backend("probe.backends.torch.adapter", "TorchAdapter", FRAMEWORKS["torch"]),
    "mindspore": _Backend("probe.backends.mindspore.adapter", "MindSporeAdapter", FRAMEWORKS["mindspore"]),
    "msadapter": _Backend("probe.backends.msadapter.adapter", "MSAdapterAdapter", FRAMEWORKS["msadapter"]),
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
        FrameworkError: it is installed, and the adapter cannot be made.
    """
    adapter = _loaded.get(name)
    if adapter is None:
        backend = _BACKENDS[name]
        module = _import(backend, backend.module)
        adapter = _loaded[name] = _guarded(backend, lambda: getattr(module, backend.adapter)())
        if adapter.absent:
            log.warning(f"{adapter.absent} Tested: {backend.framework.tested_text}.")
    return adapter


def serve(name: str) -> FrameworkAdapter:
    """The adapter for who asks for `name` now: `load` what `detect` finds."""
    return load(detect(name))


def room(name: str, file: str) -> ModuleType:
    """A module of a backend's folder that holds more than the adapter, such as callbacks of the framework's own kind.

    Raises:
        MissingDependency: its framework is not installed.
        FrameworkError: it is installed, and the module cannot be imported.
    """
    backend = _BACKENDS[name]
    return _import(backend, f"{backend.module.rpartition('.')[0]}.{file}")


def _import(backend: _Backend, module: str) -> ModuleType:
    imported = sys.modules.get(module)
    if imported is not None:
        return imported
    if not is_installed(backend.package):
        text = f"{backend.package} is not installed; run: pip install {backend.framework.install}."
        adapted = FRAMEWORKS["msadapter"].module
        if is_installed(adapted):
            # Installing the real one beside it would hide it.
            text = f"{backend.package} is not imported yet; {adapted} is: call its initialize_torch_proxy() first."
        raise MissingDependency(text)
    return _guarded(backend, lambda: importlib.import_module(module))


def _guarded(backend: _Backend, action: Callable[[], _Result]) -> _Result:
    try:
        return action()
    except MsprobeException:
        raise
    except Exception as error:
        # Without its cause, whose frames are no help to who reads it; doctor looks at the context.
        raise FrameworkError(unusable(backend.framework, error)) from None


def unusable(framework: Framework, error: BaseException) -> str:
    """The reason why the tool cannot work with `framework`: its version, the error, and the tested versions."""
    text = f"the tool cannot work with {framework.installed_text()}: {failure_text(error)}"
    return f"{text}. Tested: {framework.tested_text}. See: msprobe doctor."
