"""The two methods for the drop-in tables of a pre-check: our verdicts, and release 26.2 with its defects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from probe.msprobe_rules.output.comparisons import ComparisonRow
from probe.msprobe_rules.output.details import ERROR, SKIP, DetailsRow
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.precheck import our_outputs, our_two_device, v26_2_single, v26_2_two_device


@dataclass(frozen=True)
class Method:
    """The differences between the two methods."""

    name: str
    """The name of the method for ``--rules``."""
    follows_verdicts: bool
    """True if the statuses of rows are those of our verdicts."""
    raised: str
    """The status of a direction that raised."""
    outputs: Callable[[str, Any, Any, str, bool], Iterable[DetailsRow]]
    """The rows of everything that an API returned, from its base, the result, the reference, the beginning of the names
    of the rows, and whether they are of MindSpore. 26.2.0 raises IndexError where the device returned fewer items."""
    worst_of: Callable[[list[str]], str]
    """The status of a direction of a case, given those of its rows in order."""
    compare: Callable[[Sequence[DetailsRow], Sequence[DetailsRow]], tuple[list[ComparisonRow], list[ResultRow]]]
    """The rows of one device judged by those of another; a name that is in a file twice raises MsprobeException."""


PROBE_METHOD = Method("probe", True, ERROR, our_outputs.measured_output, our_outputs.worst_of, our_two_device.compare)
"""Our verdicts."""
V26_2 = Method("msprobe", False, SKIP, v26_2_single.classify_output, v26_2_single.worst_of, v26_2_two_device.compare)
"""The judgement of msProbe 26.2, which does not judge a call that it cannot run."""
