"""Builds the device of `device.cpp` and registers it with torch, in this process."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("device.cpp")


def compiler() -> str | None:
    """The C++ compiler of the system; ``None`` if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


class Device:
    """The device under a name of its own; a process has one.

    Args:
        name: such as ``npu``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._library = ctypes.CDLL(str(_built()))
        self._library.reads_of_host.restype = ctypes.c_int64
        if torch._C._get_privateuse1_backend_name() != name:
            torch.utils.rename_privateuse1_backend(name)
            torch._register_device_module(name, _module(name))
            torch.utils.generate_methods_for_privateuse1_backend()

    def reads(self) -> int:
        """How often the host has read from it: copies and numbers, but not those of operators themselves."""
        return int(self._library.reads_of_host())

    @contextlib.contextmanager
    def wrong(self, operator: str, factor: float) -> Iterator[None]:
        """Inside, the one result of an operator, such as ``aten::gelu``, is `factor` times what it should be."""
        self._library.make_wrong(operator.encode(), ctypes.c_double(factor))
        try:
            yield
        finally:
            self._library.make_wrong(b"", ctypes.c_double(1))


def _built() -> Path:
    """The library, which is built once for a release of torch and a text of the source."""
    text = f"{torch.__version__} {torch.__file__}".encode() + SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir(), f"probe-accelerator-{os.getuid()}-{hashlib.sha256(text).hexdigest()[:16]}")
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} is somebody else's"
    library = folder / "device.so"
    if not library.exists():
        torch_folder = Path(torch.__file__).parent
        partial = library.with_suffix(f".{os.getpid()}")
        options = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(SOURCE), "-o", str(partial)]
        places = [f"-I{torch_folder}/include", f"-I{torch_folder}/include/torch/csrc/api/include"]
        subprocess.run(
            [str(compiler()), *options, *places, f"-L{torch_folder}/lib", "-ltorch_cpu", "-ltorch", "-lc10"], check=True
        )
        partial.replace(library)
    return library


class _Stream:
    """The one stream, and its events: what is queued has already run."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name not in ("wait_stream", "wait_event", "record", "wait", "synchronize"):
            raise AttributeError(name)
        return lambda *_: None

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream()


def _module(name: str) -> types.ModuleType:
    """The functions that torch asks the module of a device for; random numbers are drawn by the CPU's generator."""
    module = types.ModuleType(f"torch.{name}")
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 2, "current_device": 0, "_is_in_bad_fork": False,
    }  # fmt: skip
    for function, answer in answers.items():
        setattr(module, function, lambda answer=answer: answer)
    module.manual_seed = module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
    module.get_rng_state = lambda device=0: torch.get_rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, device=0: torch.set_rng_state(state)  # type: ignore[attr-defined]
    module.get_rng_state_all = lambda: [torch.get_rng_state()]  # type: ignore[attr-defined]
    module.set_rng_state_all = lambda states: torch.set_rng_state(states[0])  # type: ignore[attr-defined]
    module.get_device_name = lambda device=0: "memory of the host"  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
    module.Stream = module.Event = _Stream  # type: ignore[attr-defined]
    module.current_stream = lambda device=None: _Stream()  # type: ignore[attr-defined]
    module.stream = lambda stream: contextlib.nullcontext()  # type: ignore[attr-defined]
    module.set_device = lambda device: None  # type: ignore[attr-defined]
    module.synchronize = lambda device=None: None  # type: ignore[attr-defined]
    return module
