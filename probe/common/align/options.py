"""The way in which two dumps are matched, as far as the user chooses it."""

from __future__ import annotations

from dataclasses import dataclass

from probe.common.errors import MsprobeException

BUILT_IN = ""
"""Stands for a mapping file: only what is known without one."""


@dataclass(frozen=True)
class MatchOptions:
    """The user's choices for matching.

    Args:
        fuzzy: match without regard to the numbers of calls.
        api_mapping, cell_mapping: files, or `BUILT_IN`.
        data_mapping: a file that names items.
        layer_mapping: a file that names layers, or `BUILT_IN`; it becomes a data mapping.
        pairs: records that belong together whatever else is said, of the target and of the golden side.

    Raises:
        MsprobeException: two of them exclude each other.
    """

    fuzzy: bool = False
    api_mapping: str | None = None
    cell_mapping: str | None = None
    data_mapping: str | None = None
    layer_mapping: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.fuzzy and self.maps_items:
            raise MsprobeException("-fm cannot be combined with -dm or -lm; leave one of them out.")
        if self.data_mapping is not None and self.layer_mapping is not None:
            raise MsprobeException("a layer mapping becomes a data mapping; give one of -dm and -lm.")

    @property
    def maps_names(self) -> bool:
        """True if the user said anything about which names correspond."""
        return self.maps_items or not (self.api_mapping is None and self.cell_mapping is None)

    @property
    def maps_items(self) -> bool:
        """True if items are matched by their whole names."""
        return not (self.data_mapping is None and self.layer_mapping is None)
