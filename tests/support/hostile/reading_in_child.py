"""Reads files in a process of its own whose memory is limited, and says what came of each.

    python reading_in_child.py MIB READER PATH...

MIB is how much memory it may take beyond what it has after its imports. Prints a JSON list of `[path, error or null,
message, growth of its memory in MiB]`; a reader that ends the process leaves the list unfinished.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import probe
from probe.common.align import layers as rules
from probe.common.align import name_mapping
from probe.common.data_files import read_object
from probe.common.dump import recovery
from probe.common.dump.journal import JournalReader
from probe.common.dump.reading import tensor_reading
from probe.compare import merged_tables, tensor_rows


def read_dump(path: str) -> None:
    dump = probe.read(path)
    for record in dump:
        for item in dump.items(record):
            dump.tensor(item)
    _ = dump.stacks, dump.tree


def read_journal(path: str) -> None:
    with JournalReader(path) as reader:
        list(reader.records())
        reader.calls()


READERS: dict[str, Callable[[str], Any]] = {
    "names": name_mapping.load_names,
    "apis": name_mapping.load_api_entries,
    "layers": rules.load_rules,
    "matrices": tensor_rows.load_post_processing,
    "choice": merged_tables.load_choice,
    "tensor": tensor_reading.read_tensor,
    "mapped": lambda path: tensor_reading.read_tensor(path, mapped=True),
    "dump": read_dump,
    "journal": read_journal,
    "config": read_object,
    "recover": lambda path: [str(found) for found in recovery.recover(path)],
}


def _mib(key: str) -> float:
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith(key)) / 1024


def main() -> None:
    allowed, reader, *paths = sys.argv[1:]
    if any(path.endswith(".pt") for path in paths):
        import torch

        torch.load  # noqa: B018 (its memory is not the file's)
    import numpy
    import yaml

    assert numpy and yaml
    limit = int((_mib("VmSize") + float(allowed)) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print("[", end="")
    for number, path in enumerate(paths):
        before = _mib("VmHWM")
        try:
            with contextlib.redirect_stdout(sys.stderr):
                READERS[reader](path)
            outcome = [path, None, ""]
        except BaseException as error:
            outcome = [path, " ".join(kind.__name__ for kind in type(error).__mro__), str(error)]
        print("," * bool(number) + json.dumps([*outcome, _mib("VmHWM") - before]), flush=True)
    print("]")


if __name__ == "__main__":
    main()
