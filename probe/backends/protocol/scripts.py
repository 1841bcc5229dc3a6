"""A recorded call as a script of its own: the words that group `Execution` of an adapter has for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from typing_extensions import Protocol

if TYPE_CHECKING:
    # A training that is only collected from needs no numpy.
    from numpy.typing import NDArray


class ScriptParts(NamedTuple):
    """The parts of a stand-alone script of one call; texts are Python."""

    title: str
    found: str
    """The observation for which it was written; like `title`, it is between the quotes of a docstring."""
    device: str
    definitions: str
    """``INPUTS``, a list; ``OF_OUTPUTS``, the gradients of some outputs; ``RECORDED``, results by name; and
    ``RANDOM_STATE``, what `Execution.restore_draws` takes on `device`. Those that there are."""
    needs_folder: bool
    """True if they name files by ``pathlib``."""
    dtypes: Sequence[str]
    """The dtypes of the inputs, plain names."""
    variables: Sequence[str]
    """The names of the inputs in `call`."""
    call: Callable[[str], str]
    """The call as a statement that begins with the given text, such as an indented ``output =``."""
    autocast: str
    """The dtype to which it is cast; empty without."""
    results: Sequence[tuple[str, str]]
    """Names and expressions of the tensors in ``output``."""
    of_outputs: Sequence[str]
    """The expressions of those to which ``OF_OUTPUTS`` belong, in that order; none without a backward."""
    differentiated: Sequence[tuple[str, int]]
    """The names of the gradients, and the places of their inputs."""
    has_recorded: bool
    has_random_state: bool


class ScriptWords(Protocol):
    """The way in which a script that imports nothing but the framework spells a recorded call."""

    SUFFIX: str
    """The suffix of files of tensors."""

    def spelled(self, base: str, attributes: Mapping[str, Any] | None, called: str = "") -> str | None:
        """``torch.nn.functional.silu``, or for a method ``torch.Tensor.add_``; ``None`` where it has no name.

        Args:
            base: The name in records.
            attributes: What a primitive was made with; ``None`` of a function.
            called: The full name of the function, where `base` is the name of another one.
        """

    def plain(self, entry: Mapping[str, Any]) -> str:
        """The result of `Execution.plain_value` for an entry; the device is ``device``, a dtype goes through ``kind``.

        Raises:
            UnknownValue: it cannot be made from what the dump says.
        """

    def inline(self, numbers: str, dtype: str) -> str:
        """A tensor of nested lists."""

    def loaded(self, path: str, dtype: str) -> str:
        """A tensor from the file at `path`, which is an expression."""

    def content(self, values: NDArray[Any], dtype: str) -> bytes:
        """The bytes of that file."""

    def script(self, parts: ScriptParts) -> str:
        """The script: it runs the call on a device and exactly, and prints the worst element of each result."""
