"""``probe.response_anomaly``: responses that repeat themselves, are garbled, or have characters out of nowhere.

A response is judged in windows of 128 tokens, each 64 tokens after the one before it, by three signs: the sum of the
probabilities of the top k candidates, the log-probability of the best one, and the token ids. The limits are those of
msProbe's package `response_anomaly`, as its documentation gives them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe.common.errors import MsprobeException
from probe.rollout.gathering import first_above_zero

WINDOW, STRIDE = 128, 64
"""Tokens."""
REPETITION, GARBLED, RARE = "repetition", "garbled", "rare_character"
"""The kinds; of several the first one in this order is named."""
_LEAST_SUM = 0.4
"""A sum of the largest probabilities below which a token was a guess of the model, as msProbe documents it."""
_LEAST_CATEGORIES = 2
"""Kinds of characters of a token that is mixed, as msProbe documents it."""
_RARE_TOP = -6.0
"""A log-probability below which a token is rare, as msProbe documents it."""
_GARBLED_SHARE, _GARBLED_TOP, _GARBLED_WINDOWS = 0.2, -5.0, 2
_NGRAM = 3
"""Tokens of one n-gram, as msProbe documents it."""
_LEAST_DISTINCT = 0.2
"""Share of distinct n-grams below which a window repeats itself, as msProbe documents it."""
_MOST_CORRELATED = 0.65
"""Correlation above which a window repeats itself, as msProbe documents it."""
_REPEATED_TOP = -0.2
"""Mean log-probability above which a window is looked at for repeats, as msProbe documents it."""
_WINDOWS_OF_ONE, _WINDOWS_OF_BOTH = 14, 2
_SHORTEST = 32
"""Tokens of a window, below which a share means nothing. A guess."""
_ROWS = 2048
"""Windows that are judged at once, so that what is made on the way stays below some 10 MB."""

Array = NDArray[Any]


class ResponseAnomaly(NamedTuple):
    """One response that is ill."""

    sequence: int
    """The index of the response."""
    kind: str
    """``repetition``, ``garbled`` or ``rare_character``."""
    window: tuple[int, int]
    """The first tokens that show it, from and up to, counted from the begin of the response."""
    windows: int
    """The number of windows, or of rare tokens, that show it."""


@dataclass(frozen=True)
class _Responses:
    """All responses, one after the other."""

    starts: Array
    lengths: Array
    top: Array
    """The log-probability of the best candidate, or of the token itself."""
    tokens: Array | None
    sums: Array | None
    """Sums of the probabilities of the candidates; ``None`` without candidates."""
    categories: Array | None
    """Number of categories among the candidates; ``None`` where it is not known."""


def response_anomaly(
    logprobs: Any,
    tokens: Any = None,
    *,
    lengths: Any = None,
    mask: Any = None,
    candidates: Any = None,
    categories: Any = None,
) -> list[ResponseAnomaly]:
    """Find responses that are ill. The list is empty if none is.

    Args:
        logprobs: The log-probabilities of the top k candidates, ``[sequences, length, k]``; or those of the sampled
            tokens alone, ``[sequences, length]``, by which only repetition is judged. A sequence of arrays for
            responses of several lengths.
        tokens: The ids of the sampled tokens, ``[sequences, length]``. Without them repetition is not judged.
        lengths: The number of tokens of each response; what follows is padding.
        mask: True for each token of a response, which are the first ones of its row; instead of `lengths`.
        candidates: The ids of the candidates, of the shape of `logprobs`.
        categories: The category of characters of each token id, such as `categories_of` gives. Without `candidates` and
            `categories`, a rare character is known by the best log-probability alone.

    Raises:
        MsprobeException: shapes do not fit, a log-probability is above 0, or both `lengths` and `mask` are given.

    Example:
        >>> sure = np.full((1, 300), -0.01)
        >>> response_anomaly(sure, tokens=np.resize([7, 8, 9], (1, 300)))
        [ResponseAnomaly(sequence=0, kind='repetition', window=(0, 128), windows=4)]
    """
    return _judged(_responses(logprobs, tokens, lengths, mask, candidates, categories))


def flat_response_anomaly(lengths: Array, logprobs: Array, tokens: Array | None) -> list[ResponseAnomaly]:
    """Anomalies of responses that lie end to end.

    Args:
        lengths: The number of tokens of each response.
        logprobs: ``[tokens, k]`` of candidates, or ``[tokens]`` of the sampled ones alone.
        tokens: Their ids.
    """
    starts = (np.cumsum(lengths) - lengths).astype(np.int64)
    top, sums = _best_and_sum(logprobs)
    return _judged(_Responses(starts, np.asarray(lengths, np.int64), top, tokens, sums, None))


def _judged(responses: _Responses) -> list[ResponseAnomaly]:
    judged = [_repetition(responses), _garbled(responses), _rare(responses)]
    ill = sorted({sequence for each in judged for sequence in each})
    return [next(each[sequence] for each in judged if sequence in each) for sequence in ill]


def anomaly_column(anomalies: Sequence[ResponseAnomaly], sequences: int) -> list[str]:
    """The cell of each sequence in a table: ``repetition, tokens 64 to 192``, empty for a sound one.

    Args:
        anomalies: What `response_anomaly` found.
        sequences: The number of sequences.
    """
    cells = [""] * sequences
    for sequence, kind, (first, end), _ in anomalies:
        cells[sequence] = f"{kind}, tokens {first} to {end - 1}"
    return cells


_SCRIPTS = (
    "LATIN",
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "HANGUL",
    "CYRILLIC",
    "GREEK",
    "ARABIC",
    "HEBREW",
    "THAI",
    "DEVANAGARI",
)


def categories_of(texts: Sequence[str]) -> Array:
    """The category of characters of each text of a vocabulary: its script, digits, punctuation, or another.

    Args:
        texts: The text of each token id, in order.
    """
    return np.fromiter((_category(text) for text in texts), np.int16, len(texts))


def _category(text: str) -> int:
    for character in text.strip(" \u0120\u2581"):
        kind = unicodedata.category(character)
        if kind[0] == "L":
            name = unicodedata.name(character, "").partition(" ")[0]
            return _SCRIPTS.index(name) if name in _SCRIPTS else len(_SCRIPTS)
        return len(_SCRIPTS) + 1 + "NPSZCM".index(kind[0])
    return len(_SCRIPTS) + 1 + "NPSZCM".index("Z")


# --- the responses as flat arrays


def _responses(logprobs: Any, tokens: Any, lengths: Any, mask: Any, candidates: Any, categories: Any) -> _Responses:
    rows = _rows("logprobs", logprobs)
    known = _lengths(rows, lengths, mask)
    cut = [row[:length] for row, length in zip(rows, known.tolist())]
    flat = np.concatenate(cut) if cut else np.zeros(0)
    above = first_above_zero(flat.ravel())
    if above is not None:
        token = above // (flat.shape[1] if flat.ndim > 1 else 1)
        sequence = int(np.searchsorted(np.cumsum(known), token, side="right"))
        raise MsprobeException(
            f"logprobs has {flat.ravel()[above]:.6g} in sequence {sequence}; allowed: log-probabilities, at most 0."
        )
    ids = None if tokens is None else _like("tokens", tokens, known, 1)
    starts = np.concatenate(([0], np.cumsum(known)[:-1])).astype(np.int64) if len(known) else known
    top, sums = _best_and_sum(flat)
    several = None
    if candidates is not None and categories is not None:
        several = _distinct(np.asarray(categories)[_like("candidates", candidates, known, 2)])
    return _Responses(starts, known, top, ids, sums, several)


def _best_and_sum(flat: Array) -> tuple[Array, Array | None]:
    """The best log-probability of each token, and the sum of the probabilities of its candidates if there are any."""
    if flat.ndim == 1:
        return flat.astype(np.float64), None
    with np.errstate(all="ignore"):
        wide = flat.astype(np.float64)
        return wide.max(axis=1), np.exp(wide).sum(axis=1)


def _rows(name: str, values: Any) -> list[Array]:
    rows = _arrays(name, values)
    if any(row.ndim != rows[0].ndim or row.ndim not in (1, 2) or row.shape[1:] == (0,) for row in rows):
        shapes = ", ".join(str(list(row.shape)) for row in rows[:3])
        raise MsprobeException(
            f"{name} has rows of shape {shapes}; allowed: [length] or [length, k] for each sequence."
        )
    return rows


def _arrays(name: str, values: Any) -> list[Array]:
    """An array of numbers for each sequence.

    Raises:
        MsprobeException: `values` is no sequence, or one of its rows has other elements than numbers.
    """
    try:
        rows = [np.asarray(row) for row in values]
        # `None` is a number that is missing.
        rows = [row.astype(np.float64) if row.dtype.kind == "O" else row for row in rows]
    except (TypeError, ValueError) as error:
        raise MsprobeException(
            f"{name} is of type {type(values).__name__} ({error}); allowed: a row of numbers for each sequence."
        ) from None
    other = next((row.dtype for row in rows if row.dtype.kind not in "biuf"), None)
    if other is not None:
        raise MsprobeException(f"{name} has elements of type {other}; allowed: a row of numbers for each sequence.")
    return rows


def _lengths(rows: Sequence[Array], lengths: Any, mask: Any) -> Array:
    if lengths is not None and mask is not None:
        raise MsprobeException("lengths and mask are both given; allowed: one of them.")
    have = np.array([len(row) for row in rows], np.int64)
    if mask is not None:
        masks = [row.astype(bool) for row in _arrays("mask", mask)]
        if [len(row) for row in masks] != have.tolist():
            raise MsprobeException(f"mask has {len(masks)} rows of other lengths than the {len(rows)} of logprobs.")
        lengths = [np.count_nonzero(row) for row in masks]
        if any(not row[:length].all() for row, length in zip(masks, lengths)):
            raise MsprobeException("mask has gaps; allowed: a response begins with its row and ends once.")
    if lengths is None:
        return have
    known = np.asarray(lengths, np.int64)
    if known.shape != have.shape or (known > have).any() or (known < 0).any():
        raise MsprobeException(
            f"lengths is {known.tolist()[:5]}; allowed: {len(have)} numbers, at most {have.tolist()[:5]}."
        )
    return known


def _like(name: str, values: Any, lengths: Array, dimensions: int) -> Array:
    rows = _arrays(name, values)
    fits = len(rows) == len(lengths) and all(
        row.ndim == dimensions and len(row) >= length for row, length in zip(rows, lengths.tolist())
    )
    if not fits:
        raise MsprobeException(f"{name} has {len(rows)} rows, or shorter ones; allowed: as logprobs.")
    cut = [row[:length] for row, length in zip(rows, lengths.tolist())]
    return np.concatenate(cut) if cut else np.zeros(0, np.int64)


def _distinct(rows: Array) -> Array:
    """The number of distinct values in each row."""
    ordered = np.sort(rows, axis=1)
    distinct: Array = 1 + np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    return distinct


# --- windows


class _Windows(NamedTuple):
    """Some windows of all responses, a row each."""

    sequence: Array
    start: Array
    """From the begin of the response."""
    length: Array
    positions: Array
    """Positions in the flat arrays, ``[windows, WINDOW]``."""
    valid: Array
    """False behind the end of a response."""

    def mean(self, values: Array) -> Array:
        """The mean over the tokens of each window that are `valid`."""
        means: Array = np.where(self.valid, values, 0).sum(axis=1) / self.length
        return means


def _windows(responses: _Responses) -> Iterator[_Windows]:
    numbers = np.where(responses.lengths >= _SHORTEST, 1 + np.maximum(0, -(-(responses.lengths - WINDOW) // STRIDE)), 0)
    sequence = np.repeat(np.arange(len(numbers)), numbers)
    order = np.arange(len(sequence)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    # The last window ends where the response does.
    start = np.minimum(order * STRIDE, np.maximum(0, responses.lengths[sequence] - WINDOW))
    for first in range(0, len(sequence), _ROWS):
        of, begin = sequence[first : first + _ROWS], start[first : first + _ROWS]
        length = np.minimum(WINDOW, responses.lengths[of] - begin)
        offsets = np.arange(WINDOW)
        valid = offsets < length[:, None]
        positions = responses.starts[of][:, None] + begin[:, None] + np.minimum(offsets, length[:, None] - 1)
        yield _Windows(of, begin, length, positions, valid)


def _ill(
    kind: str, responses: _Responses, signs: Callable[[_Windows], Array], enough: Callable[[Array, Array], Array]
) -> dict[int, ResponseAnomaly]:
    """The responses of which enough windows show a sign.

    Args:
        kind: The kind that they have.
        responses: All of them.
        signs: Gives the number of signs that each window shows.
        enough: Tells of each response, by its windows with any and with two signs, if it is ill.
    """
    total = len(responses.lengths)
    some, both = np.zeros(total, np.int64), np.zeros(total, np.int64)
    first = np.full(total, -1, np.int64)
    end = np.zeros(total, np.int64)
    for windows in _windows(responses):
        shown = signs(windows)
        np.add.at(some, windows.sequence[shown > 0], 1)
        np.add.at(both, windows.sequence[shown > 1], 1)
        for row in np.flatnonzero(shown > 0).tolist():
            sequence = int(windows.sequence[row])
            if first[sequence] < 0:
                first[sequence] = windows.start[row]
                end[sequence] = windows.start[row] + windows.length[row]
    return {
        i: ResponseAnomaly(i, kind, (int(first[i]), int(end[i])), int(some[i]))
        for i in np.flatnonzero(enough(some, both)).tolist()
    }


# --- the three kinds


def _repetition(responses: _Responses) -> dict[int, ResponseAnomaly]:
    if responses.tokens is None:
        return {}
    # Small numbers, three of which fit into one of 64 bits.
    values, tokens = np.unique(responses.tokens, return_inverse=True)
    tokens = tokens.reshape(-1).astype(np.int64)
    base = len(values)

    # Most windows are not sure, which their mean tells at once.
    whole = np.concatenate([[0.0], np.cumsum(responses.top)])

    def signs(windows: _Windows) -> Array:
        first = windows.positions[:, 0]
        shown = np.zeros(len(first), np.int64)
        is_sure = whole[first + windows.length] - whole[first] > _REPEATED_TOP * windows.length
        if is_sure.any():
            sure = _Windows(*(each[is_sure] for each in windows))
            rows = tokens[sure.positions]
            repeats = _distinct_share(rows, sure, base) < _LEAST_DISTINCT
            shown[is_sure] = repeats.astype(np.int64) + (_correlation(rows, sure) > _MOST_CORRELATED)
        return shown

    return _ill(REPETITION, responses, signs, lambda some, both: (some >= _WINDOWS_OF_ONE) | (both >= _WINDOWS_OF_BOTH))


def _distinct_share(rows: Array, windows: _Windows, base: int) -> Array:
    """The number of distinct 3-grams over that of all."""
    codes = rows[:, :-2] * (base * base) + rows[:, 1:-1] * base + rows[:, 2:]
    inside = windows.valid[:, _NGRAM - 1 :]
    # Positions outside come first, and count once if there are any.
    ordered = np.sort(np.where(inside, codes, -1), axis=1)
    distinct = 1 + np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1) - ~inside.all(axis=1)
    share: Array = distinct / (windows.length - _NGRAM + 1)
    return share


def _correlation(rows: Array, windows: _Windows) -> Array:
    """The largest share of tokens that equal the one a lag before, over all lags up to half of the window."""
    best = np.zeros(len(rows))
    for lag in range(1, WINDOW // 2 + 1):
        equal = (rows[:, lag:] == rows[:, :-lag]) & windows.valid[:, lag:]
        pairs = np.maximum(windows.length - lag, 1)
        share = np.where(lag <= windows.length // 2, equal.sum(axis=1) / pairs, 0)
        np.maximum(best, share, out=best)
    return best


def _garbled(responses: _Responses) -> dict[int, ResponseAnomaly]:
    sums, categories = responses.sums, responses.categories
    if sums is None:
        return {}
    low = sums < _LEAST_SUM
    mixed = np.zeros_like(low) if categories is None else low & (categories >= _LEAST_CATEGORIES)

    def signs(windows: _Windows) -> Array:
        is_low = low[windows.positions] & windows.valid
        share = windows.mean(is_low) >= _GARBLED_SHARE
        mixed_share = windows.mean(mixed[windows.positions]) >= _GARBLED_SHARE
        top = np.where(is_low, responses.top[windows.positions], 0).sum(axis=1) / np.maximum(is_low.sum(axis=1), 1)
        shown: Array = (share & (mixed_share | (top < _GARBLED_TOP))).astype(np.int64)
        return shown

    # A response of one window has no second.
    needed = np.where(responses.lengths > WINDOW, _GARBLED_WINDOWS, 1)
    return _ill(GARBLED, responses, signs, lambda some, both: some >= needed)


def _rare(responses: _Responses) -> dict[int, ResponseAnomaly]:
    if responses.sums is None:
        return {}
    rare = responses.top < _RARE_TOP
    if responses.categories is not None:
        rare |= (responses.sums < _LEAST_SUM) & (responses.categories >= _LEAST_CATEGORIES)
    positions = np.flatnonzero(rare)
    sequence = np.searchsorted(responses.starts, positions, side="right") - 1
    ill, first, number = np.unique(sequence, return_index=True, return_counts=True)
    begin = positions[first] - responses.starts[ill] if len(ill) else positions
    return {
        int(i): ResponseAnomaly(int(i), RARE, (int(at), int(at) + 1), int(count))
        for i, at, count in zip(ill, begin, number)
    }
