"""What every ``backend_<name>.py`` is made of: the plain data it gives to the tests, and scripts in new processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import forks

# The very package that is tested, installed or not.
PATHS = os.pathsep.join([str(Path(__file__).parent), forks.CHECKOUT])


class Outcome(NamedTuple):
    """What a forward and backward pass gave, as numpy arrays."""

    output: Any
    inputs: list[Any]
    """Gradients of the inputs, ``None`` for those that take none."""
    parameters: dict[str, Any]


class Api(NamedTuple):
    """A function under its neutral name: what it is called in a dump, and where a user finds it."""

    base: str
    owner: Any
    attribute: str
    operator: Callable[..., Any] | None = None
    """The function of module `operator` with which a user calls a method such as ``__add__``."""

    @property
    def call(self) -> Callable[..., Any]:
        """What a program that says ``owner.attribute`` gets at this moment, which may differ while collecting."""
        return self.operator or getattr(self.owner, self.attribute)


def api_objects(apis: dict[str, Api]) -> dict[str, Any]:
    """The functions as users can reach them, and whether they are the owner's own; to be compared by identity."""
    found = {name: getattr(api.owner, api.attribute) for name, api in apis.items()}
    own = {f"{name}, not inherited": api.attribute in vars(api.owner) for name, api in apis.items()}
    return {**found, **own}


def run_script(backend: str, head: str, source: str, *arguments: str, cwd: Path, code: int = 0) -> str:
    """Run `head` and `source` in a process of their own that must end with `code`; what it wrote to the terminal."""
    path, output = cwd / "script.py", cwd / "script.out"
    path.write_text(head + source, encoding="utf-8")
    (ended,) = forks.server(*forks.with_tool(backend)).run(
        path, arguments, environment={**os.environ, "PYTHONPATH": PATHS}, output=(output, output), timeout=120,
        tear_down=True,
    )  # fmt: skip
    assert ended.status == code, ended.out
    return ended.out
