from collections.abc import Callable, Mapping, Sequence
from typing import Any

class Core:
    def __new__(
        cls,
        tracker: Any,
        graph: Any,
        listener: Any,
        methods: tuple[Callable[..., Any], Callable[..., Any]],
        passes: tuple[dict[int, Any], set[int]],
        functions: tuple[Callable[[], bool], Callable[[], int], Callable[[], int]],
        views: tuple[Any, Callable[[Any], Any], Callable[[Any], Any], type],
        keys: tuple[str, str, str],
        types: tuple[type, type, type, type, type, type],
        worth_noting: int,
        /,
    ) -> Core: ...
    def inputs(self, about: Any, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> tuple[int, list[Any]]: ...
    def watch(self, kind: type, call: Any, entered_at: int, inputs: list[Any], output: Any, /) -> None: ...
    def advance(self, number: int, /) -> None: ...
    def before_node(self, hook: PreHook, grad_output: tuple[Any, ...], /) -> None: ...
    def after_node(self, hook: PostHook, grad_input: tuple[Any, ...], /) -> None: ...

class _Hook(list[Any]):
    number: int
    name: str
    def __new__(cls, owner: Core, number: int, /) -> _Hook: ...

class PreHook(_Hook):
    def __call__(self, grad_output: tuple[Any, ...], /) -> None: ...

class PostHook(_Hook):
    def __call__(self, grad_input: tuple[Any, ...], grad_output: tuple[Any, ...], /) -> None: ...
