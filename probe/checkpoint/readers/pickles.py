"""Pickles read as data: nothing of one is imported, called or made.

A pickle is a program for a small machine. This one runs it with a difference: the name of a function or a class
becomes a `Name`, and calling one becomes an `Inert` object that has the name and the arguments. Readers know
what a few of these stand for. Plain values are themselves, and `collections.OrderedDict` becomes a dictionary.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Union

from probe.common.errors import DumpFormatError

MOST_VALUES = 20_000_000
"""Operations of one pickle; a checkpoint of 100,000 tensors takes five million."""
_MOST_IN_KEY = 1000
"""Values in a key, which are all visited to hash it; a guess, since keys of checkpoints have one or two."""
_HOSTILE = frozenset(
    (
        "os", "posix", "nt", "subprocess", "sys", "runpy", "importlib", "socket", "shutil", "pty", "pdb", "code",
        "codeop", "ctypes", "multiprocessing", "webbrowser", "asyncio", "signal", "threading", "timeit", "pip",
        "tempfile", "urllib", "http", "requests", "pickle", "_pickle", "marshal", "types", "inspect", "commands",
        "platform", "cProfile", "trace",
    )
)  # fmt: skip
"""Packages that no checkpoint needs. What is not among them is inert all the same; a refusal says who made the file."""
_HOSTILE_NAMES = frozenset(
    f"{module}.{name}"
    for module in ("builtins", "__builtin__")
    for name in ("eval", "exec", "compile", "open", "__import__", "input", "breakpoint", "globals", "locals", "vars")
)


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
        """Its attributes."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:
            state = {**(state[0] or {}), **(state[1] or {})}
        return state if isinstance(state, dict) else {}


class Persistent(NamedTuple):
    """Something that lies outside of the pickle."""

    id: Any


Buffer = Union[bytes, memoryview]
_MARK = object()


def load(data: Buffer, path: str, start: int = 0) -> tuple[Any, int]:
    """The value of a pickle, and the position behind it.

    Args:
        data: the pickle.
        path: the file that it is from, for errors.
        start: the position at which it begins.

    Raises:
        DumpFormatError: it is damaged, or asks for what no checkpoint needs.
    """
    # An error keeps the frames of the machine; a view that lives in them would keep a mapped file from being closed.
    with memoryview(data) as view:
        try:
            return _Machine(view, path, start).run()
        except DumpFormatError:
            raise
        except (
            IndexError,
            KeyError,
            ValueError,
            TypeError,
            struct.error,
            OverflowError,
            AttributeError,
            RecursionError,
        ) as error:
            reason = " ".join(str(error).split())[:100]
            raise DumpFormatError(
                f"{path}: the pickle in it is damaged ({type(error).__name__}: {reason}); copy the file again."
            ) from None


