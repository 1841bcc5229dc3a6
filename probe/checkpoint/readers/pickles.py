"""Pickles read as data, by Python's own unpickler with an allow-list: nothing of one is imported, called or made.

The name of a function or a class becomes a `Name`, and calling one becomes an `Inert` object that has the name and the
arguments. Readers know what a few of these stand for. Plain values are themselves, and `collections.OrderedDict`
becomes a dictionary. Anything that asks for a function that no checkpoint needs is refused.

It is the unpickler in Python, since that in C cannot be kept from hashing a key that takes forever, from a stack that
ends the process, and from making room for what a number in the file says.
"""

from __future__ import annotations

import pickle
import re
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar, NamedTuple, NoReturn

from probe.common.errors import DumpFormatError

MOST_VALUES = 20_000_000
"""Operations of one pickle; a checkpoint of 100,000 tensors takes five million."""
_MOST_IN_KEY = 1000
"""Values in a key, which are all visited to hash it; a guess, since keys of checkpoints have one or two."""
_LONGEST_LINE = 1 << 16
"""Bytes of a line of protocol 0, which has numbers and names; a guess."""
_FUNCTIONS = re.compile(
    r"(torch\.(_utils|_tensor)\._rebuild_\w+|torch\.storage\._load_from_bytes|torch\.serialization\._get_layout|torch\.device|"
    r"numpy\.(_?core\.(multiarray|numeric)\.(_reconstruct|scalar|_frombuffer)|random\.(\w+\.)?__\w+_ctor|dtypes\.\w+|"
    r"dtype|ndarray|bool_?|u?int\d*|float\d*|complex\d*)|copy_?reg\._reconstructor|_codecs\.encode|"
    r"collections\.(OrderedDict|defaultdict|Counter|deque)|pathlib\.\w+|datetime\.\w+|argparse\.Namespace|"
    r"types\.SimpleNamespace|uuid\.UUID|decimal\.Decimal|fractions\.Fraction|"
    r"(builtins|__builtin__)\.(set|frozenset|dict|list|tuple|bytes|bytearray|complex|int|long|float|str|bool|slice|range|"
    r"object|type|getattr))$"
)
"""Functions, and classes of Python and numpy, that checkpoints need."""
_GETATTR = ("builtins.getattr", "__builtin__.getattr")
_TYPE = ("builtins.type", "__builtin__.type")


def _is_member(of: Any, name: Any) -> bool:
    """True of a member of an enumeration, as Python 3.11 writes it, and of a class within a class.

    No class of those that are allowed is an enumeration, and in torch members have capitals; methods have none.
    """
    return (
        isinstance(of, Name) and isinstance(name, str) and name.isidentifier() and not name.startswith("_")
        and _CLASS.match(of.name.rpartition(".")[2]) is not None and not _FUNCTIONS.match(of.name)
        and (not of.name.startswith("torch.") or name[0].isupper())
    )  # fmt: skip


_CLASS = re.compile(r"_*[A-Z]\w*$")
_PYTHON = frozenset(getattr(sys, "stdlib_module_names", ())) | frozenset(
    (
        "os", "posix", "nt", "subprocess", "sys", "runpy", "importlib", "socket", "shutil", "builtins", "__builtin__",
        "pty", "pdb", "bdb", "code", "ctypes", "multiprocessing", "webbrowser", "asyncio", "operator", "functools",
        "pickle", "types", "timeit", "tempfile", "urllib", "http", "logging", "distutils", "idlelib", "pydoc",
    )
)  # fmt: skip
"""Packages of Python itself: all of them since Python 3.10, before it those that hostile pickles use most."""


class Name(NamedTuple):
    """A function or a class, by its name."""

    name: str


class Inert:
    """An object that was not made: what would be called, with what, and its state.

    Args:
        of: the function or class.
        args: its arguments.
    """

    __slots__ = ("args", "items", "keywords", "of", "pairs", "state")

    def __init__(self, of: Any, args: tuple[Any, ...], keywords: Any = None) -> None:
        self.of, self.args, self.keywords = of, args, keywords
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: dict[Any, Any] = {}

    @property
    def name(self) -> str:
        return self.of.name if isinstance(self.of, Name) else type(self.of).__name__

    @property
    def fields(self) -> dict[str, Any]:
        """The attributes of the object."""
        # An object with slots has two dictionaries, of which one may be ``None``.
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        return {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}


