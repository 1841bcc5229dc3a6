"""How two dumps are compared."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from probe.common.errors import MsprobeException

BUILT_IN = ""
"""In the place of a mapping file: only what is known without one."""


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Args:
        compat: read as msProbe 26.2 does where its defects change cells; docs/compare.md lists them.
        fuzzy: match without regard to the numbers of calls.
        api_mapping, cell_mapping: files, or `BUILT_IN`.
        data_mapping: a file that names items.
        layer_mapping: a file that names layers, or `BUILT_IN`; it becomes a data mapping.
        post_processing: a file that says what is done to tensors before they are compared.
        algorithms: Python files with metrics of the user's own; they are executed.

    Raises:
        MsprobeException: two of them exclude each other.
    """

    compat: bool = False
    fuzzy: bool = False
    api_mapping: str | None = None
    cell_mapping: str | None = None
    data_mapping: str | None = None
    layer_mapping: str | None = None
    post_processing: str | None = None
    algorithms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.fuzzy and self.maps_items:
            raise MsprobeException("fuzzy matching and a mapping of items exclude each other: -fm and -dm or -lm.")
        if self.data_mapping is not None and self.layer_mapping is not None:
            raise MsprobeException("a layer mapping becomes a data mapping; give one of -dm and -lm.")

    def absolute(self) -> Options:
        """The same for a process that runs in another folder."""
        names = ("api_mapping", "cell_mapping", "data_mapping", "layer_mapping", "post_processing")
        paths = {name: os.path.abspath(path) for name in names if (path := getattr(self, name))}
        return replace(self, algorithms=tuple(map(os.path.abspath, self.algorithms)), **paths)

    @property
    def maps_names(self) -> bool:
        """Whether the user said anything about what corresponds to what."""
        return self.maps_items or not (self.api_mapping is None and self.cell_mapping is None)

    @property
    def maps_items(self) -> bool:
        """Whether items are matched by their whole names."""
        return not (self.data_mapping is None and self.layer_mapping is None)
