"""Coverage-guided fuzzing of every reader: whatever it is given, it answers or raises one of our errors.

    pip install atheris                      # Python 3.11 or 3.12; no dependency of the package
    python tests/reliability/fuzz_readers.py READER [SECONDS]

READER is config, dump, stacks, journal, mapping, npy or pt. It begins with inputs in `corpus/` and go on from
what reaches new lines. Prints how many were tried; ends with status 0, or with the input that broke a promise in
`crash-<hash>` and its traceback: another exception, 30 s for one input, or 2 GiB of memory.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import atheris
import numpy as np
from hostile import files as hostile

with atheris.instrument_imports(include=["probe", "numpy.lib", "yaml", "zipfile", "pickletools"]):
    import probe
    from probe.common.align import layers as rules
    from probe.common.align import name_mapping
    from probe.common.config.config import load_config
    from probe.common.dump.journal import MAGIC, Header, JournalReader, JournalWriter
    from probe.common.dump.reading import tensor_reading
    from probe.common.errors import MsprobeException
    from probe.compare import merged_tables, tensor_rows


def config(path: Path) -> None:
    load_config(str(path))


def dump(path: Path) -> None:
    found = probe.read(path)
    for record in found:
        with contextlib.suppress(MsprobeException):
            for item in found.items(record):
                found.tensor_path(item)


def stacks(path: Path) -> None:
    (path.parent / "dump.json").write_text('{"data": {}}')
    found = probe.read(path.parent)
    for part in ("stacks", "tree"):
        with contextlib.suppress(MsprobeException):
            getattr(found, part)


def journal(path: Path) -> None:
    """Frames after a whole header: the bytes are cut at every 0xFE, and each part becomes a frame with its checksum."""
    import struct
    import zlib

    content = path.read_bytes()
    writer_path = path.parent / "whole.journal"
    writer_path.unlink(missing_ok=True)
    JournalWriter(str(writer_path), Header("statistics", "mix", "pytorch", None)).close()
    with open(writer_path, "ab") as stream:
        for body in content.split(b"\xfe")[:50]:
            stream.write(struct.pack("<II", len(body), zlib.crc32(body)) + body)
    for each in (path, writer_path):
        with contextlib.suppress(MsprobeException), JournalReader(str(each)) as reader:
            list(reader.records())
            reader.calls()


def mapping(path: Path) -> None:
    for read in (
        name_mapping.load_names,
        name_mapping.load_api_entries,
        rules.load_rules,
        tensor_rows.load_post_processing,
        merged_tables.load_choice,
    ):
        with contextlib.suppress(MsprobeException):
            read(str(path))


def tensor(path: Path) -> None:
    values = tensor_reading.read_tensor(str(path))
    # More than a tensor saved as a view may repeat.
    assert values.nbytes <= max(path.stat().st_size * 4, 1 << 30)


READERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "config": ("config.json", config),
    "dump": ("dump.json", dump),
    "stacks": ("stack.json", stacks),
    "journal": ("dump.journal", journal),
    "mapping": ("mapping.yaml", mapping),
    "npy": ("tensor.npy", tensor),
    "pt": ("tensor.pt", tensor),
}


def seeds(reader: str) -> Iterator[Any]:
    """What earlier runs found, a line of base64 each; good files; and the hostile ones that are tested by name."""
    with open(Path(__file__).parent / "corpus" / f"{reader}.txt", encoding="ascii") as stream:
        yield from map(base64.b64decode, stream)
    if reader == "config":
        yield '{"task": "tensor", "dump_path": "d", "level": "L1", "step": [1, "2-3"], "tensor": {"list": ["a"]}}'
        yield '{"dump_path": "d", "statistics": {"data_mode": ["all"], "summary_mode": "md5"}, "rank": []}'
    elif reader == "dump":
        yield hostile.dump_of("a.npy")
        yield hostile.dump_of("../a.npy").replace("1.0", "NaN").replace("false", "Infinity")
        yield from (text for text in hostile.DUMP.values() if len(text) < 5000)
        yield from (f'{{"data": {{"Torch.a.0.forward": {text}}}}}' for text in hostile.RECORD.values())
    elif reader == "stacks":
        yield '{"0": [["Torch.a.0.forward"], ["File a.py, line 1, in f"]]}'
    elif reader == "journal":
        import msgspec

        record = [2, "Torch.a.0.forward", 0, 0, None, 0, 0, {"output": [hostile.tensor_entry("a")]}]
        bodies = [record, [1, 0, [["a.py", 1, "f"]]], [3, "Module.a.A.forward.0", 1, -1, None]]
        yield b"\xfe".join(map(msgspec.msgpack.encode, bodies))
        yield MAGIC
    elif reader == "mapping":
        yield "- ms_api: a\n  pt_api: b\n  ms_args: [0]\n  pt_args: [1]\n"
        yield "TopLayer:\n  a.b: c\n"
        yield "api: [Distributed.all_reduce]\ncompare_index: [Max diff]\n"
        yield "right_matmul:\n  target_tensor_map: {a.npy: [b]}\n"
        yield from (text for text in hostile.YAML.values() if len(text) < 5000)
    elif reader == "npy":
        for array in (np.arange(6.0).reshape(2, 3).T, np.zeros((0, 3), np.int8), np.array(["a", "bc"])):
            stream = io.BytesIO()
            np.save(stream, array)
            yield stream.getvalue()
        yield from (content for content in hostile.NPY.values() if len(content) < 5000)
    else:
        import torch
        from hostile.pt_files import PT

        for legacy in (False, True):
            stream = io.BytesIO()
            torch.save(torch.arange(6.0).reshape(2, 3), stream, _use_new_zipfile_serialization=not legacy)
            yield stream.getvalue()
        yield from (content for content in PT.values() if len(content) < 5000)


def main() -> None:
    reader, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    name, read = READERS[reader]
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(reader)):
        (corpus / str(number)).write_bytes(seed if isinstance(seed, bytes) else seed.encode())
    path = folder / name

    def one(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                read(path)
            except MsprobeException as error:
                assert name in str(error) and len(str(error)) < 2000, str(error)[:300]

    options = ["-timeout=30", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
