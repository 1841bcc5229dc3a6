"""The setting of a module that made a call diverge: of its own module, of one around it, or of one before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from probe.common.dump.naming import is_module, parse
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.sources import Tree
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.causes.module_settings import OtherSetting
from probe.compare.result import Unexplained
from probe.compare.sentences import NOTHING, Sentence


class SettingCauses:
    """Looks for settings that differ near a finding.

    Args:
        settings: those that differ, in the order of the calls.
        calls: the calls of both runs.
        tree: the call tree of the target.
    """

    def __init__(self, settings: Sequence[OtherSetting], calls: Sequence[AlignedCall], tree: Tree) -> None:
        self._settings = settings
        self._calls = calls
        self._tree = tree

    @cached_property
    def _by_module(self) -> dict[str, list[OtherSetting]]:
        found: dict[str, list[OtherSetting]] = {}
        # What computes in any case is likelier.
        for each in sorted(self._settings, key=lambda each: not each.computes):
            if not each.is_of_model:
                found.setdefault(_base(each.call.record or ""), []).append(each)
        return found

    @cached_property
    def _has_modules(self) -> bool:
        return any(is_module(call.record or "") for call in self._calls)

    def _of_model(self, record: str) -> list[OtherSetting]:
        """The settings of the model that has a call, those that compute first; of any model for a function."""
        found = [
            each
            for each in self._settings
            if each.is_of_model
            and (not is_module(record) or record.startswith(f"{(each.call.record or '').rpartition('.')[0]}."))
        ]
        return sorted(found, key=lambda each: not each.computes)

    def of_module(self, suspect: Unexplained, is_on_input: bool) -> Sentence:
        """The setting of the module that a finding is on, or of the innermost one around it.

        Args:
            suspect: the finding.
            is_on_input: true if an input of the call parts, which the call itself does not make.
        """
        if not self._settings:
            return NOTHING
        record = suspect.record
        if is_on_input or not is_module(record):
            record = self._tree.get(record) or ""
        if not record and not self._has_modules:
            # At level L1 nothing tells which module makes a call.
            return NOTHING
        found = self._by_module.get(_base(record)) if record else self._of_model(suspect.record)
        return NOTHING if not found else _text(found[0], suspect)

    def near(self, suspect: Unexplained, call: AlignedCall) -> Sentence:
        """The setting of a module around a finding, the innermost first; else the last one that differs before it."""
        if not self._settings:
            return NOTHING
        for record in around(self._tree, suspect.record):
            for setting in self._by_module.get(_base(record), ()):
                return _text(setting, suspect)
        index = next((index for index, each in enumerate(self._calls) if each is call), 0)
        before = {id(each) for each in self._calls[:index]}
        last = [each for each in self._settings if each.computes and id(each.call) in before]
        last = last or [each for each in self._of_model(suspect.record) if each.computes]
        if not last:
            return NOTHING
        found = _text(last[-1], suspect)
        return Sentence(f"a setting differs as well: {found.text}", f"a setting differs as well: {found.shown}")


def _base(record: str) -> str:
    parsed = parse(record)
    return "" if parsed is None else parsed.base


def _text(setting: OtherSetting, suspect: Unexplained) -> Sentence:
    """The setting in words, with its module if that is another one than the finding is on."""
    record = setting.call.record or ""
    is_there = _base(record) == _base(suspect.record)
    return setting.sentence if is_there else setting.sentence.inside(record)
