"""Collecting a pack: variables, packages and settings of files, and the inputs and weights of a running model."""

from __future__ import annotations

import argparse
import enum
import gc
import os
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.backends.protocol import FrameworkAdapter, execution_of, settings_of, training_of
from probe.common.environment.gathered import all_versions, clean_settings, clean_variables, gathered, is_secret_value
from probe.common.errors import MsprobeException
from probe.common.interfaces import StatisticsMode
from probe.configcheck.pack import ENV, ENVIRONMENT, PIP, STATIC, encoded, write_pack
from probe.configcheck.settings_files import flat, read_settings, referenced_files
from probe.configcheck.shell import PROGRAM
from probe.configcheck.sources import conflicts


@dataclass(frozen=True)
class Collected:
    """The members of a pack.

    Args:
        members: Content by name.
        names: The names of what was collected.
        withheld: The number of values that may be secrets or decide nothing.
        notes: Sentences about settings with several values, and about what was not followed.
    """

    members: dict[str, bytes]
    names: list[str]
    withheld: int
    notes: list[str]


def static_members(paths: Sequence[str], environment: Mapping[str, Any] | None = None) -> Collected:
    """Collect the environment of this process, its packages, and the hyper-parameters in files.

    Variables that a start script exports belong to the environment. Settings files that its launches name are read too.

    Args:
        paths: Start scripts and settings files.
        environment: As `gathered` gives it; ``None`` gathers it here.

    Raises:
        MsprobeException: a file cannot be read, or is of no known kind.
    """
    # Before any work: a wrong file is the user's to put right.
    sources, exported, notes = _read(paths)
    # A script exports into the environment in which it starts; a program that runs has its environment.
    both = {**os.environ, **exported} if environment is None else {**exported, **os.environ}
    variables, withheld = clean_variables(both)
    packages = {name: version for name, version in all_versions().items() if not is_secret_value(version)}
    members = {
        ENV: encoded(variables),
        PIP: "\n".join(f"{name}={version}" for name, version in packages.items()).encode(),
        ENVIRONMENT: encoded(gathered() if environment is None else environment),
    }
    names = ["env", "pip", "environment"]
    merged: dict[str, Any] = {}
    kept: dict[str, dict[str, Any]] = {}
    for name, settings in sources.items():
        kept[name], left_out = clean_settings(settings)
        withheld += left_out
        members[f"settings/{name}.json"] = encoded(kept[name])
        merged.update(kept[name])
    if paths:
        members[STATIC] = encoded({name: value for name, value in merged.items() if name != PROGRAM})
        names.append("hyperparameters")
    return Collected(members, names, withheld, [*conflicts(kept), *notes])


def _read(paths: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str], list[str]]:
    """The settings of each place, the variables that scripts export, and notes."""
    sources: dict[str, dict[str, Any]] = {}
    exported: dict[str, str] = {}
    notes: list[str] = []
    for path in paths:
        found = read_settings(path)
        exported.update(found.exported)
        notes += found.notes
        sources.update({_free(name, sources): settings for name, settings in found.sources.items()})
    known = {os.path.realpath(path) for path in paths}
    for path in paths:
        for further in [each for settings in list(sources.values()) for each in referenced_files(path, settings)]:
            if os.path.realpath(further) not in known:
                known.add(os.path.realpath(further))
                try:
                    found = read_settings(further)
                except MsprobeException as error:
                    notes.append(f"{further}, which {path} names, is not read: {error}")
                    continue
                notes.append(f"{further} is read as well: {path} names it.")
                sources.update({_free(name, sources): settings for name, settings in found.sources.items()})
    return sources, exported, notes


def _free(name: str, known: Container[str]) -> str:
    """A name that no other place has: a second file of one name gets a number."""
    stem, dot, suffix = name.partition(".")
    number = 1
    while name in known:
        number += 1
        name = f"{stem}-{number}{dot}{suffix}"
    return name


def collect(paths: Sequence[str], output: str) -> Collected:
    """Write the pack `output`.

    Raises:
        MsprobeException: a file cannot be read, or the pack cannot be written.
    """
    found = static_members(paths)
    write_pack(output, found.members, found.names, found.withheld)
    return found


# --- dynamic


_HEAD = 8
"""Values at the beginning of an integer tensor that are kept: enough to see another order of data."""
_STATISTICS = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}
_SETTINGS_CLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments", "DeepSpeedConfig")
_STATE_CLASSES = ("GradScaler", "LRScheduler", "_LRScheduler")
_LONGEST_TEXT = 200
"""Characters of a hyper-parameter that is a text; a guess."""

