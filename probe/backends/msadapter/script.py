"""A stand-alone script in the words of torch's API over MindSpore: `probe.backends.protocol.ScriptWords`.

The tensors, the exact evaluation and the gradients are MindSpore's, the call is spelled with mindtorch's modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.backends.mindspore import statistics
from probe.backends.mindspore.execution import script as of_mindspore
from probe.backends.mindspore.execution.script import SUFFIX, content, inline, loaded
from probe.backends.msadapter import functions
from probe.backends.msadapter.hooks import torch_module
from probe.backends.protocol import ScriptParts

__all__ = ["SUFFIX", "content", "inline", "loaded", "plain", "script", "spelled"]


def spelled(base: str, attributes: Mapping[str, Any] | None, called: str = "") -> str | None:
    """``mindtorch.nn.functional.silu``, or for a method ``mindtorch.Tensor.add_``."""
    found = functions.place(base, called)
    if found is None:
        return None
    owner, attribute = found
    root: str = torch_module().__name__
    if isinstance(owner, type):
        return f"{root}.Tensor.{attribute}"
    # A proxy has the name under which torch is imported, and a script has no proxies.
    package, dot, rest = owner.__name__.partition(".")
    return f"{root if package == 'torch' else package}{dot}{rest}.{attribute}"


def plain(entry: Mapping[str, Any]) -> str:
    """The result of `functions.plain_value` for an entry; a dtype goes through ``kind``.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    kind, root = entry.get("type"), torch_module().__name__
    value = functions.plain_value(entry, "cpu")
    if kind in ("torch.dtype", "mindspore.dtype"):
        return f"kind(mindspore.{statistics.plain_name(value)})"
    return f'{root}.device("cpu")' if kind == "torch.device" else f"{root}.{str(value).rpartition('torch.')[2]}"


def script(parts: ScriptParts) -> str:
    """The script; see `probe.backends.mindspore.execution.script.script`.

    Raises:
        UnknownValue: it was recorded under autocast.
    """
    return of_mindspore.script(parts, torch_module().__name__)
