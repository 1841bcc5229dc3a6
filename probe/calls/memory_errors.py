"""Errors that tell of missing memory, and nothing of the inputs of a call."""

from __future__ import annotations

_WORDS = (
    "out of memory", "can't allocate", "cannot allocate", "failed to allocate", "bad_alloc", "bad allocation",
    "memory isn't enough", "memory not enough",
)  # fmt: skip
"""Frameworks raise RuntimeError where their own allocator gets no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if there was no memory for a call, on the host or on a device."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _WORDS)


def raise_unless_refusal(error: Exception) -> None:
    """Raise the error of a call again if it says nothing of the call's inputs or settings.

    Raises:
        MemoryError: there was no memory for the call.
        RecursionError: the stack was too deep already.
    """
    if isinstance(error, RecursionError):
        raise error
    if is_out_of_memory(error):
        raise MemoryError(str(error)) from error
