"""``msprobe monitor``: ``report``, ``watch`` and ``dump``."""

from __future__ import annotations

from probe.api.commands.question import CommandGroup
from probe.api.commands.watching.dump import MonitorDump
from probe.api.commands.watching.report import MonitorReport
from probe.api.commands.watching.watch import MonitorWatch


class Monitor(CommandGroup):
    """Read what a training monitor has written: who began, live, and as a page (msprobe trend)."""

    name = "monitor"
    commands = (MonitorReport(), MonitorWatch(), MonitorDump())
