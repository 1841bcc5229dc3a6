"""The two methods of msProbe for a pre-check: that of its documentation, and that of release 26.2 with its defects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import Protocol

from probe.msprobe_rules.output.comparisons import ComparisonRow
from probe.msprobe_rules.output.details import ERROR, SKIP, DetailsRow
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.precheck import (
    documented_single,
    documented_two_device,
    v26_2_single,
    v26_2_two_device,
)

Compared = tuple[list[ComparisonRow], list[ResultRow]]


class Method(Protocol):
    """What differs between the two."""

    @property
    def raised(self) -> str:
        """The status of a direction that raised."""

    def outputs(self, base: str, result: Any, reference: Any, prefix: str, mindspore: bool) -> list[DetailsRow]:
        """The rows of everything that an API returned.

        Raises:
            IndexError: 26.2.0 ends so where the device returned fewer items than the reference.
        """

    def worst_of(self, statuses: list[str]) -> str:
        """The status of a direction of a case, given those of its rows in order."""

    def compare(self, npu: Sequence[DetailsRow], gpu: Sequence[DetailsRow]) -> Compared:
        """The rows of one device judged by those of another.

        Raises:
            MsprobeException: a name stands twice in one file.
        """


class Documented:
    """As msProbe's documentation says."""

    raised = ERROR

    def outputs(self, base: str, result: Any, reference: Any, prefix: str, mindspore: bool) -> list[DetailsRow]:
        return list(documented_single.classify_output(base, result, reference, prefix))

    def worst_of(self, statuses: list[str]) -> str:
        return documented_single.worst_of(statuses)

    def compare(self, npu: Sequence[DetailsRow], gpu: Sequence[DetailsRow]) -> Compared:
        return documented_two_device.compare(npu, gpu)


class V26_2:
    """As msProbe 26.2 does, which does not judge what it cannot run."""

    raised = SKIP

    def outputs(self, base: str, result: Any, reference: Any, prefix: str, mindspore: bool) -> list[DetailsRow]:
        return list(v26_2_single.classify_output(base, result, reference, prefix, mindspore))

    def worst_of(self, statuses: list[str]) -> str:
        return v26_2_single.worst_of(statuses)

    def compare(self, npu: Sequence[DetailsRow], gpu: Sequence[DetailsRow]) -> Compared:
        return v26_2_two_device.compare(npu, gpu)
