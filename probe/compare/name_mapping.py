"""Names of the target rewritten into those of the golden side, so that calls of other names can meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Optional

from probe.common.naming import MODULE_ROOTS, is_module, parse
from probe.compare.mapping_files import ApiEntry
from probe.compare.records import Item

# mindspore.mint mirrors torch name by name.
_MIRRORS = (("MintFunctional.", "Functional."), ("MintDistributed.", "Distributed."), ("Mint.", "Torch."))
_DIRECTIONS = (".forward.", ".backward.", ".parameters_grad.")
# What MindSpore calls the parameters of its normalisation layers and embeddings, and what PyTorch does.
PARAMETER_NAMES = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embedding_table": "weight",
}


@dataclass(frozen=True)
class NameMapping:
    """What of a target's names is rewritten.

    Args:
        apis: base of an API to base, such as ``Functional.abs`` to ``Torch.abs``; ``None`` leaves APIs as they are.
        entries: APIs whose items are numbered differently; of these nothing else is matched.
        cells: parts of a module's name and what stands in their place; ``None`` leaves modules as they are.
        modules: base of a module to base, whole names only; ``None`` leaves modules to `cells`.
        items: full names of items; these come before everything else.
        parameters: let parameters meet that the frameworks name differently.
    """

    apis: Optional[dict[str, str]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    entries: dict[str, ApiEntry] = field(default_factory=dict)
    cells: Optional[dict[str, str]] = None  # noqa: UP045
    modules: Optional[dict[str, str]] = None  # noqa: UP045
    items: Optional[dict[str, str]] = None  # noqa: UP045
    parameters: bool = False

    def record(self, key: str) -> str:
        """The key of a record on the golden side."""
        if is_module(key):
            if self.modules is not None:
                base = _base(key)
                return self.modules.get(base, base) + key[len(base) :]
            return key if self.cells is None else map_cell(key, self.cells)
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
        """What follows the key of the record in the key of `item`; ``None`` leaves the item out."""
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


def _base(key: str) -> str:
    parsed = parse(key)
    return key if parsed is None else parsed.base


def same_paths(target: Iterable[str], golden: Iterable[str]) -> dict[str, str]:
    """Bases of modules at the same place of two networks, whatever their classes are called."""
    there = {_path(base): base for base in golden}
    return {base: there[_path(base)] for base in target if _path(base) in there}


def _path(base: str) -> str:
    return base.partition(".")[2].rpartition(".")[0]


def map_api(base: str, names: dict[str, str]) -> str:
    """The counterpart of an API: what mirrors torch by its name, the rest by the table `names`."""
    for mine, theirs in _MIRRORS:
        if base.startswith(mine):
            return theirs + base[len(mine) :]
    return names.get(base, base)


def map_cell(key: str, names: dict[str, str]) -> str:
    """A module's record name: ``Cell`` becomes ``Module``, and what `names` says of path and class."""
    root, _, rest = key.partition(".")
    if root not in MODULE_ROOTS:
        return key
    ends = [place for place in (rest.rfind(part) for part in _DIRECTIONS) if place >= 0]
    if not ends:
        return f"Module.{rest}"
    path, tail = rest[: max(ends)], rest[max(ends) :]
    if path in names:
        return f"Module.{names[path]}{tail}"
    for part, other in names.items():
        path = path.replace(part, other, 1)
    return f"Module.{path}{tail}"


def entries_in_use(entries: Iterable[ApiEntry], target: set[str], golden: set[str]) -> dict[str, ApiEntry]:
    """The entries whose APIs both occur, given the bases that do."""
    return {entry.target: entry for entry in entries if entry.target in target and entry.golden in golden}
