"""The tokens of two sources, checked against each other before any work starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.errors import MsprobeException
from probe.rollout.sources import Rows
from probe.rollout.tokens import Tokens

Array = NDArray[Any]
_ABOVE_ZERO = 1e-3
"""A logarithm of a probability; rounding of the probability in bfloat16 gives no more than this above 0."""


@dataclass(frozen=True)
class Given:
    """The sources of a check; those that are not given are ``None``."""

    rollout: Rows
    training: Rows
    mask: Rows | None = None
    tokens: Rows | None = None
    prompt_lengths: Rows | None = None
    step: Rows | None = None
    sequences: Rows | None = None
    rollout_entropy: Rows | None = None
    current: Rows | None = None
    top_logprobs: Rows | None = None


def gather(given: Given) -> Tokens:
    """The tokens that count by the mask, with the values of the sources for them.

    Raises:
        MsprobeException: the sources do not fit each other; one sentence names the first place.
    """
    rollout, training = given.rollout, given.training
    if not len(rollout.values):
        raise MsprobeException(f"{rollout.name} holds no log-probabilities.")
    _fit(training, rollout)
    lengths, names = _sequences(given)
    of_tokens: dict[str, Any] = {
        name: _fit(rows, rollout).values
        for name, rows in (("ids", given.tokens), ("entropy", given.rollout_entropy), ("current", given.current))
        if rows is not None
    }
    if given.top_logprobs is not None:
        of_tokens["top"] = _candidates(given.top_logprobs, rollout)
    steps = rollout.steps if given.step is None else _number_per_sequence(given.step, lengths, names)
    ranks, prompts = rollout.ranks, given.prompt_lengths
    if len(lengths) != len(rollout.lengths):
        # Sequences are parts of one row.
        steps = None if given.step is None else steps
        ranks = None
    values = [_numbers(rows) for rows in (rollout, training)]
    if values[0].dtype != values[1].dtype:
        values = [each.astype(np.float64) for each in values]
    if "ids" in of_tokens:
        of_tokens["ids"] = _integers(of_tokens["ids"], given.tokens)
    if "current" in of_tokens:
        of_tokens["current"] = _numbers(given.current)
    tokens = Tokens(
        values[0], values[1], lengths, names, steps, ranks,
        None if prompts is None else _integers(_number_per_sequence(prompts, lengths, names), prompts),
        dtype=rollout.dtype or training.dtype, **of_tokens,
    )  # fmt: skip
    masked = _masked(tokens, given.mask, rollout)
    for rows, found in ((rollout, masked.rollout), (training, masked.training)):
        _refuse_above_zero(rows.name, found, masked, given.mask is not None)
    return masked


def _masked(tokens: Tokens, mask: Rows | None, rollout: Rows) -> Tokens:
    if mask is None:
        return _without_empty(tokens)
    kept = _zeros_and_ones(_fit(mask, rollout))
    if not kept.any():
        raise MsprobeException(
            f"{mask.name} is 0 for every token, so none is left; allowed: 1 for the tokens of responses, 0 for others."
        )
    found = _without_empty(tokens).only(kept)
    return found if len(found) == len(tokens) else _with(found, masked_out=len(tokens) - len(found))


def _zeros_and_ones(mask: Rows) -> Array:
    """The mask as booleans. Any other number is refused: a source with probabilities or ids would keep every token."""
    values = mask.values
    kept = values.astype(np.bool_)
    if values.dtype.kind == "b" or (values.dtype.kind in "fiu" and bool((values == kept).all())):
        return kept
    first = values[int(np.flatnonzero(values != kept)[0])] if values.dtype.kind in "fiu" else values.dtype
    raise MsprobeException(f"{mask.name} holds {first}; allowed: 1 for the tokens of responses, 0 for others.")


def _with(tokens: Tokens, **changes: Any) -> Tokens:
    return replace(tokens, **changes)


def _without_empty(tokens: Tokens) -> Tokens:
    """The tokens without sequences that have none, of which sums cannot be made."""
    left = np.flatnonzero(tokens.lengths)
    if len(left) == len(tokens.lengths):
        return tokens

    def rows(values: Array | None) -> Array | None:
        return None if values is None else values[left]

    return _with(
        tokens, lengths=tokens.lengths[left], names=[tokens.names[number] for number in left.tolist()],
        steps=rows(tokens.steps), ranks=rows(tokens.ranks), prompt_lengths=rows(tokens.prompt_lengths),
    )  # fmt: skip


def _fit(rows: Rows, to: Rows) -> Rows:
    """The rows, if they have the shape of others."""
    if len(rows.lengths) != len(to.lengths):
        if len(rows.values) == len(to.values) and 1 in (len(rows.lengths), len(to.lengths)):
            return rows
        raise MsprobeException(
            f"{rows.name} has {_shape(rows)}, and {to.name} {_shape(to)}; both need the same tokens."
        )  # fmt: skip
    if len(rows.values) != len(to.values) or not np.array_equal(rows.lengths, to.lengths):
        wrong = int(np.flatnonzero(rows.lengths != to.lengths)[0])
        raise MsprobeException(
            f"{rows.name} has {rows.lengths[wrong]} tokens in sequence {wrong}, and {to.name} {to.lengths[wrong]}; "
            "both need the same tokens."
        )
    return rows


def _candidates(rows: Rows, to: Rows) -> Array:
    """A row of numbers for each token."""
    count = len(to.values)
    width = len(rows.values) // max(count, 1)
    if len(rows.lengths) != count or not width or (rows.lengths != width).any():
        raise MsprobeException(
            f"{rows.name} has {len(rows.lengths)} rows of candidates; allowed: one for each of the {count} tokens of "
            f"{to.name}, of the same length."
        )
    return _numbers(rows).reshape(count, width)


def _shape(rows: Rows) -> str:
    count = len(rows.lengths)
    return f"{count} sequence{'s' * (count != 1)} with {len(rows.values)} tokens"


def _sequences(given: Given) -> tuple[Array, Any]:
    """The lengths and the names of sequences: rows, or tokens with one id each of a single row."""
    rollout, rows = given.rollout, given.sequences
    if rows is None:
        return rollout.lengths, range(len(rollout.lengths))
    ids = rows.values
    if len(ids) == len(rollout.values) and len(rollout.lengths) == 1:
        changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        starts = np.concatenate([[0], changes])
        lengths, ids = np.diff(np.concatenate([starts, [len(ids)]])), ids[starts]
    elif len(ids) == len(rollout.lengths):
        lengths = rollout.lengths
    else:
        raise MsprobeException(
            f"{rows.name} has {len(ids)} ids; allowed: one for each of the {len(rollout.lengths)} sequences, or for "
            f"each of the {len(rollout.values)} tokens of one row."
        )
    names, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise MsprobeException(f"{rows.name} has the id {names[counts > 1][0]} twice; allowed: each id once.")
    return lengths, ids.tolist()


def _number_per_sequence(rows: Rows, lengths: Array, names: Any) -> Array:
    """A number for each sequence: given so, or for each of its tokens."""
    values = rows.values
    if len(values) == len(lengths):
        return values
    if len(values) == int(lengths.sum()):
        return np.asarray(values[np.minimum(np.cumsum(lengths) - lengths, len(values) - 1)])
    raise MsprobeException(
        f"{rows.name} has {len(values)} numbers; allowed: one for each of the {len(names)} sequences."
    )


def _numbers(rows: Rows | None) -> Array:
    assert rows is not None
    values = rows.values
    if values.dtype.kind not in "fiu":
        raise MsprobeException(f"{rows.name} holds {values.dtype}, and log-probabilities are numbers.")
    # Of half precision the differences would round again.
    return np.asarray(values, np.float64 if values.dtype.itemsize == 8 else np.float32)


def _integers(values: Array, rows: Rows | None) -> Array:
    assert rows is not None
    if values.dtype.kind in "iu":
        return values
    found = values.astype(np.int64) if values.dtype.kind in "fb" else None
    if found is None or not np.array_equal(found, values):
        raise MsprobeException(f"{rows.name} holds {values.dtype} with values that are not whole numbers.")
    return found


def _refuse_above_zero(name: str, values: Array, tokens: Tokens, has_mask: bool) -> None:
    index = first_above_zero(values)
    if index is None:
        return
    sequence = tokens.sequence_of(index)
    hint = "" if has_mask else " Padding may be filled with it: give the mask of the responses."
    raise MsprobeException(
        f"{name}: the log-probability at sequence {tokens.names[sequence]}, token "
        f"{index - int(tokens.starts[sequence])} is {values[index]:.6g}; allowed: at most 0.{hint}"
    )


def first_above_zero(values: Array) -> int | None:
    """The index of the largest log-probability, if it is above 0 by more than rounding. NaN and infinities are not."""
    finite = np.isfinite(values)
    most = np.max(values, where=finite, initial=-np.inf) if values.dtype.kind == "f" else np.max(values, initial=0)
    return int(np.flatnonzero(values == most)[0]) if most > _ABOVE_ZERO else None


def named(sources: Mapping[str, Rows | None]) -> Given:
    """The sources by the names of the arguments."""
    return Given(**sources)  # type: ignore[arg-type]