class Persistent(NamedTuple):
    """Something that lies outside of the pickle."""

    id: Any


class _Bounded:
    """A stream that gives no more than it has, and counts how often it is asked."""

    def __init__(self, stream: BinaryIO, path: str) -> None:
        self._stream, self._path, self._count = stream, path, 0
        begin = stream.tell()
        self._left = stream.seek(0, 2) - begin
        stream.seek(begin)

    def read(self, size: int) -> bytes:
        self._take(size)
        return self._stream.read(size)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[:] = data
        return len(data)

    def readline(self) -> bytes:
        line = self._stream.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise DumpFormatError(f"{self._path}: the pickle in it has a line that does not end; copy the file again.")
        self._take(len(line))
        return line

    def _take(self, size: int) -> None:
        self._count += 1
        self._left -= size
        if not size >= 0 or self._left < 0:
            raise DumpFormatError(f"{self._path}: the pickle in it ends too early; copy the file again.")
        if self._count > 2 * MOST_VALUES:
            raise DumpFormatError(
                f"{self._path}: its pickle has more than {MOST_VALUES} operations; it is no checkpoint."
            )


def load(stream: BinaryIO, path: str) -> Any:
    """The value of the pickle that begins where the stream is, which is behind it afterwards.

    Args:
        path: the file that it is from, for errors.

    Raises:
        DumpFormatError: it is damaged, or asks for what no checkpoint needs.
    """
    try:
        return _Unpickler(_Bounded(stream, path), path).load()
    except DumpFormatError:
        raise
    except (
        pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, struct.error, OverflowError,
        AttributeError, RecursionError,
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:100]
        raise DumpFormatError(
            f"{path}: the pickle in it is damaged ({type(error).__name__}: {reason}); copy the file again."
        ) from None


class _Unpickler(pickle._Unpickler):
    # Of the unpickler in Python; typeshed leaves them out.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]

    def __init__(self, stream: _Bounded, path: str) -> None:
        # Texts of Python 2 are bytes.
        super().__init__(stream, encoding="latin1")
        self._path = path
        self._asked = ""
        """A function that is no value, and was not called so far."""

    def persistent_load(self, pid: Any) -> Any:
        return Persistent(pid)

    def find_class(self, module: str, name: str) -> Any:
        whole = f"{module}.{name}"
        if not _FUNCTIONS.match(whole) and module.partition(".")[0] in _PYTHON | {"numpy"}:
            self._refuse(whole)
        self._asked = whole if whole in _GETATTR else self._asked
        return Name(whole)

    def load(self) -> Any:
        found = super().load()
        if self._asked:
            self._refuse(self._asked)
        return found

    def _refuse(self, name: str) -> NoReturn:
        raise DumpFormatError(
            f"{self._path}: refused: its pickle asks for {name[:100]}, which no checkpoint needs. Nothing of it "
            "was executed; do not load this file with anything else."
        )

    def _call(self, of: Any, args: Any, keywords: Any = None, makes: bool = False) -> Any:
        """The value of a call, or an `Inert` object; `makes` is True if only a class can be called in this way."""
        if not isinstance(of, Name) or not isinstance(args, tuple):
            raise ValueError("a call of what is no function")
        if not makes and not _FUNCTIONS.match(of.name) and not _CLASS.match(of.name.rpartition(".")[2]):
            self._refuse(of.name)
        if of.name in _GETATTR:
            self._asked = ""
            if len(args) != 2 or not _is_member(*args):
                self._refuse(of.name)
        if of.name in _TYPE and args not in ((None,), (...,), (NotImplemented,)):
            self._refuse(of.name)
        known = _PLAIN.get(of.name)
        found = None if known is None or keywords else known(args)
        return Inert(of, args, keywords) if found is None else found

    def _reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], args)

    def _new(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], args, makes=True)

    def _new_ex(self) -> None:
        keywords, args = self.stack.pop(), self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], args, keywords, makes=True)

    def _instantiate(self, klass: Any, args: Any) -> None:
        self.append(self._call(klass, tuple(args)))

    def _build(self) -> None:
        state, of = self.stack.pop(), self.stack[-1]
        if isinstance(of, Inert):
            of.state = state

    def _set_items(self) -> None:
        self._set(self.pop_mark())

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def _dictionary(self) -> None:
        pairs = self.pop_mark()
        self.append({})
        self._set(pairs)

    def _set(self, pairs: list[Any]) -> None:
        of = self.stack[-1]
        into = of.pairs if isinstance(of, Inert) else of
        for key, value in zip(pairs[::2], pairs[1::2]):
            into[_checked_key(key)] = value

    def _append(self) -> None:
        self._extend([self.stack.pop()])

    def _appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, values: list[Any]) -> None:
        of = self.stack[-1]
        if isinstance(of, set):
            of.update(map(_checked_key, values))
        else:
            (of.items if isinstance(of, Inert) else of).extend(values)

    def _frozen(self) -> None:
        self.append(frozenset(map(_checked_key, self.pop_mark())))

    def _bytearray(self) -> None:
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def _frame(self) -> None:
        # Frames are for speed; without them every operation is counted.
        self.read(8)

    def _extension(self) -> NoReturn:
        raise ValueError("it has an extension code (0x82 to 0x84), which no checkpoint needs")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.REDUCE[0]: _reduce, pickle.NEWOBJ[0]: _new, pickle.NEWOBJ_EX[0]: _new_ex, pickle.BUILD[0]: _build,
        pickle.SETITEMS[0]: _set_items, pickle.SETITEM[0]: _set_item, pickle.DICT[0]: _dictionary,
        pickle.APPEND[0]: _append, pickle.APPENDS[0]: _appends, pickle.ADDITEMS[0]: _appends,
        pickle.FROZENSET[0]: _frozen, pickle.BYTEARRAY8[0]: _bytearray, pickle.FRAME[0]: _frame,
        pickle.EXT1[0]: _extension, pickle.EXT2[0]: _extension, pickle.EXT4[0]: _extension,
    }  # fmt: skip


