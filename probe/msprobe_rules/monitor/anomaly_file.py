"""The files in which msProbe writes anomalies: ``anomaly.json`` of a rank, ``anomaly_analyse.json`` of all ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException
from probe.monitor.alerts.rows import Finding

FOLDER, ANOMALIES, ANALYSIS = "anomaly_detected", "anomaly.json", "anomaly_analyse.json"
_LARGEST = 1 << 30
"""Bytes of a file that is read. A guess: a million anomalies have 400 MB."""


class AnomalyFile:
    """``anomaly_detected/rank<R>/anomaly.json`` below the folder of a monitor.

    Args:
        folder: The folder of the monitor.
        rank: The rank that writes.
        group_mates: Ranks that run the same stage.
        pp_stage: The pipeline stage of the rank.
        overwrites: As msProbe: of two statistics of one row in one step only the last is kept.
    """

    def __init__(
        self, folder: str, rank: int, group_mates: Sequence[int] = (), pp_stage: int = 0, overwrites: bool = False
    ) -> None:
        self._folder, self._rank = os.path.join(folder, FOLDER, f"rank{rank}"), rank
        self._mates, self._stage = list(group_mates) or [rank], pp_stage
        self._overwrites = overwrites
        self._entries: dict[str, dict[str, Any]] = {}
        self._written = 0

    @property
    def path(self) -> str:
        return os.path.join(self._folder, ANOMALIES)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings, and write the file anew if one is new.

        Raises:
            OSError: it cannot be written.
            FileCheckException: its folder cannot be made.
        """
        for found in findings:
            key = f"{found.key}_step_{found.step}_call_{found.call}"
            if not self._overwrites and key in self._entries:
                key = f"{key}_{found.op}"
            self._entries[key] = {
                "rank": found.rank,
                "step": found.step,
                "micro_step": found.micro_step,
                "pp_stage": self._stage,
                "vpp_stage": found.vpp_stage,
                "call_id": found.call,
                "tag_name": found.key,
                "message": found.why,
                "group_mates": self._mates,
            }
        if len(self._entries) > self._written:
            files.make_folder(self._folder)
            _write(self.path, self._entries)
            self._written = len(self._entries)


def analyse(folder: str, output: str | None = None, most: int = 8, steps: Sequence[int] | None = None) -> str:
    """Write the first anomalies of all ranks, in the order of step and call.

    Args:
        folder: ``anomaly_detected``, with a folder for each rank.
        output: Where ``anomaly_analyse.json`` is written; by default the same folder.
        most: The number of anomalies.
        steps: The steps of which anomalies are taken; all by default.

    Returns:
        The path of the file.

    Raises:
        MsprobeException: there is no file of anomalies, or one cannot be read.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    paths = [os.path.join(folder, name, ANOMALIES) for name in names if name.startswith("rank")]
    paths = [path for path in paths if os.path.isfile(path)]
    if not paths:
        raise FileCheckException(f"{folder} has no rank<R>/{ANOMALIES}; give the folder {FOLDER} of a monitor.")
    for path in paths:
        found += read_anomalies(path).items()
    chosen = [each for each in found if steps is None or not steps or each[1].get("step") in steps]
    chosen.sort(key=lambda each: (each[1].get("step", 0), each[1].get("call_id", 0)))
    # Stable: equal steps and calls stay in the order of ranks.
    target = folder if output is None else output
    files.make_folder(target)
    path = os.path.join(target, ANALYSIS)
    _write(path, dict(chosen[:most]))
    return path


def read_anomalies(path: str) -> dict[str, dict[str, Any]]:
    """The objects of a file of anomalies, by their keys.

    Raises:
        MsprobeException: the file cannot be read.
    """
    try:
        with files.open_for_reading(path) as stream:
            content = json.loads(stream.read(_LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise MsprobeException(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict) or not all(isinstance(each, dict) for each in content.values()):
        raise MsprobeException(f"{path} is no file of anomalies; expected an object of objects.")
    return content


def _write(path: str, content: Mapping[str, Any]) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(content, indent=1).encode())
