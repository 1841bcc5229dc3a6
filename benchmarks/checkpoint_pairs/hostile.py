"""Pickles that no checkpoint is: what they ask for is refused in a line, and nothing of it is executed."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator

import numpy as np

_CALLS = (
    ("os", "system"), ("posix", "system"), ("builtins", "eval"), ("builtins", "exec"), ("builtins", "getattr"),
    ("numpy.testing._private.utils", "runstring"), ("numpy", "load"), ("numpy.f2py", "compile"),
    ("torch", "load"), ("torch.hub", "load"), ("torch.utils.cpp_extension", "load_inline"), ("pydoc", "pipepager"),
    ("subprocess", "Popen"), ("runpy", "run_path"), ("operator", "attrgetter"), ("functools", "reduce"),
    ("distutils.spawn", "spawn"), ("logging.config", "listen"), ("bdb", "Bdb"), ("idlelib.pyshell", "main"),
    ("pandas", "read_pickle"), ("joblib", "load"), ("transformers", "pipeline"), ("torch.jit", "script"),
    ("shutil", "rmtree"), ("os", "remove"), ("importlib", "import_module"), ("code", "interact"),
)  # fmt: skip


def _archive(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", b"3\n")
    return out.getvalue()


def files() -> Iterator[tuple[str, bytes]]:
    """Names, and files."""
    for index, (module, name) in enumerate(_CALLS):
        call = f"X\x01\0\0\0wc{module}\n{name}\n".encode()
        data = pickle.dumps({"t": np.ones((2, 2))}, 2)[:-1] + call + b"X\x01\0\0\0a\x85Rs."
        # In an archive, and as a plain pickle.
        yield f"{module}.{name}", _archive(data) if index % 2 else data
    good = pickle.dumps({"w": [1.0, 2.0], "x": "y" * 300}, 2)
    for end in (1, 5, 20, len(good) - 1):
        yield f"cut at {end}", _archive(good[:end])
    yield "bytes that are not there", _archive(b"\x80\x04\x8e" + (1 << 50).to_bytes(8, "little") + b"abc.")
    yield "an array of bytes that is not there", _archive(b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"abc.")
    yield "a memo of 2 billion", _archive(b"\x80\x02}r\xff\xff\xff\x7f.")
    yield "an extension", _archive(b"\x80\x02\x82\x01.")
    key = b"\x80\x02)q\0" + b"".join(
        b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60)
    )
    yield "a key that takes forever", _archive(key + b"}h\x3cK\x01s.")
    yield "tuples a million deep", _archive(b"\x80\x02}" + b")" + b"\x85" * 1_000_000 + b"K\x01s.")
