"""The objects that ``--json`` prints, as types: `docs/json_schemas.py` makes the JSON Schema and a page of them.

A class of the tool stands for itself where a command prints all of it. Nothing imports this while a command runs; the
tests of exit statuses hold what each command prints to the schema.
"""

from __future__ import annotations

from typing import Any

from probe.api.commands.printed.answer import File, Files
from probe.api.commands.printed.calls import Checked, CheckedDump, CodeMapped, Devices, Parsed, Replayed
from probe.api.commands.printed.runs import (
    Analysed,
    ComparedGradients,
    ComparedPair,
    ComparedRanks,
    ComparedResumed,
    Graph,
    GraphFolders,
    Overflow,
    Packed,
    Recovered,
    ShownDump,
    ShownUpdates,
    TimelineEntry,
)
from probe.api.commands.printed.settings import (
    Checkpoints,
    ConfigChecked,
    ConfigCollected,
    ConfigLogs,
    ConfigSheets,
    ConfigTemplate,
    Diagnosis,
)
from probe.api.commands.printed.training import Monitored, Requested, Rollout, RolloutTables, TrendPage

PRINTED: dict[str, Any] = {
    "show": list[ShownDump],
    "show --timeline": list[TimelineEntry],
    "show --updates": list[ShownUpdates],
    "compare": list[ComparedPair],
    "compare -da": Analysed,
    "compare --ranks": ComparedRanks,
    "compare --resumed": ComparedResumed,
    "compare of gradient probes": ComparedGradients,
    "graph_visualize": Graph,
    "graph_visualize --file_type json": GraphFolders,
    "overflow_check": Overflow,
    "rollout_check": Rollout,
    "rollout_check of two folders": RolloutTables,
    "acc_check": Checked,
    "acc_check of several dumps": list[CheckedDump],
    "multi_acc_check": Checked,
    "multi_acc_check of several dumps": list[CheckedDump],
    "api_precision_compare": Devices,
    "replay": Replayed,
    "config_check": ConfigChecked,
    "config_check -d": ConfigCollected,
    "config_check --rules msprobe": ConfigSheets,
    "config_check of two logs": ConfigLogs,
    "config_check of two checkpoints": Checkpoints,
    "ckpt_compare": Checkpoints,
    "ckpt_compare --fingerprint": Files,
    "monitor report": Monitored,
    "monitor dump": Requested,
    "trend": TrendPage,
    "data2db": File,
    "merge_result": Files,
    "code_mapping": CodeMapped,
    "parse": Parsed,
    "recover": Recovered,
    "pack": Packed,
    "config": ConfigTemplate,
    "doctor": Diagnosis,
    "doctor --dump": dict[str, Any],
}
"""By the command, and the flag if it prints something else with one, the type of what is printed."""
