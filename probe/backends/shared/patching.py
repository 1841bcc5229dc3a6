"""Ways to be called in place of a function, or to change an attribute, and to leave no trace afterwards.

`CodeSwap` puts other code into a Python function object. The object stays the same one, so whoever imported it
earlier, by whatever name, is seen as well, and ``F.relu is F.relu`` holds throughout. `Attributes` replaces what an
owner holds under a name; it is for what has no code to swap: operators of a class and built-in functions. `Handles`
is several of these as one.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, Callable, TypeVar

from probe.common.callstack import MARK
from probe.common.interfaces import Handle

Handler = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Record = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called in the place of a function with what does its work, and its args and kwargs."""
_ABSENT = object()
_HANDLER = "__probe_handler"
"""The keyword-only argument of swapped code whose default is the handler."""
_Handle = TypeVar("_Handle", bound=Handle)


def each(actions: Iterable[Callable[[], object]]) -> None:
    """Call every one of `actions`, those after one that failed as well; the first failure is raised at the end."""
    first: Exception | None = None
    for action in actions:
        try:
            action()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


def remove_all(handles: list[_Handle], left: Callable[[_Handle], bool] | None = None) -> None:
    """Remove every one of `handles`, the last one first; what failed stays in the list, and is raised at the end.

    So does what is to be `left`, which is asked when its turn comes.
    """
    first: Exception | None = None
    for at in range(len(handles) - 1, -1, -1):
        try:
            if left is not None and left(handles[at]):
                continue
            handles[at].remove()
        except Exception as error:
            first = first or error
        else:
            del handles[at]
    if first is not None:
        raise first


class CodeSwap:
    """`function` calls `handler(args, kwargs)` while this is in place; `body` is a second function with its code.

    `changing` is called before the function gets other code, and after it has its own again.
    """

    def __init__(
        self, function: FunctionType, handler: Handler, changing: Callable[[CodeSwap], None] | None = None
    ) -> None:
        self._function = function
        self._handler = handler
        self._changing = changing
        self._original: CodeType | None = None
        self._trampoline: CodeType | None = None
        self._signature: inspect.Signature | None = None
        self._defaults: dict[str, Any] | None = None
        self._original_defaults: dict[str, Any] | None = None
        self.body: FunctionType = function

    def install(self) -> None:
        # The code is taken now, not earlier: someone may have put their own there since, and that is what must run.
        code = self._function.__code__
        if code is self._trampoline:
            # It was not taken away: something failed, or somebody had covered it and has put it back.
            if _HANDLER not in (self._function.__kwdefaults__ or {}):
                self._function.__kwdefaults__ = self._defaults
            return
        if code is not self._original:
            body, trampoline = _body_of(self._function), _trampoline(code)
            self._signature = _signature(self._function)
            self._original, self.body, self._trampoline = code, body, trampoline
        assert self._trampoline is not None
        if self._changing is not None:
            self._changing(self)
        # The default before the code that needs it, and in `restore` after it: another thread may call in between.
        defaults = self._function.__kwdefaults__
        if self._defaults is None or defaults is not self._original_defaults:
            self._original_defaults = defaults
            self._defaults = {**(defaults or {}), _HANDLER: self._handler}
        self._function.__kwdefaults__ = self._defaults
        self._function.__code__ = self._trampoline
        if self._signature is not None:
            self._function.__dict__.setdefault("__signature__", self._signature)

    def restore(self) -> None:
        # Someone else may have put their own code there meanwhile; that is theirs to undo, and what they put back then
        # still finds its default.
        if self._original is not None and self._function.__code__ is self._trampoline:
            self._function.__code__ = self._original
        is_original = self._function.__code__ is self._original
        if is_original and self._defaults is not None and self._function.__kwdefaults__ is self._defaults:
            self._function.__kwdefaults__ = self._original_defaults
        if self._signature is not None and self._function.__dict__.get("__signature__") is self._signature:
            del self._function.__dict__["__signature__"]
        if self._changing is not None and self._original is not None:
            self._changing(self)


def plain_swap(function: FunctionType, record: Record) -> CodeSwap:
    """A `CodeSwap` of a function that no compiler reads."""
    swap = CodeSwap(function, lambda args, kwargs: record(swap.body, args, kwargs))
    return swap


