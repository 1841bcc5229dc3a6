from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probe.common.interfaces import ApiName, Listener

class FunctionCalls:
    # The parts are in the order of the first enumeration in _function_calls.c.
    def __new__(cls, listener: Listener, *parts: Any) -> FunctionCalls: ...
    def observe(
        self, name: ApiName, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Any: ...
    def observe_beneath(
        self, name: ApiName, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Any: ...
    def hook(self, call: Any, number: int, is_written: Callable[[], bool] | None, /) -> Callable[..., None]: ...
    def passing(self, mode: Any, /) -> Callable[..., Any]: ...

class PassedBy:
    passing: Callable[..., Any] | None
