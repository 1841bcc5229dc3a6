"""The models that are collected from, and the names of their modules."""

from __future__ import annotations

import copyreg
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any, Callable, ClassVar, NamedTuple

from probe.backends.protocol import HeldTensor
from probe.common import log
from probe.common.containers import by_prefix
from probe.common.dump import naming
from probe.common.interfaces import ModuleName


@dataclass(frozen=True)
class ModuleShape:
    """The way in which the modules of a framework are looked into.

    Args:
        root: The first part of their names.
        inside: Every module of a model, itself first, with its path.
        parameters: The module's own parameters by attribute name, ``None`` included.
        layers: The package with the framework's own layers, with a dot at its end.
        held: The dictionaries of a module with the tensors that it holds, and what these are called.
    """

    root: str
    inside: Callable[[Any], Iterable[tuple[str, Any]]]
    parameters: Callable[[Any], Mapping[str, Any]]
    layers: str
    held: tuple[tuple[str, str], ...]

    def tensors(self, models: Any) -> dict[int, HeldTensor]:
        """See `probe.backends.protocol.Hooks.held_tensors`."""
        found: dict[int, HeldTensor] = {}
        for prefix, model in by_prefix(models).items():
            for path, module in () if model is None else self.inside(model):
                start = f"{prefix}.{path}." if prefix and path else f"{prefix or path}."
                start, owner = start.replace(_COMPILED, "").lstrip("."), weakref.ref(module)
                for field, kind in self.held:
                    for key, tensor in module.__dict__.get(field, {}).items():
                        if tensor is not None and id(tensor) not in found:
                            found[id(tensor)] = HeldTensor(f"{kind}:{start}{key}", owner, field, key)
        return found

    def is_one_layer(self, model: Any) -> bool:
        """True if nothing but a record of the model itself shows its call and its parameters.

        It has no modules inside it but those that compute its parameters. Or it is a layer of the framework that has
        parameters and modules inside for its own use, as attention has its output projection.
        """
        if all(path.partition(".")[0] in ("", _PARAMETRIZATIONS) for path, _ in self.inside(model)):
            return True
        return type(model).__module__.startswith(self.layers) and any(
            parameter is not None for parameter in self.parameters(model).values()
        )


_COMPILED = "_orig_mod."
"""The attribute in which torch's compiler puts the module that it was given."""
_PARAMETRIZATIONS = "parametrizations"
"""The attribute in which torch keeps what computes a parameter, for weight normalization say."""


class _Given(NamedTuple):
    """The name that a module was given, and the model and the path in it that the name is made of."""

    module: weakref.ref[Any]
    base: str
    prefix: str
    path: str


class NamedModules:
    """The names of the modules of the models that were given last; no two modules have the same name.

    A module has one name, also if several of the models share it: the first model that has it gives the name, with the
    first path there. A model itself has a name only if it is one layer, or was inside a model that is gone.
    """

    def __init__(self, shape: ModuleShape) -> None:
        self._shape = shape
        self._models: dict[str, weakref.ref[Any]] = {}
        self._given: dict[int, _Given] = {}
        """By the module's identity, because a module may define equality."""

    def give(self, models: dict[str, Any]) -> tuple[list[tuple[ModuleName, Any]], bool]:
        """Name the modules of `models`, which are given by prefix.

        Returns:
            The modules with their names, and whether all earlier names still hold: each model that was given last time
            is among these with the same prefix, or it is gone.
        """
        kept = all(
            models[prefix] is noted() if prefix in models else noted() is None for prefix, noted in self._models.items()
        )
        before = {key: given for key, given in self._given.items() if given.module() is not None}
        # A module that outlives its model keeps its name: the garbage collector decides when a model is gone.
        lasting = {key: given for key, given in before.items() if kept and _lasts(given, models)}
        found = self._named(models, lasting)
        self._models = {prefix: weakref.ref(model) for prefix, model in models.items()}
        self._given = {**lasting, **{key: given for key, (given, _) in found.items()}}
        if not kept:
            _warn_of_names_used_before(before, found)
        return [(ModuleName(given.base), module) for given, module in found.values()], kept

    def _named(self, models: dict[str, Any], lasting: dict[int, _Given]) -> dict[int, tuple[_Given, Any]]:
        found: dict[int, tuple[_Given, Any]] = {}
        used = {given.base for given in lasting.values()}
        for prefix, path, module in self._positions(models, lasting):
            if id(module) in found:
                continue
            given = lasting.get(id(module))
            if given is None:
                below = ".".join(filter(None, (prefix, path)))
                base = naming.unused_module_base(self._shape.root, below, type(module).__name__, used)
                used.add(base)
                given = _Given(weakref.ref(module), base, prefix, path)
            found[id(module)] = given, module
        return found

    def _positions(self, models: dict[str, Any], lasting: dict[int, _Given]) -> Iterator[tuple[str, str, Any]]:
        for prefix, model in models.items():
            for path, module in self._shape.inside(model):
                if path:
                    yield prefix, path, module
        for prefix, model in models.items():
            if id(model) in lasting or self._shape.is_one_layer(model):
                yield prefix, "", model


def _lasts(given: _Given, models: dict[str, Any]) -> bool:
    """True if the name does not depend on where the module is now."""
    return given.prefix not in models or not given.path


def _warn_of_names_used_before(before: dict[int, _Given], found: dict[int, tuple[_Given, Any]]) -> None:
    owners = {given.base: key for key, given in before.items()}
    for key, (given, _) in found.items():
        if owners.get(given.base, key) != key:
            log.warning(
                f"{given.base} was another module in an earlier start, and both are in use: their records have the "
                "same names. Give all models to each start, as in start([first, second]), to tell them apart.",
                once="names used before",
            )
            return


# --- copies


class NotCopied:
    """A value that copies of an `OrderedDict` are made without; so is a method of it.

    Where one is copied all the same, by a class with a way to copy of its own, it is not made twice.
    """

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class HooksStayOut:
    """Copies have no hooks of the tool until `remove`. Where somebody takes `OrderedDict` apart already, they stay."""

    _in_place: ClassVar[set[HooksStayOut]] = set()

    def __init__(self) -> None:
        self._in_place.add(self)
        copyreg.dispatch_table.setdefault(OrderedDict, _take_apart)

    def remove(self) -> None:
        self._in_place.discard(self)
        if not self._in_place and copyreg.dispatch_table.get(OrderedDict) is _take_apart:
            del copyreg.dispatch_table[OrderedDict]


def _take_apart(dictionary: OrderedDict[Any, Any]) -> Any:
    """Class, arguments, state, list items, and the items, as `OrderedDict.__reduce__` gives them."""
    parts: Any = dictionary.__reduce__()
    if any(map(_is_left_out, dictionary.values())):
        parts = (*parts[:4], iter([item for item in dictionary.items() if not _is_left_out(item[1])]))
    return parts


def _is_left_out(value: Any) -> bool:
    # By the type, since `isinstance` asks the value too, which may be of any class of the user's.
    kind = type(value)
    return issubclass(type(value.__self__) if kind is MethodType else kind, NotCopied)
