from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from probe.collect.active_calls import ActiveCall
from probe.common.interfaces import ApiName

def entries(
    values: Iterable[Any], direct: Callable[[Any], dict[str, Any] | None] | None, describe: Callable[..., Any], /
) -> list[Any]: ...

class PlainCalls:
    # The parts are in the order of the first enumeration in _calls.c.
    def __new__(cls, with_tree: bool, with_stacks: bool, *parts: Any) -> PlainCalls: ...
    def enter(
        self, api: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any], unobserved: Callable[..., Any], /
    ) -> Any: ...
    def leave(self, call: ActiveCall, output: Any, unobserved: Callable[..., Any], /) -> bool: ...
    def backward(
        self,
        call: ActiveCall,
        grad_output: Sequence[Any],
        grad_input: Sequence[Any],
        unobserved: Callable[..., Any],
        /,
    ) -> None: ...