Described = tuple[dict[str, Any], dict[str, Any]]
"""By name, the statistics as msProbe has them, and dtype, shape, checksum and first values."""


class TensorRecords:
    """Describes tensors by statistics and a checksum, through the adapter of any framework."""

    def __init__(self, adapter: FrameworkAdapter) -> None:
        self._adapter = adapter

    def described(self, values: Mapping[str, Any]) -> Described:
        """All `values` by name; statistics come back from a device all at once."""
        tensors = self._adapter.tensors
        entries = {
            name: tensors.describe_tensor(value, StatisticsMode("md5"))
            for name, value in values.items()
            if tensors.is_tensor(value)
        }
        tensors.resolve()
        statistics: dict[str, Any] = {}
        marks: dict[str, Any] = {}
        for name, value in values.items():
            entry = entries.get(name)
            if entry is None:
                statistics[name] = ""
                marks[name] = {"value": value if isinstance(value, (bool, int, float)) else type(value).__name__}
                continue
            statistics[name] = {key: entry.get(field) for key, field in _STATISTICS.items()}
            # MindSpore writes Float32.
            dtype = str(entry.get("dtype")).rpartition(".")[2].lower()
            marks[name] = {"dtype": dtype, "shape": entry.get("shape"), "checksum": entry.get("md5")}
            if "int" in dtype:
                marks[name]["head"] = execution_of(self._adapter).values(value).reshape(-1)[:_HEAD].tolist()
        return statistics, marks

    def inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Described:
        """The arguments of a call of the model, as ``{"args": {"0": ...}, "kwargs": {...}}``."""
        given = dict(_flattened("args", dict(enumerate(args)))) | dict(_flattened("kwargs", kwargs))
        statistics, marks = self.described(given)
        parts: dict[str, Any] = {"args": {}, "kwargs": {}}
        for name, value in statistics.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = value
        return parts, marks

    def weights(self, models: Sequence[Any]) -> Described:
        """The parameters of the models; with several the index of the model comes first."""
        named: dict[str, Any] = {}
        for number, model in enumerate(models):
            above = f"{number}." if len(models) > 1 else ""
            named.update({f"{above}{name}": value for name, value in settings_of(self._adapter).weights(model)})
        return self.described(named)


