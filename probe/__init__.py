"""A precision debugger for deep learning. Importing it imports no framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from probe._version import __version__

if TYPE_CHECKING:
    from probe.api.comparing import ckpt_compare as ckpt_compare
    from probe.api.comparing import graph_diff as graph_diff
    from probe.api.comparing import rollout_check as rollout_check
    from probe.api.comparing import verdict as verdict
    from probe.api.fingerprinting import Fingerprint as Fingerprint
    from probe.api.fingerprinting import fingerprint as fingerprint
    from probe.api.monitoring.grad_probe import GradComparator as GradComparator
    from probe.api.replaying import Replay as Replay
    from probe.api.replaying import acc_check as acc_check
    from probe.api.replaying import replay as replay
    from probe.api.trackers import to_mlflow as to_mlflow
    from probe.api.trackers import to_tensorboard as to_tensorboard
    from probe.api.trackers import to_wandb as to_wandb
    from probe.collect.sinks.sink import Needs as Needs
    from probe.collect.sinks.sink import Sink as Sink
    from probe.common.dump.reading.dump import Dump as Dump
    from probe.common.dump.reading.several_dumps import Run as Run
    from probe.common.dump.reading.several_dumps import read as read
    from probe.common.numerics.sketch import cosine as cosine
    from probe.common.numerics.sketch import distance as distance
    from probe.common.numerics.sketch import factor as factor
    from probe.common.numerics.sketch import sketch as sketch
    from probe.compare.in_python import Verdict as Verdict
    from probe.graph.diff import GraphDiff as GraphDiff
    from probe.graph.graph import Graph as Graph
    from probe.graph.in_python import GraphView as GraphView
    from probe.graph.in_python import open_graph as open_graph
    from probe.monitor.monitor_run import load_monitor as load_monitor
    from probe.overflow.find_overflow import find_overflow as find_overflow
    from probe.rollout.report import RolloutReport as RolloutReport
    from probe.rollout.response_anomaly import ResponseAnomaly as ResponseAnomaly
    from probe.rollout.response_anomaly import response_anomaly as response_anomaly

__all__ = [
    "Dump", "Fingerprint", "GradComparator", "Graph", "GraphDiff", "GraphView", "Needs", "Replay", "ResponseAnomaly",
    "RolloutReport", "Run", "Sink", "Verdict", "__version__", "acc_check", "ckpt_compare", "cosine", "distance",
    "factor", "find_overflow", "fingerprint", "graph_diff", "load_monitor", "open_graph", "read", "replay",
    "response_anomaly", "rollout_check", "sketch", "to_mlflow",
    "to_tensorboard", "to_wandb", "verdict",
]  # fmt: skip

# Reading needs msgspec, which a script that only collects should not wait for.
_FOUND_IN = {
    "Fingerprint": "probe.api.fingerprinting",
    "fingerprint": "probe.api.fingerprinting",
    "GradComparator": "probe.api.monitoring.grad_probe",
    "acc_check": "probe.api.replaying",
    "ckpt_compare": "probe.api.comparing",
    "Replay": "probe.api.replaying",
    "replay": "probe.api.replaying",
    "to_mlflow": "probe.api.trackers",
    "to_tensorboard": "probe.api.trackers",
    "to_wandb": "probe.api.trackers",
    "RolloutReport": "probe.rollout.report",
    "rollout_check": "probe.api.comparing",
    "Graph": "probe.graph.graph",
    "GraphDiff": "probe.graph.diff",
    "GraphView": "probe.graph.in_python",
    "find_overflow": "probe.overflow.find_overflow",
    "graph_diff": "probe.api.comparing",
    "load_monitor": "probe.monitor.monitor_run",
    "open_graph": "probe.graph.in_python",
    "ResponseAnomaly": "probe.rollout.response_anomaly",
    "response_anomaly": "probe.rollout.response_anomaly",
    "Dump": "probe.common.dump.reading.dump",
    "Needs": "probe.collect.sinks.sink",
    "Sink": "probe.collect.sinks.sink",
    "Run": "probe.common.dump.reading.several_dumps",
    "read": "probe.common.dump.reading.several_dumps",
    "cosine": "probe.common.numerics.sketch",
    "distance": "probe.common.numerics.sketch",
    "factor": "probe.common.numerics.sketch",
    "sketch": "probe.common.numerics.sketch",
    "Verdict": "probe.compare.in_python",
    "verdict": "probe.api.comparing",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FOUND_IN[name]), name)


def __dir__() -> list[str]:
    # What is found lazily is offered by completion too.
    return sorted({*globals(), *_FOUND_IN})
