"""The places of the functions behind the name ``torch``.

With mindtorch, ``torch``, ``torch.nn``, ``torch.nn.functional``... are proxies: reading an attribute goes to the
module of the same name below ``mindtorch``, writing one stays on the proxy. What is to be seen by the layers of
``torch.nn`` as well has to be replaced on the module itself. Another distribution may put its modules under ``torch``
without any proxy.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def torch_module(path: str = "") -> Any:
    """The module behind ``torch`` or ``torch.<path>``."""
    root = "mindtorch" if _is_mindtorch() else "torch"
    return importlib.import_module(f"{root}.{path}" if path else root)


def _is_mindtorch() -> bool:
    if "mindtorch" in sys.modules:
        return True
    # A process that runs recorded calls has imported neither.
    return "torch" not in sys.modules and importlib.util.find_spec("mindtorch") is not None


def proxy_of(module: Any) -> Any | None:
    """The proxy that stands before `module` under a name of its own (``torch...``), or None."""
    name = module.__name__
    proxy = sys.modules.get(name.replace("mindtorch", "torch", 1))
    # Not any module of that name: the real torch may be imported beside mindtorch.
    target = getattr(getattr(proxy, "__loader__", None), "target_name", None)
    return proxy if target == name else None