def _flattened(above: str, values: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(f"{above}.{key}", value)
        elif isinstance(value, (list, tuple)) and not hasattr(value, "dtype"):
            yield from _flattened(f"{above}.{key}", dict(enumerate(value)))
        else:
            yield f"{above}.{key}", value


def running_settings(adapter: FrameworkAdapter, models: Sequence[Any]) -> dict[str, Any]:
    """The hyper-parameters of objects that the program has: what runs, and not what was asked for.

    Read are namespaces of argparse, Megatron's arguments, Transformers' TrainingArguments, DeepSpeed's configuration,
    the state of accelerate, groups of optimizers, schedulers, gradient scalers, and options of the modules.
    """
    found: dict[str, Any] = {}
    settings = settings_of(adapter)
    for number, model in enumerate(models):
        prefix = f"model.{number}" if len(models) > 1 else "model"
        found.update({f"{prefix}.{name}": value for name, value in settings.model_settings(model).items()})
    for number, optimizer in enumerate(training_of(adapter).optimizers()):
        groups = {"type": type(optimizer).__name__, "groups": list(settings.optimizer_groups(optimizer))}
        found.update(flat({"optimizer": {number: groups}}))
    numbers: dict[str, int] = {}
    for each in gc.get_objects():
        # By its type alone: to ask a proxy for its class may run code of the user's.
        names = [kind.__name__ for kind in type(each).__mro__]
        if type(each) is argparse.Namespace:
            found.update(_plain("args", vars(each)))
        elif any(name in names for name in _SETTINGS_CLASSES):
            found.update(_plain(type(each).__name__, vars(each)))
        elif any(name in names for name in _STATE_CLASSES):
            title = type(each).__name__
            number = numbers[title] = numbers.get(title, -1) + 1
            found.update(_plain(f"{title}.{number}", vars(each)))
    found.update(_plain("megatron", _megatron_arguments()))
    found.update(_accelerate_settings())
    return found


def _accelerate_settings() -> dict[str, Any]:
    """Settings of accelerate: of its state, which all of its objects share, and of the one `Accelerator`."""
    module = sys.modules.get("accelerate.state")
    if module is None:
        return {}
    found: dict[str, Any] = {}
    for name, prefix in (("AcceleratorState", "accelerate"), ("GradientState", "accelerate.gradients")):
        found.update(_accelerate_values(prefix, getattr(getattr(module, name, None), "_shared_state", {})))
    for each in gc.get_objects():
        if type(each).__name__ == "Accelerator" and type(each).__module__.startswith("accelerate."):
            found.update(_accelerate_values("accelerate", vars(each)))
    return found


_OF_NO_MATTER = frozenset((
    "process_index", "local_process_index", "fork_launched", "debug", "step", "sync_gradients", "project_configuration",
    "log_with", "trackers",
))  # fmt: skip
"""Values of accelerate that are of one process or one moment, or about files."""
_MOST_NESTED = 3
"""A guess: plugins have settings, and few of these have settings of their own."""


def _accelerate_values(above: str, values: Mapping[str, Any], nested: int = 0) -> dict[str, Any]:
    """Plain values, members of enumerations, and those of accelerate's own objects inside, such as its plugins."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        name = "mixed_precision" if name == "_mixed_precision" else name
        if name.startswith("_") or name in _OF_NO_MATTER:
            continue
        if isinstance(value, enum.Enum):
            value = value.value
        if isinstance(value, Mapping) or type(value).__module__.startswith("accelerate."):
            inside = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            # The states refer to each other.
            if nested < _MOST_NESTED and not type(value).__name__.endswith("State"):
                found.update(_accelerate_values(f"{above}.{name}", inside, nested + 1))
        else:
            found.update(_plain(above, {name: value}))
    return found


def _megatron_arguments() -> Mapping[str, Any]:
    for name in ("megatron.training.global_vars", "megatron.global_vars", "megatron.training", "megatron"):
        get_args = getattr(sys.modules.get(name), "get_args", None)
        if callable(get_args):
            try:
                found: Mapping[str, Any] = vars(get_args())
                return found
            except Exception:
                continue  # not initialized yet: it raises AssertionError
    return {}


def _plain(above: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that are plain, or lists of such; private names are a class's own affair."""
    kept = {
        str(name): value
        for name, value in values.items()
        if not str(name).startswith("_")
        and (_is_plain(value) or (isinstance(value, (list, tuple)) and all(map(_is_plain, value))))
    }
    return {f"{above}.{name}": list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float))
        or (isinstance(value, str) and len(value) <= _LONGEST_TEXT)
    )


# --- random numbers


class RandomPlaces:
    """Counts the calls that draw random numbers or set a seed, by function and call stack."""

    MOST = 10_000
    """Places that are kept apart; a program has far fewer lines that draw."""

    def __init__(self) -> None:
        self._places: dict[str, dict[Any, list[Any]]] = {}
        self._number = 0

    def note(self, name: str, stack: Any, arguments: str) -> None:
        """A call of `name` from `stack`, which is whatever tells two stacks apart and can be turned into text later."""
        of_function = self._places.setdefault(name, {})
        place = of_function.get(stack)
        if place is None:
            if self._number >= self.MOST:
                return
            self._number += 1
            place = of_function[stack] = [0, []]
        place[0] += 1
        if arguments not in place[1] and len(place[1]) < _HEAD:
            place[1].append(arguments)

    def content(self, stack_text: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The places as msProbe has them, and with arguments; `stack_text` gives the lines of a stack."""
        theirs: dict[str, Any] = {}
        ours: dict[str, Any] = {}
        for name, of_function in self._places.items():
            for stack, (count, arguments) in of_function.items():
                lines = stack_text(stack)
                theirs.setdefault(name, []).append({"count": count, "stack": lines})
                ours.setdefault(name, []).append({"count": count, "stack": lines, "arguments": arguments})
        return theirs, ours


def arguments_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Arguments of a call that draws, without values of tensors and without texts."""
    texts = [*map(_argument, args), *(f"{name}={_argument(value)}" for name, value in kwargs.items())]
    return ", ".join(texts)[:_LONGEST_TEXT]


def _argument(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(each, (int, float)) for each in value):
        return repr(list(value))
    shape = getattr(value, "shape", None)
    return f"tensor{list(shape)}" if isinstance(shape, tuple) else type(value).__name__