def argument(position: int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One argument of a call; ``None`` if it was not given.

    Arguments are not bound to a signature: a wrapper with ``functools.wraps`` has that of another function.
    """
    return args[position] if len(args) > position else kwargs.get(name)


_signatures: weakref.WeakKeyDictionary[FunctionType, tuple[CodeType, inspect.Signature | None]]
_signatures = weakref.WeakKeyDictionary()
"""By function, its code and its signature when it was asked for: most swaps are of the same few functions."""


def _signature(function: FunctionType) -> inspect.Signature | None:
    """The answer of `inspect.signature`, to be shown while the code is another.

    ``None`` if the function was given a signature, which stays, or has none that can be told.
    """
    if "__signature__" in function.__dict__:
        return None
    code, found = _signatures.get(function, (None, None))
    if code is not function.__code__:
        try:
            found = inspect.signature(function)
        except (TypeError, ValueError):
            found = None
        _signatures[function] = function.__code__, found
    return found


def _body_of(function: FunctionType) -> FunctionType:
    body = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    body.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(body, function)
    del body.__wrapped__  # type: ignore[attr-defined]  # it is the function, not around it
    return body


def _trampoline(original: CodeType) -> CodeType:
    """Code that forwards its arguments to the handler, another object each time, in the place of `original`."""
    # With name and place of the original: whoever asks for the function's source gets it.
    return _forwarding(original.co_freevars).replace(
        co_filename=original.co_filename, co_name=original.co_name, co_firstlineno=original.co_firstlineno
    )


@functools.lru_cache(maxsize=64)  # nearly all functions have no free variables
def _forwarding(free: tuple[str, ...]) -> CodeType:
    """Code that forwards its arguments to the handler, with the free variables of the original, as Python demands.

    The handler is the default of an argument that nobody passes. The function's globals are the user's and take no
    extra names, and a constant of the code could not be read by ``torch.compile``, which compiles the function together
    with its caller.
    """
    signature, call = f"*args, {_HANDLER}, **kwargs", f"return {_HANDLER}(args, kwargs)"
    source = f"def trampoline({signature}):\n {call}\n"
    if free:
        values = "".join(f" {name} = None\n" for name in free)
        inner = f" def trampoline({signature}):\n  {call}\n  ({', '.join(free)},)\n"
        source = f"def outer():\n{values}{inner} return trampoline\ntrampoline = outer()\n"
    scope: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), scope)
    code: CodeType = scope["trampoline"].__code__
    return code.replace(co_consts=(*code.co_consts, MARK))


class Attributes:
    """Attributes that were replaced, and what was there before."""

    def __init__(self) -> None:
        self._replaced: list[_Replaced] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        # vars, not getattr: an inherited attribute must be inherited again afterwards.
        before = vars(owner).get(name, _ABSENT)
        if before is value:
            return  # whoever had covered it took theirs away, and it is noted
        # Noted first: one that is noted and not set is left alone, one that is set and not noted would stay.
        self._replaced.append(_Replaced(owner, name, before, value))
        setattr(owner, name, value)

    @property
    def in_place(self) -> bool:
        """True if anything has not been put back."""
        return bool(self._replaced)

    def remove(self) -> None:
        """Put everything back; what fails is left for the next time, and what somebody else's stands in the place of.

        When that is taken away ours will be there again.
        """
        remove_all(self._replaced, _Replaced.is_covered)


class _Replaced:
    """`owner` holds `value` under `name` in the place of `before`."""

    __slots__ = ("_before", "_name", "_owner", "_value")

    def __init__(self, owner: Any, name: str, before: Any, value: Any) -> None:
        self._owner = owner
        self._name = name
        self._before = before
        self._value = value

    def is_covered(self) -> bool:
        """True if somebody else has replaced it again."""
        now = vars(self._owner).get(self._name, _ABSENT)
        return now is not self._value and now is not self._before

    def remove(self) -> None:
        owner, name, before = self._owner, self._name, self._before
        if vars(owner).get(name, _ABSENT) is not self._value:
            return  # what was there before is there again
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


class Handles:
    """Several handles as one; the last one is removed first. If one of them cannot be made, those before it go."""

    def __init__(self, handles: Iterable[Handle]) -> None:
        self._handles: list[Handle] = []
        try:
            for handle in handles:
                self._handles.append(handle)
        except BaseException:
            remove_all(self._handles)
            raise

    def remove(self) -> None:
        remove_all(self._handles)


def in_the_place_of(owner: Any, attribute: str, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """The result of `wrap` for a function that `owner` holds, for the same place: it is bound as the function was.

    A class may hold any callable: one that knows nothing of instances is called without them, and one that is a
    descriptor of its own kind makes what is called.
    """
    held = inspect.getattr_static(owner, attribute)
    if isinstance(held, (staticmethod, classmethod)):
        return type(held)(wrap(held.__func__))
    if not isinstance(owner, type) or isinstance(held, _BOUND_AS_METHODS):
        return wrap(getattr(owner, attribute))
    if not hasattr(type(held), "__get__"):
        return staticmethod(wrap(held))

    @functools.wraps(held)
    def bound(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return held.__get__(instance, type(instance))(*args, **kwargs)

    return wrap(bound)


_BOUND_AS_METHODS = (FunctionType, MethodDescriptorType, WrapperDescriptorType)


def wrap_attribute(owner: Any, attribute: str, wrap: Callable[[Callable[..., Any]], Any]) -> Attributes:
    """Replace a function that `owner` holds by what `wrap` makes of it."""
    attributes = Attributes()
    attributes.set(owner, attribute, in_the_place_of(owner, attribute, wrap))
    return attributes
