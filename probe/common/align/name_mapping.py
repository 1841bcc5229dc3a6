"""Names of the target rewritten into those of the golden side, so that calls of other names can be matched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Optional

from probe.common.align.conventions import PARAMETER_NAMES
from probe.common.align.mapping_files import ApiEntry
from probe.common.dump.naming import MODULE_ROOTS, is_module, parse
from probe.common.dump.reading.records import Item

# mindspore.mint mirrors torch name by name.
_MIRRORS = (("MintFunctional.", "Functional."), ("MintDistributed.", "Distributed."), ("Mint.", "Torch."))
_DIRECTIONS = (".forward.", ".backward.", ".parameters_grad.")


@dataclass(frozen=True)
class NameMapping:
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
    entries: dict[str, ApiEntry] = field(default_factory=dict)
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
