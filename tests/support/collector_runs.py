"""A collector driven as a backend drives it, with numpy tensors; the fixture `ended_runs` closes what is open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import dumped
import numpy as np
from numpy_tensors import NumpyAdapter

from probe.collect.collector import Collector
from probe.collect.sinks.journal.sink import JournalSink
from probe.collect.sinks.sink import Host
from probe.common.config.config import Config
from probe.common.dump.journal import JournalReader
from probe.common.interfaces import ApiName, ModuleName

RELU, MATMUL, ADD = ApiName("Torch.relu", "relu"), ApiName("Torch.matmul", "matmul"), ApiName("Tensor.__add__", "add")
OUTER, INNER = ModuleName("Module.o.Outer"), ModuleName("Module.o.i.Inner")


def tensor(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def statistics(*values: float) -> dict[str, Any]:
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [len(values)],
        "Max": max(values), "Min": min(values), "Mean": sum(values) / len(values),
        "Norm": sum(value * value for value in values) ** 0.5, "requires_grad": False,
    }  # fmt: skip


class Run:
    """A collector with an open step."""

    begun: ClassVar[list[Run]] = []

    def __init__(self, path: Path, delayed: bool = False, **settings: Any) -> None:
        self.config = Config(**{"dump_path": str(path), "level": "mix", "risk_level": "ALL", **settings})
        adapter = NumpyAdapter(delayed)
        self.tensors = adapter.tensors
        self.ended = 0
        self.collector = Collector(self.config, adapter)  # type: ignore[arg-type]
        host = Host(adapter, lambda: self.config, self.collector.failed, lambda: 0, self.end, dict)  # type: ignore[arg-type]
        self.sink = JournalSink(host, is_quiet=True)
        self.path = path
        Run.begun.append(self)
        self.begin(0)

    def begin(self, step: int) -> None:
        assert self.collector.begin_step(step, 0, "rank0", [self.sink])
        assert self.sink.folder is not None
        self.folder = self.sink.folder
        self.collector.collecting = True

    def end_step(self) -> None:
        self.collector.leave_step()
        self.sink.end_step()

    def end(self) -> None:
        self.ended += 1
        self.collector.collecting = False

    def api(self, api: ApiName, *args: Any, output: Any = None, **kwargs: Any) -> Any:
        call = self.collector.enter_api(api, args, kwargs)
        if call is not None:
            self.collector.leave_api(call, output)
        return call

    def files(self, step: int = 0) -> dumped.Dump:
        self.sink.flush()
        return dumped.read(self.path, step, "rank0")

    def in_journal(self) -> list[str]:
        """Names of the records a killed process would leave."""
        with JournalReader(os.path.join(self.folder.path, "dump.journal")) as reader:
            return [name for name, _ in reader.records()]


def names(*numbers: int, api: ApiName = RELU) -> list[str]:
    return [f"{api.base}.{n}.forward" for n in numbers]
