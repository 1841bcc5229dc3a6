"""Two runs as they are searched: all that stays the same during the walk over their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from probe.common.align.row import Row
from probe.common.dump.naming import is_module
from probe.common.dump.reading.sources import Tree
from probe.compare.divergence.aligned_calls import AlignedCall, Trees
from probe.compare.divergence.between_steps import BetweenSteps
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.casts import Casts
from probe.compare.divergence.causes.module_settings import OtherSetting, SettingsPair, other_settings
from probe.compare.divergence.parameters import Parameter, Parameters
from probe.compare.divergence.peers.groups import Peers
from probe.compare.divergence.precision import Precision
from probe.compare.divergence.two_programs.regions import Regions
from probe.compare.divergence.two_programs.rising import Rise, rise
from probe.compare.result import Mode

_GROWN = 4.0


@dataclass(frozen=True, eq=False)
class Runs:
    """The calls of two runs, and what is asked of them.

    Args:
        calls: those of both runs, as `aligned_calls` gives them.
        mode: what they were compared by.
        level: ``L0``, ``L1`` or ``mix``.
        trees: the call trees of target and golden side.
        same_names: true if both sides use the same names for the same things.
        across_frameworks: true if the runs are of two frameworks.
        before: the paths of the dumps of the step before, where there is one.
        everything: look for all divergences, and not for the first few.
        keeps_judged: keep what was found of each pair of calls that is looked at.
        regions: follows differences between two programs; ``None`` where both runs are of one program.
        product_roundoff: the unit roundoff of matrix products of float32, if one side computes them with less, as TF32.
        settings: the settings of the modules of target and golden side; empty where they are not known.
        with_golden_only: all calls, those of the golden side alone as well, where `calls` leaves these out.
    """

    calls: Sequence[AlignedCall]
    mode: Mode
    level: str
    trees: Trees
    same_names: bool
    across_frameworks: bool = False
    before: tuple[str, str] | None = None
    everything: bool = False
    keeps_judged: bool = False
    regions: Regions | None = None
    with_golden_only: Sequence[AlignedCall] | None = None
    product_roundoff: float = 0.0
    settings: SettingsPair = ({}, {})

    @cached_property
    def tree(self) -> Tree:
        """The call tree of the target; empty where it has none."""
        return self.trees[0] or {}

    @cached_property
    def golden_tree(self) -> Tree:
        """The call tree of the golden side; empty where it has none."""
        return self.trees[1] or {}

    @property
    def made(self) -> Sequence[AlignedCall]:
        """All calls of both sides, where they are known."""
        return self.calls if self.with_golden_only is None else self.with_golden_only

    @cached_property
    def is_torch(self) -> bool:
        """True if the calls are those of PyTorch, which dtypes tell: those of other frameworks have no prefix."""
        items = (row.target for call in self.calls for row in call.rows)
        dtype = next((item.dtype for item in items if item is not None and item.is_tensor), None)
        return (dtype or "").startswith("torch.") and not self.across_frameworks

    @property
    def modules_only(self) -> bool:
        """True if the calls are those of modules, between which nothing is recorded."""
        return self.level == "L0"

    @property
    def growth(self) -> float:
        """By how much the steps before may have increased a difference.

        What two frameworks round otherwise has grown, most in elements that statistics miss.
        """
        return _GROWN if self.before is not None and self.across_frameworks else 1.0

    @cached_property
    def precision(self) -> Precision:
        """The types that differ by design."""
        return Precision(self.calls, max(self.product_roundoff, self.casts.coarsest))

    @cached_property
    def peers(self) -> Peers:
        """The outputs of all calls, each compared with its like."""
        without_casts = Precision(self.calls, self.product_roundoff)
        return Peers(self.calls, self.mode, self.tree, without_casts.shortest, self.casts)

    @cached_property
    def rising(self) -> Rise | None:
        """The layer from which on errors are larger than before, of two programs in a short type."""
        return None if self.regions is None else rise(self.calls, self.regions)

    @cached_property
    def casts(self) -> Casts:
        """The float8 dtypes to which modules cast, which no record shows."""
        return Casts(self.settings, self.trees)

    @cached_property
    def other_settings(self) -> list[OtherSetting]:
        """The settings of modules that differ."""
        return other_settings(self.calls, self.settings, self.same_names, self.across_frameworks)

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters at the beginning of this step."""
        return Parameters(self.made)

    @cached_property
    def between_steps(self) -> BetweenSteps | None:
        """The change of parameters since the step before; ``None`` if it is unknown."""
        if self.before is None:
            return None
        return BetweenSteps(self.before, self.parameters.all, self.across_frameworks)

    @cached_property
    def hidden_usually(self) -> float:
        """The difference that parameters of two frameworks may have at the beginning of this step unseen."""
        between = self.between_steps if self.across_frameworks else None
        return 0.0 if between is None else between.usually_hidden

    @cached_property
    def by_record(self) -> dict[str | None, AlignedCall]:
        """The calls by the names of their records in the target."""
        return {call.record: call for call in self.calls}

    def parameter(self, call: AlignedCall, row: Row) -> Parameter | None:
        """The parameter that an item of a call is, if it is one."""
        return self.parameters.of(call, row)

    def inputs_of(self, record: str) -> list[Row]:
        """The inputs of a call of the target; none where it was not recorded."""
        call = self.by_record.get(record)
        return [] if call is None else [row for row in call.rows if is_input(row)]

    def module(self, call: AlignedCall) -> str:
        """The record of the innermost module around a call, or of the call if it is one."""
        name, tree = (call.record, self.tree) if call.record else (call.golden_record, self.golden_tree)
        return "" if name is None else name if is_module(name) else tree.get(name) or ""