def _checked_key(key: Any) -> Any:
    """A key of a dictionary or a set; tuples that hold each other many times would take forever to hash."""
    if isinstance(key, (tuple, frozenset)):
        count, waiting = 0, [key]
        while waiting:
            one = waiting.pop()
            count += 1
            if count > _MOST_IN_KEY:
                raise ValueError("a key has too many values in it")
            if isinstance(one, (tuple, frozenset)):
                waiting += one
    return key


def _ordered(args: tuple[Any, ...]) -> Any:
    if not args:
        return {}
    pairs = args[0]
    if isinstance(pairs, dict):
        return dict(pairs)
    return {_checked_key(key): value for key, value in pairs} if isinstance(pairs, (list, tuple)) else None


def _set(args: tuple[Any, ...]) -> Any:
    if args and isinstance(args[0], (list, tuple, set, frozenset)):
        return set(map(_checked_key, args[0]))
    return None if args else set()


def _frozen_set(args: tuple[Any, ...]) -> Any:
    found = _set(args)
    return None if found is None else frozenset(found)


def _encoded(args: tuple[Any, ...]) -> Any:
    """Bytes, as protocol 2 writes them."""
    if len(args) == 2 and isinstance(args[0], str) and args[1] in ("latin1", "latin-1"):
        return args[0].encode("latin1")
    return None


def _bytes(args: tuple[Any, ...]) -> Any:
    return b"" if not args else bytes(args[0]) if isinstance(args[0], (bytes, bytearray)) else None


_PLAIN: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": lambda args: {},
    "collections.Counter": _ordered,
    "builtins.set": _set,
    "builtins.frozenset": _frozen_set,
    "__builtin__.set": _set,
    "__builtin__.frozenset": _frozen_set,
    "builtins.dict": _ordered,
    "_codecs.encode": _encoded,
    "builtins.bytearray": _bytes,
    "builtins.bytes": _bytes,
    "torch.Size": lambda args: tuple(args[0]) if args and isinstance(args[0], (list, tuple)) else None,
}
"""Calls whose result is a plain value; ``None`` where it is none after all."""
