"""Names of the target rewritten into those of the golden side.

The user's mapping files, and the conventions of frameworks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, Optional

import msgspec

from probe.common import files, log
from probe.common.data_files import load_yaml
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import MODULE_ROOTS, is_module, parse
from probe.common.dump.reading.records import Item
from probe.common.errors import MsprobeException
from probe.common.harmless_text import show
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


# --- mapping files


# Texts that YAML reads without quotes; N/A is one.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./]*\Z")
_NO_TEXTS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))

# Keys of an entry of an API mapping, by what they number; the second spelling is what msProbe reads in fact.
_POSITIONS = {
    "input": ("args",),
    "output": ("outputs", "output"),
    "parameters": ("parameters",),
    "parameters_grad": ("parameters_grad",),
}


class ApiEntry(msgspec.Struct, frozen=True):
    """One API of the target, its counterpart, and which of its items correspond."""

    target: str
    golden: str
    positions: dict[str, dict[str, str]]
    """The golden position or name for each one of the target, by state."""


def load_mapping(path: str, expected: str) -> dict[Any, Any]:
    """The keys and values of a YAML file, which may be empty; `expected` says in words what they should be.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise MsprobeException(f"{path}: expected {expected}, found a {type(content).__name__}.")
    return content


@cache
def api_names() -> dict[str, str]:
    """APIs of MindSpore and their counterparts in PyTorch, where the names in a dump differ."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api_names.yaml")
    return load_names(path)


def translated_names(framework: str) -> dict[str, str]:
    """The names of `api_names` where the APIs of the framework have names of their own, else none."""
    return api_names() if of_dump(framework).has_own_names else {}


def load_names(path: str) -> dict[str, str]:
    """A file of names to names: a cell mapping or a data mapping.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_mapping(path, "lines of the form `name: name`")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise MsprobeException(f"{path}: {show(key)}: {show(value)}: both sides are names.")
    return content


def load_api_entries(path: str) -> list[ApiEntry]:
    """A file of API mappings, one entry or a list of them; what is wrong in one is logged and the entry left out.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_yaml(path)
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise MsprobeException(f"{path}: expected one entry with ms_api and pt_api, or a list of such entries.")
    entries = (_api_entry(path, number, entry) for number, entry in enumerate(content))
    return [entry for entry in entries if entry is not None]


def _api_entry(path: str, number: int, entry: dict[str, Any]) -> ApiEntry | None:
    target, golden = entry.get("ms_api"), entry.get("pt_api")
    if not isinstance(target, str) or not isinstance(golden, str):
        text = f"{path}: entry {number} is left out: ms_api and pt_api must be names."
        log.warning(text, once=text)
        return None
    positions = {}
    for state, spellings in _POSITIONS.items():
        ours, theirs = _listed(entry, "ms", spellings), _listed(entry, "pt", spellings)
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            kinds = f"ms_{spellings[0]} and pt_{spellings[0]}"
            text = f"{path}: entry {number} ({target}) is left out: {kinds} must be lists of one length."
            log.warning(text, once=text)
            return None
        positions[state] = {str(mine): str(other) for mine, other in zip(ours, theirs)}
    return ApiEntry(target, golden, positions)


def _listed(entry: dict[str, Any], side: str, spellings: tuple[str, ...]) -> Any:
    return next((entry[f"{side}_{word}"] for word in spellings if f"{side}_{word}" in entry), [])


def write_names(path: str, names: dict[str, str]) -> None:
    """Write names to names, in a form that `load_names` reads."""
    with files.replacing(path) as stream:
        for name, other in names.items():
            stream.write(f"{scalar(name)}: {scalar(other)}\n".encode())


def scalar(text: str) -> str:
    """`text` as a YAML scalar that is read as the same text."""
    # A JSON text is one of YAML too.
    return text if _PLAIN.match(text) and text.lower() not in _NO_TEXTS else json.dumps(text)


# --- name mapping


# mindspore.mint mirrors torch name by name.
_MIRRORS = (("MintFunctional.", "Functional."), ("MintDistributed.", "Distributed."), ("Mint.", "Torch."))
_DIRECTIONS = (".forward.", ".backward.", ".parameters_grad.")


class NameMapping(msgspec.Struct, frozen=True):
    """The parts of a target's names that are rewritten.

    Args:
        apis: base of an API to base, such as ``Functional.abs`` to ``Torch.abs``; ``None`` leaves APIs as they are.
        entries: APIs whose items are numbered differently; of these nothing else is matched.
        cells: parts of a module's name and what stands in their place; ``None`` leaves modules as they are.
        items: full names of items; these come before everything else.
        parameters: match parameters that the frameworks name differently.
        root: first part of the names of modules on the golden side, where `cells` are given.
    """

    apis: Optional[dict[str, str]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    entries: dict[str, ApiEntry] = msgspec.field(default_factory=dict)
    cells: Optional[dict[str, str]] = None  # noqa: UP045
    items: Optional[dict[str, str]] = None  # noqa: UP045
    parameters: bool = False
    root: str = "Module"

    def record(self, key: str) -> str:
        """The key of a record on the golden side."""
        if is_module(key):
            return key if self.cells is None else map_cell(key, self.cells, self.root)
        return key if self.apis is None else self._api(key)

    def _api(self, key: str) -> str:
        parsed = parse(key)
        if parsed is None:
            return key
        base = parsed.base
        entry = self.entries.get(base)
        mapped = entry.golden if entry is not None else map_api(base, self.apis or {})
        return mapped + key[len(base) :]

    def suffix(self, record: str, item: Item) -> str | None:
        """The part that follows the key of the record in the key of `item`; ``None`` leaves the item out."""
        suffix = item.name[len(record) :]
        if self.entries:
            parsed = parse(record)
            entry = None if parsed is None or parsed.is_module else self.entries.get(parsed.base)
            if entry is not None:
                return _positioned(entry, suffix)
        if self.parameters and item.state.startswith("parameters"):
            above, _, name = suffix.rpartition(".")
            return f"{above}.{PARAMETER_NAMES.get(name, name)}"
        return suffix


def _positioned(entry: ApiEntry, suffix: str) -> str | None:
    _, state, position, *rest = suffix.split(".")
    other = entry.positions.get(state, {}).get(position)
    return None if other is None else ".".join(["", state, other, *rest])


def map_api(base: str, names: dict[str, str]) -> str:
    """The counterpart of an API: what mirrors torch by its name, the rest by the table `names`."""
    for mine, theirs in _MIRRORS:
        if base.startswith(mine):
            return theirs + base[len(mine) :]
    return names.get(base, base)


def map_cell(key: str, names: dict[str, str], golden_root: str = "Module") -> str:
    """A module's record name with the first part of the golden side, and what `names` says of path and class."""
    root, _, rest = key.partition(".")
    if root not in MODULE_ROOTS:
        return key
    ends = [index for index in (rest.rfind(part) for part in _DIRECTIONS) if index >= 0]
    if not ends:
        return f"{golden_root}.{rest}"
    path, tail = rest[: max(ends)], rest[max(ends) :]
    if path in names:
        return f"{golden_root}.{names[path]}{tail}"
    for part, other in names.items():
        path = path.replace(part, other, 1)
    return f"{golden_root}.{path}{tail}"


def entries_in_use(entries: Iterable[ApiEntry], target: set[str], golden: set[str]) -> dict[str, ApiEntry]:
    """The entries whose APIs both occur, given the bases that do."""
    return {entry.target: entry for entry in entries if entry.target in target and entry.golden in golden}
