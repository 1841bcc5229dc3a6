"""Conventions of frameworks: settings, parameters and optimizers in the words of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from probe.common.numerics.error_bounds import is_number


class Convention(NamedTuple):
    """PyTorch's words for a setting that another framework has in another way."""

    name: str
    value: Optional[Callable[[Any], Any]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """A function of the other framework's value; ``None`` if it is the same."""


def _padding_of(mode: Any) -> Any:
    mode = str(mode).lower()
    return "same" if mode == "same" else 0 if mode == "valid" else None


def _dropped(kept: Any) -> Any:
    return 1.0 - kept if is_number(kept) else None


SETTINGS: Mapping[str, Convention] = {
    "axis": Convention("dim"),
    "epsilon": Convention("eps"),
    "group": Convention("groups"),
    "is_training": Convention("training"),
    "keep_dims": Convention("keepdim"),
    "keepdims": Convention("keepdim"),
    "pad": Convention("padding"),
    "strides": Convention("stride"),
    "keep_prob": Convention("p", _dropped),
    "pad_mode": Convention("padding", _padding_of),
    "vocab_size": Convention("num_embeddings"),
    "embedding_size": Convention("embedding_dim"),
    "learning_rate": Convention("lr"),
    "use_nesterov": Convention("nesterov"),
}
"""By the name in the other framework. The momentum of MindSpore's BatchNorm is recorded as that of PyTorch is."""
_OF_CLASS: Mapping[tuple[str, str], Convention] = {("LeakyReLU", "alpha"): Convention("negative_slope")}
PARAMETER_NAMES: Mapping[str, str] = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embedding_table": "weight",
}
"""PyTorch's names of parameters and buffers of normalisation layers and embeddings, by MindSpore's."""
OPTIMIZER_NAMES: Mapping[str, str] = {"AdamWeightDecay": "AdamW", "Momentum": "SGD"}
"""PyTorch's names of the classes of optimizers."""
WITHOUT_CORRECTION = frozenset((("mindspore", "Adam"), ("mindspore", "AdamWeightDecay")))
"""Optimizers that add epsilon to a root without bias correction, by framework: the same number is another epsilon."""
_AS_TANH = {True: "tanh", False: "none"}
_SIZES = ("stride", "dilation", "padding", "kernel_size")


def setting_name(name: str) -> str:
    """PyTorch's name of an argument or attribute that any framework may call `name`, if it has the same values."""
    known = SETTINGS.get(name)
    return name if known is None or known.value is not None else known.name


def as_torch(given: Mapping[str, Any], class_name: str = "") -> dict[str, Any]:
    """Settings in the words of PyTorch; what is given in these words wins."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        convention = _OF_CLASS.get((class_name, name)) or SETTINGS.get(name) or Convention(name)
        if convention.name != name and given.get(convention.name) is not None and name != "pad_mode":
            continue
        said = value if convention.value is None else convention.value(value)
        if said is not None:
            found[convention.name] = said
    if isinstance(found.get("approximate"), bool):
        found["approximate"] = _AS_TANH[found["approximate"]]
    for name in _SIZES:
        if isinstance(found.get(name), (list, tuple)) and found[name]:
            sizes = list(found[name])
            # A primitive names all four dimensions, the first two of which have none of it.
            sizes = sizes[2:] if len(sizes) == 4 and sizes[:2] == [1, 1] and name != "padding" else sizes
            found[name] = sizes[0] if all(each == sizes[0] for each in sizes) else sizes
    return found
