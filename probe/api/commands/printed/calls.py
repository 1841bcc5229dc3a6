"""Objects printed of calls: `acc_check`, `api_precision_compare`, `replay`; of kernels: `code_mapping` and `parse`."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from probe.api.commands.printed.answer import Files, Trouble


class KernelVerdict(TypedDict):
    """The judgement of one result; `KernelVerdict` of `probe.calls` has complex numbers, which become objects here."""

    status: str
    interpretation: str
    """One line."""
    bound: str
    """The origin of the tolerance."""
    ratio: float | None
    """The error of the worst element by its tolerance."""
    tolerance: float | None
    worst_index: list[int] | None
    worst_result: Any
    worst_reference: Any
    max_ulp: float | None
    mean_ulp: float | None
    share_over: float | None
    """The share of elements whose error is over the tolerance."""
    fits: str | None
    """The lower precision that explains a failing result."""


class CheckedResult(TypedDict):
    """A result of a call."""

    name: str
    of: str
    dtype: str
    reference_dtype: str
    shape: list[int] | None
    verdict: KernelVerdict


class CheckedCase(TypedDict):
    """A recorded call that was run again."""

    name: str
    base: str
    rows: list[CheckedResult]
    not_run: str
    """The reason why it was not run."""
    backward_not_run: str
    stands_for: int
    autocast: str
    inputs: str
    """``recorded`` or ``generated``."""
    saved: list[str]


class CheckedCalls(TypedDict):
    """The calls of a dump, run again."""

    dump: str
    framework: str
    device: str
    ending: str
    seconds: float
    counts: dict[str, int]
    cases: list[CheckedCase]
    second_stage: list[Any] | None
    files: list[str]


class Checked(Trouble, CheckedCalls):
    """The calls of the one dump that was given."""


class CheckedDump(CheckedCalls):
    """The calls of one of several dumps."""

    version: int


class DeviceCase(TypedDict):
    """A call on two devices."""

    name: str
    forward: str | None
    backward: str | None
    """``null`` if it was not run."""
    message: str
    worst: str


class Devices(Files):
    """The calls of two devices."""

    counts: dict[str, int]
    cases: list[DeviceCase]


class ReplayedResult(TypedDict):
    """A result in three comparisons."""

    name: str
    of: str
    dtype: str
    shape: list[int] | None
    recorded_and_now: dict[str, Any] | None
    now_and_exact: KernelVerdict
    recorded_and_exact: KernelVerdict | None
    overflow: str


class ReplayedCall(TypedDict):
    """A call that was run again."""

    dump: str
    name: str
    direction: str
    device: str
    autocast: str
    inputs: str
    answer: str
    is_wrong: bool
    is_random: bool
    notes: list[str]
    results: list[ReplayedResult]


class SmallerCall(ReplayedCall):
    """The call with smaller inputs, with which it still fails."""

    version: int
    text: str
    """The change of the inputs, and the number of tries."""


class Replayed(Files, ReplayedCall):
    """A call that was run again."""

    smaller: SmallerCall | None
    """With ``--minimise``."""


# --- kernels


class CodeMapped(Files):
    """Kernel dumps, linked to lines."""

    linked: int
    unlinked: dict[str, int]


class ParsedFile(TypedDict):
    """A tensor that was converted."""

    source: str
    file: str
    dtype: str
    shape: list[int]


class Parsed(Trouble):
    """Tensors that were converted."""

    files: list[ParsedFile]