class _Machine:
    def __init__(self, data: memoryview, path: str, start: int) -> None:
        self._data, self._path, self._at = data, path, start
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> tuple[Any, int]:
        data, table = self._data, _TABLE
        for _ in range(MOST_VALUES):
            operation = data[self._at]
            self._at += 1
            if operation == 0x2E:  # STOP
                return self._stack.pop(), self._at
            step = table.get(operation)
            if step is None:
                raise DumpFormatError(
                    f"{self._path}: its pickle has the operation {operation:#04x} at byte {self._at - 1}, which no "
                    "checkpoint needs; the file is damaged or no checkpoint."
                )
            step(self)
        raise DumpFormatError(f"{self._path}: its pickle has more than {MOST_VALUES} operations; it is no checkpoint.")

    # --- reading

    def take(self, size: int) -> memoryview:
        if size < 0 or self._at + size > len(self._data):
            raise DumpFormatError(f"{self._path}: the pickle in it ends too early; copy the file again.")
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def number(self, form: str, size: int) -> Any:
        return struct.unpack(form, self.take(size))[0]

    def line(self) -> str:
        end = self._at
        while self._data[end] != 0x0A:
            end += 1
        found = bytes(self._data[self._at : end])
        self._at = end + 1
        return found.decode("utf-8", "surrogatepass")

    def text(self, size: int) -> str:
        return bytes(self.take(size)).decode("utf-8", "surrogatepass")

    # --- the stack

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        found = self._stack.pop()
        if found is _MARK:
            raise ValueError("a mark instead of a value")
        return found

    def top(self) -> Any:
        return self._stack[-1]

    def to_mark(self) -> list[Any]:
        stack = self._stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                found = stack[at + 1 :]
                del stack[at:]
                return found
        raise ValueError("no mark")

    def remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def recall(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    # --- what is not plain

    def name(self, module: str, name: str) -> Name:
        whole = f"{module}.{name}"
        if module.partition(".")[0] in _HOSTILE or whole in _HOSTILE_NAMES:
            raise DumpFormatError(
                f"{self._path}: refused: its pickle asks for {whole[:100]}, which no checkpoint needs. Nothing of it "
                "was executed; do not load this file with anything else."
            )
        return Name(whole)

    def call(self, of: Any, args: Any, keywords: Any = None) -> Any:
        known = _PLAIN.get(of.name) if isinstance(of, Name) else None
        found = None if known is None or not isinstance(args, tuple) or keywords else known(args)
        return Inert(of, args if isinstance(args, tuple) else (args,), keywords) if found is None else found

    def build(self) -> None:
        state, of = self.pop(), self._stack[-1]
        if isinstance(of, Inert):
            of.state = state

    def set_items(self, pairs: list[Any]) -> None:
        of = self._stack[-1]
        into = of.pairs if isinstance(of, Inert) else of
        for key, value in zip(pairs[::2], pairs[1::2]):
            into[_checked_key(key)] = value

    def append(self, values: list[Any]) -> None:
        of = self._stack[-1]
        if isinstance(of, set):
            of.update(map(_checked_key, values))
        else:
            (of.items if isinstance(of, Inert) else of).extend(values)


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


def _long(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _integer(machine: _Machine) -> Any:
    text = machine.line()
    return {"01": True, "00": False}.get(text) if text in ("00", "01") else int(text)


def _quoted(machine: _Machine) -> str:
    """A text of protocol 0, in quotes."""
    text = machine.line().strip()
    return text[1:-1] if len(text) > 1 else text


def _new(machine: _Machine) -> None:
    args = machine.pop()
    machine.push(machine.call(machine.pop(), args))


def _new_ex(machine: _Machine) -> None:
    keywords, args = machine.pop(), machine.pop()
    machine.push(machine.call(machine.pop(), args, keywords))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push(machine.name(str(module), str(name)))


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


def _dictionary(machine: _Machine) -> None:
    pairs = machine.to_mark()
    machine.push({})
    machine.set_items(pairs)


def _tuple(count: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(values)))

    return step


def _instance(machine: _Machine) -> None:
    module, name = machine.line(), machine.line()
    machine.push(machine.call(machine.name(module, name), tuple(machine.to_mark())))


def _object(machine: _Machine) -> None:
    of, *args = machine.to_mark()
    machine.push(machine.call(of, tuple(args)))


def _drop(machine: _Machine) -> None:
    machine._stack.pop()


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.append([value])


_Step = Callable[[_Machine], Any]
_TABLE: dict[int, _Step] = {
    ord("("): lambda m: m.push(_MARK),
    ord("0"): _drop,
    ord("1"): lambda m: m.to_mark(),
    ord("2"): lambda m: m.push(m.top()),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(m.number(">d", 8)),
    ord("I"): lambda m: m.push(_integer(m)),
    ord("J"): lambda m: m.push(m.number("<i", 4)),
    ord("K"): lambda m: m.push(m.number("<B", 1)),
    ord("M"): lambda m: m.push(m.number("<H", 2)),
    ord("L"): lambda m: m.push(int(m.line().rstrip("L"))),
    0x8A: lambda m: m.push(_long(m.take(m.number("<B", 1)))),
    0x8B: lambda m: m.push(_long(m.take(m.number("<i", 4)))),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("S"): lambda m: m.push(_quoted(m)),
    ord("T"): lambda m: m.push(bytes(m.take(m.number("<i", 4))).decode("latin1")),
    ord("U"): lambda m: m.push(bytes(m.take(m.number("<B", 1))).decode("latin1")),
    ord("V"): lambda m: m.push(m.line()),
    ord("X"): lambda m: m.push(m.text(m.number("<I", 4))),
    0x8C: lambda m: m.push(m.text(m.number("<B", 1))),
    0x8D: lambda m: m.push(m.text(m.number("<Q", 8))),
    ord("B"): lambda m: m.push(bytes(m.take(m.number("<I", 4)))),
    ord("C"): lambda m: m.push(bytes(m.take(m.number("<B", 1)))),
    0x8E: lambda m: m.push(bytes(m.take(m.number("<Q", 8)))),
    0x96: lambda m: m.push(bytearray(m.take(m.number("<Q", 8)))),
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.to_mark()),
    ord("a"): _append,
    ord("e"): lambda m: m.append(m.to_mark()),
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.to_mark())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("}"): lambda m: m.push({}),
    ord("d"): _dictionary,
    ord("s"): _set_item,
    ord("u"): lambda m: m.set_items(m.to_mark()),
    0x8F: lambda m: m.push(set()),
    0x90: lambda m: m.append(m.to_mark()),
    0x91: lambda m: m.push(frozenset(map(_checked_key, m.to_mark()))),
    ord("p"): lambda m: m.remember(int(m.line())),
    ord("q"): lambda m: m.remember(m.number("<B", 1)),
    ord("r"): lambda m: m.remember(m.number("<I", 4)),
    0x94: lambda m: m.memoize(),
    ord("g"): lambda m: m.recall(int(m.line())),
    ord("h"): lambda m: m.recall(m.number("<B", 1)),
    ord("j"): lambda m: m.recall(m.number("<I", 4)),
    ord("c"): lambda m: m.push(m.name(m.line(), m.line())),
    0x93: _stack_global,
    ord("R"): _new,
    0x81: _new,
    0x92: _new_ex,
    ord("i"): _instance,
    ord("o"): _object,
    ord("b"): lambda m: m.build(),
    ord("P"): lambda m: m.push(Persistent(m.line())),
    ord("Q"): lambda m: m.push(Persistent(m.pop())),
    0x80: lambda m: m.take(1),
    0x95: lambda m: m.take(8),
}
"""Functions of the operations; missing ones (extension codes, buffers outside of the file) are refused."""
