"""Actions on findings: log, file, callback, stop, and a full dump of the next step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probe.common import files, log
from probe.common.errors import failure_text
from probe.common.report.json_values import to_json
from probe.monitor.alerts.rows import Finding

ALERTS = "alerts.jsonl"
"""The file of a rank: a JSON object a line, for each finding."""
ACTIONS = ("log", "file", "stop", "dump")
_MOST_LOGGED = 5
"""Findings of one step that are logged; the file has all of them."""


@dataclass(frozen=True)
class ActionSettings:
    """The actions of the configuration.

    Args:
        names: Of `ACTIONS`.
        dumps: How often a dump is armed in a run.
    """

    names: tuple[str, ...] = ("log", "file")
    dumps: int = 1


class Actions:
    """Does what the settings say with the findings of each step. No action ever raises.

    Args:
        settings: The actions.
        folder: The folder of the rank.
        arm_dump: Arms a full dump of the next step; called with the number of the step that was abnormal.
        stop: Asks the training to stop after this step.
        callback: A function of the user, which gets the findings of a step.
    """

    def __init__(
        self,
        settings: ActionSettings,
        folder: str,
        arm_dump: Callable[[int], None] | None = None,
        stop: Callable[[int], None] | None = None,
        callback: Callable[[Sequence[Finding]], None] | None = None,
    ) -> None:
        self._settings, self._folder, self._callback = settings, folder, callback
        self._arm_dump = arm_dump if "dump" in settings.names else None
        self._stop = stop if "stop" in settings.names else None
        self._dumps_left = settings.dumps
        self._failed: set[str] = set()

    def act(self, step: int, found: Sequence[Finding]) -> None:
        """Act on the findings of a step; nothing is done if there are none."""
        if not found:
            return
        if "file" in self._settings.names:
            self._guarded("file", lambda: self._append(found))
        if "log" in self._settings.names:
            self._guarded("log", lambda: _log(found))
        arm = self._arm_dump
        if arm is not None and self._dumps_left > 0:
            self._dumps_left -= 1
            self._guarded("dump", lambda: arm(step))
        callback = self._callback
        if callback is not None:
            self._guarded("callback", lambda: callback(found))
        stop = self._stop
        if stop is not None:
            self._guarded("stop", lambda: stop(step))

    def _append(self, found: Sequence[Finding]) -> None:
        lines = [json.dumps(to_json(each.as_json()), allow_nan=False) for each in found]
        files.make_folder(self._folder)
        with files.open_for_writing(os.path.join(self._folder, ALERTS), append=True) as stream:
            stream.write(("\n".join(lines) + "\n").encode())

    def _guarded(self, name: str, action: Callable[[], None]) -> None:
        """A failure is logged once for each action, and never reaches the training."""
        try:
            action()
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                log.warning(f"monitor: action {name} failed: {failure_text(error)}")


def _log(found: Sequence[Finding]) -> None:
    for each in found[:_MOST_LOGGED]:
        log.warning(f"monitor: {each.text()}")
    if len(found) > _MOST_LOGGED:
        log.warning(
            f"monitor: {len(found) - _MOST_LOGGED} more rows of step {found[0].step}; {ALERTS} has all of them."
        )
