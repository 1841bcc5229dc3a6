"""``probe.fingerprint``: the weights of a running program in a file that is compared as a checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter, trends_of
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.errors import MissingDependency, MsprobeException

if TYPE_CHECKING:
    from probe.backends.protocol.trends import StoredWeight
    from probe.checkpoint.report import Checkpoint, Report

Path = Union[str, "os.PathLike[str]"]
_ALLOWED = "allowed: a module with weights, a state_dict with tensors, pairs of name and tensor"
_SHOWN = 3
"""Values of a mapping that an error names; a guess."""


class Fingerprint:
    """The fingerprint of the weights that a process holds: about a kilobyte for each, and no values."""

    def __init__(self, content: Checkpoint) -> None:
        self.content = content

    def save(self, path: Path) -> str:
        """Write the file, which ``msprobe ckpt_compare`` takes in place of a checkpoint; a folder is made if it lacks.

        Args:
            path: the file; one that is there is replaced. Ranks write files of different names into one folder.

        Returns: the path.

        Raises:
            MsprobeException: it cannot be written.
        """
        from probe.checkpoint.fingerprints import file
        from probe.common import files

        to = os.fspath(path)
        if os.path.dirname(to):
            files.make_folder(os.path.dirname(to))
        try:
            file.write(to, self.content)
        except OSError as error:
            raise MsprobeException(f"{to}: cannot be written: {error.strerror or error}.") from None
        return to

    def compare(self, other: Fingerprint) -> Report:
        """Compare these weights with others, as `probe.ckpt_compare` does."""
        from probe.checkpoint.comparison import compare_contents

        return compare_contents(self.content, other.content)


def fingerprint(
    weights: Any,
    *,
    step: int | None = None,
    rank: int | None = None,
    parts: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None,
) -> Fingerprint:
    """Take the fingerprint of weights: digests, statistics, a sketch and a few numbers of each.

    Every tensor is read once, on the host; nothing of it is kept. Of a distributed tensor (DTensor) the part of this
    rank is taken, and a folder of the files of all ranks is compared as one checkpoint.

    Args:
        weights: a module of PyTorch, a cell of MindSpore, a ``state_dict``, or pairs of a name and a tensor or array.
        step: the step of the training that they are of, by which ``msprobe rollout_check`` says how old weights are.
        rank: the rank; by default that of the process, if it has one.
        parts: for each name of a plain tensor that is a part of a larger one, as in tensor parallelism, the index of
            its first element there, and the shape of the whole.

    Raises:
        MsprobeException: there are no weights, a value is no tensor, or a part does not fit or belongs to no weight.

    Example:
        >>> probe.fingerprint(model, step=7).save("weights/step7.fingerprint")  # doctest: +SKIP
        'weights/step7.fingerprint'
    """
    from probe.checkpoint.fingerprints.making import of_weights

    adapters = list(_adapters())
    if rank is None:
        rank = next((found for adapter in adapters if (found := adapter.rank()) is not None), None)
    content = of_weights(_placed(_stored(weights, adapters), parts or {}), step, rank)
    # Of weights on other ranks, or on the device meta, the notes say that they are not here.
    if not content.weights and not content.notes:
        raise MsprobeException(f"fingerprint: {_named_kinds(weights)}; {_ALLOWED}.")
    return Fingerprint(content)


def _named_kinds(weights: Any) -> str:
    """The words for what was given instead of weights, with the values of a mapping."""
    if not isinstance(weights, Mapping):
        return f"the {type(weights).__name__} has no weights"
    values = [f"{name}: {type(value).__name__}" for name, value in weights.items()]
    shown = ", ".join(values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
    return f"the {type(weights).__name__} has no tensors ({shown or 'it is empty'})"


def _adapters() -> Iterator[FrameworkAdapter]:
    """The adapters of the frameworks that the program has imported."""
    seen = set()
    for name, framework in FRAMEWORKS.items():
        if framework.module in sys.modules and (served := loader.detect(name)) not in seen:
            seen.add(served)
            try:
                yield loader.load(served)
            except MissingDependency:
                continue  # a module of this name is not the framework


def _stored(weights: Any, adapters: list[FrameworkAdapter]) -> Iterator[tuple[str, StoredWeight | None]]:
    for name, value in _pairs(weights, adapters):
        adapter = next((each for each in adapters if each.tensors.is_tensor(value)), None)
        if adapter is not None:
            yield name, trends_of(adapter).stored_weight(value)
        elif (array := _of_numpy(value)) is not None:
            yield name, array
        elif not isinstance(weights, Mapping):
            raise MsprobeException(f"{name}: it is a {type(value).__name__}; allowed: tensors and arrays of numbers.")


def _placed(
    stored: Iterator[tuple[str, StoredWeight | None]], parts: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> Iterator[tuple[str, StoredWeight | None]]:
    unknown = set(parts)
    for name, weight in stored:
        unknown.discard(name)
        if weight is None or name not in parts:
            yield name, weight
            continue
        starts, whole = (tuple(map(int, each)) for each in parts[name])
        fits = len(starts) == len(whole) == len(weight.shape) and all(
            0 <= start <= start + length <= size for start, length, size in zip(starts, weight.shape, whole)
        )
        if not fits:
            raise MsprobeException(
                f"{name}: parts has {starts} of {whole}, and the tensor has shape {weight.shape}; give the index of "
                "its first element, and the shape of the whole."
            )
        yield name, weight if weight.shape == whole else weight._replace(starts=starts, whole=whole)
    if unknown:
        raise MsprobeException(f"parts has {min(unknown)}, which no weight is called; give the names of weights.")


def _of_numpy(value: Any) -> StoredWeight | None:
    import numpy as np

    from probe.backends.protocol.trends import StoredWeight

    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return None
    plain = np.ascontiguousarray(value)
    plain = plain.astype(plain.dtype.newbyteorder("="), copy=False)
    return StoredWeight(plain.dtype.name, value.shape, plain.reshape(-1).view(np.uint8))


def _pairs(weights: Any, adapters: list[FrameworkAdapter]) -> Iterable[tuple[str, Any]]:
    adapter = next((each for each in adapters if each.hooks.is_module(weights)), None)
    if adapter is not None:
        return trends_of(adapter).weights(weights)
    if isinstance(weights, Mapping):
        return ((str(name), value) for name, value in weights.items())
    if isinstance(weights, Iterable) and not isinstance(weights, (str, bytes)):
        return _named(weights)
    raise MsprobeException(f"fingerprint: {type(weights).__name__} is no model; {_ALLOWED}.")


def _named(pairs: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            given = type(pair).__name__
            raise MsprobeException(f"fingerprint: {given} is no pair; give pairs of a name and a tensor.")
        yield pair[0], pair[1]
