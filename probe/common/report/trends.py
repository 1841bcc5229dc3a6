"""Rows of a monitor: the statistics of one step's tensors, as what collects them hands them to what writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

ACTIVATION, ACTIVATION_GRADIENT = "actv", "actv_grad"
UNREDUCED, REDUCED = "grad_unreduced", "grad_reduced"
BEFORE, AFTER = "param_origin", "param_updated"
DIRECTION, UPDATE, SIGN = "other", "update", "grad_sign"
GRADIENT_DIRECTION = "grad_direction"
"""Sketches of gradients, and their cosines with those of the step before."""
LINEAR, ATTENTION = "linear_hook", "attention_hook"
ROUTER_LOGITS, ROUTER_WEIGHTS = "moe_router_logit_hook", "moe_router_weight_hook"
COMMUNICATION = "comm"
COURSE, START = "settings", "param_start"
FROZEN = "frozen"
"""Stands for the dtype in a row of a parameter that the program has frozen, in the first step without its gradient."""
CHECKSUM = "MD5"
"""The column of checksums."""
COSINE = "cosine"
"""The column of the cosine of the angle to the step before."""
SKETCH = "sketch"
"""The column of packed sketches, in base64 behind a byte with the version of sketches."""


class TrendRow(NamedTuple):
    """The statistics of one tensor."""

    name: str
    chunk: int
    """The number of the model in a list of models."""
    micro: int
    """The micro batch, from 0."""
    values: Optional[Sequence[float]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """One for each op of the family; ``None`` of a gradient that does not exist."""
    shape: str
    dtype: str
    elements: int = 1
    is_exact: bool = False
    """True of integers and booleans."""
    order: int = 0
    """The position of the row in the training; the first one of a step is `TrendStep.first_row`."""
    more: tuple[str, ...] = ()
    """The values of `TrendTable.more`."""


@dataclass
class TrendTable:
    """The rows of one family in one step."""

    family: str
    """The family as in the names of files: ``actv``, ``exp_avg``."""
    ops: tuple[str, ...]
    has_micro: bool = False
    has_shape: bool = True
    more: tuple[str, ...] = ()
    """The names of further columns."""
    rows: list[TrendRow] = field(default_factory=list)
    bits: list[bytes] = field(default_factory=list)
    """The packed signs of each row, see `probe.backends.protocol.Signature`; empty if they are not collected."""


class TrendStep(NamedTuple):
    """One collected step."""

    number: int
    tables: Sequence[TrendTable]
    micro_batches: int
    """The number of micro batches that were seen."""
    first_row: int = 0
    """The `TrendRow.order` of the first row of the step."""
