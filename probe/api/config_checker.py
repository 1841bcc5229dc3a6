"""`ConfigChecker`: the configuration of a running program as a pack, which ``msprobe config_check -c`` compares."""

from __future__ import annotations

import functools
import operator
import os
import random
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, ClassVar

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter, settings_of
from probe.backends.shared.patching import Attributes
from probe.backends.shared.randomness import numpy_calls, python_calls, replace_call
from probe.collect.environment import facts_of
from probe.common import log
from probe.common.archives import check_name
from probe.common.callstack import MARK, OWN_FILES
from probe.common.dump.stack_text import frame_text
from probe.common.environment.gathered import clean_settings, gathered
from probe.common.errors import MsprobeException, failure_text
from probe.common.interfaces import Handle, RandomCall
from probe.common.log import ERROR_LOG, ErrorLog
from probe.configcheck.collect import RandomPlaces, TensorRecords, arguments_text, running_settings, static_members
from probe.configcheck.pack import DEFAULT_PACK, DYNAMIC, ENVIRONMENT, clean_frame, encoded, merge_pack

FRAMEWORKS = ("pytorch", "mindspore")
_BACKENDS = {"pytorch": "torch", "mindspore": "mindspore"}
_PREFIXES = {
    "torch_random": "torch",
    "tensor_random": "Tensor",
    "ops_random": "mindspore.ops",
    "mint_random": "mindspore.mint",
    "numpy_random": "np.random",
    "python_random": "random",
}
"""The names of libraries in a pack, as msProbe has them."""
_Stack = tuple[tuple[CodeType, int], ...]
_MOST_FRAMES = 50
"""Frames of the stack of a random draw that are kept; a guess."""


class ConfigChecker:
    """Writes a pack of a running program: variables, packages, hyper-parameters, inputs, weights, random calls.

    The model gets a hook that runs before its forward, in the first steps only. A step is one forward call of the
    model. Values are not changed, and a failure of the tool does not reach the program.

    Args:
        model: The module, or a list of modules; ``None`` collects no inputs and weights.
        shell_path: Start scripts and settings files with hyper-parameters.
        output_zip_path: The pack.
        fmk: ``pytorch`` (MSAdapter as well) or ``mindspore``.
        steps: The number of forward calls that are collected.

    Raises:
        MsprobeException: an argument is wrong.

    Example:
        >>> ConfigChecker.apply_patches("pytorch")  # at the very beginning, before seeds are set
        >>> ConfigChecker(model, shell_path=["train.sh"], output_zip_path="./pack.zip")
    """

    _patches: ClassVar[_Patches | None] = None
    _made: ClassVar[dict[str, list[weakref.ref[Any]]]] = {}
    """The models of the last checker of each pack in this process."""

    def __init__(
        self,
        model: Any = None,
        shell_path: str | Sequence[str] | None = None,
        output_zip_path: str = DEFAULT_PACK,
        fmk: str = "pytorch",
        steps: int = 2,
    ) -> None:
        _check_framework("ConfigChecker", fmk)
        if type(steps) is not int or steps < 1:
            raise MsprobeException(f"ConfigChecker: steps is {steps!r}; allowed: an integer of 1 or more.")
        paths = [shell_path] if isinstance(shell_path, str) else list(shell_path or ())
        check_name(output_zip_path)
        self._adapter = loader.serve(_BACKENDS[fmk])
        self._models = list(model) if isinstance(model, (list, tuple)) else [] if model is None else [model]
        for each in self._models:
            if not self._adapter.hooks.is_module(each):
                raise MsprobeException(
                    f"ConfigChecker: model is a {type(each).__name__}; allowed: a module or a list of them."
                )
        self._path = os.path.abspath(output_zip_path)
        if self._is_made_again():
            log.warning(
                f"ConfigChecker was made for {output_zip_path} and this model before; the first one collects the pack. "
                "Make it once, before the training loop.",
                once=f"config-checker {self._path}",
            )
            return
        self._records = TensorRecords(self._adapter)
        self._steps = steps
        self._step = 0
        self._is_first = True
        static = static_members(paths, gathered(facts_of(self._adapter)))
        for note in static.notes:
            log.warning(note)
        self._members, self._names, self._withheld = static.members, list(static.names), static.withheld
        self._write()
        self._handles: list[Handle] = [
            settings_of(self._adapter).attach_inputs(each, functools.partial(self._before_forward, number))
            for number, each in enumerate(self._models)
        ]

    def _is_made_again(self) -> bool:
        """True in a loop, where a new pack would hold a later step as step 0."""
        before = [each() for each in self._made.get(self._path, ())]
        self._made[self._path] = [weakref.ref(each) for each in self._models]
        return bool(before) and len(before) == len(self._models) and all(map(operator.is_, before, self._models))

    @classmethod
    def apply_patches(cls, fmk: str = "pytorch") -> None:
        """Note calls that draw random numbers or set seeds from now on, until the collected steps are over."""
        _check_framework("apply_patches", fmk)
        if cls._patches is None:
            cls._patches = _Patches(loader.serve(_BACKENDS[fmk]))

    def _before_forward(self, number: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self._step >= self._steps:
            return
        try:
            self._collect(number, args, kwargs)
        except Exception as error:
            _, unwritten = ErrorLog(os.path.dirname(self._path)).add("ConfigChecker", error)
            where = f"{ERROR_LOG} cannot be written ({unwritten})" if unwritten else f"details: {ERROR_LOG}"
            log.warning(f"ConfigChecker collects nothing more: {failure_text(error)}; the training goes on; {where}.")
            self._step = self._steps
        if self._step >= self._steps:
            self._finish()

    def _finish(self) -> None:
        """Leave the program as it was."""
        for handle in self._handles:
            handle.remove()
        patches = type(self)._patches
        if patches is not None:
            patches.remove()
            type(self)._patches = None

    def _collect(self, number: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        rank = self._adapter.rank() or 0
        step, folder = self._step, f"step{self._step}/rank{rank}"
        # Of several models, such as the stages of a pipeline, the last one ends the step.
        if number == 0:
            self._add("dataset", f"{folder}/dataset.json", self._records.inputs(args, kwargs), f"{folder}/dataset.json")
        if number == len(self._models) - 1:
            self._add("weights", f"{folder}/weight.json", self._records.weights(self._models), f"{folder}/weights.json")
            if step == 0:
                self._add_settings()
            self._step += 1
            self._add_random(step, rank)
            self._write(rank)

    def _add(self, kind: str, name: str, described: tuple[Any, Any], mark: str) -> None:
        statistics, marks = described
        self._members[f"{kind}/{name}"] = encoded(statistics)
        self._members[f"checksums/{mark}"] = encoded(marks)
        self._names = list(dict.fromkeys((*self._names, kind)))

    def _add_settings(self) -> None:
        kept, withheld = clean_settings(running_settings(self._adapter, self._models))
        self._withheld += withheld
        self._members[DYNAMIC] = encoded(kept)
        # Seeds and switches as they are when the training begins.
        self._members[ENVIRONMENT] = encoded(gathered(facts_of(self._adapter)))
        self._names = list(dict.fromkeys((*self._names, "hyperparameters")))

    def _add_random(self, step: int, rank: int) -> None:
        states = gathered(facts_of(self._adapter))["random_states"]
        self._members[f"random_states/step{step}/rank{rank}.json"] = encoded(states)
        patches = type(self)._patches
        if patches is None:
            return
        theirs, ours = patches.places.content(_stack_lines)
        self._members[f"random/rank{rank}.json"] = encoded(theirs)
        self._members[f"random_calls/rank{rank}.json"] = encoded(ours)
        self._names = list(dict.fromkeys((*self._names, "random")))

    def _write(self, rank: int | None = None) -> None:
        merge_pack(self._path, self._members, self._names, self._withheld, rank, self._is_first)
        self._is_first = False


class _Patches:
    """Notes calls of functions that draw or set seeds."""

    def __init__(self, adapter: FrameworkAdapter) -> None:
        self.places = RandomPlaces()
        self._attributes = Attributes()
        seeds = [RandomCall("python_random", random, "seed")]
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            seeds.append(RandomCall("numpy_random", numpy.random, "seed"))
        calls = [*settings_of(adapter).seeding_calls(), *seeds, *adapter.randomness.random_calls()]
        for call in [*calls, *numpy_calls(), *python_calls()]:
            name = f"{_PREFIXES.get(call.library, call.library)}.{call.name}"
            original = getattr(call.owner, call.name)
            replace_call(self._attributes, call, _noting(original, self._note, name, call.compiling))

    def _note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            self.places.note(name, _stack(sys._getframe(2)), arguments_text(args, kwargs))
        except Exception as error:
            log.warning(f"ConfigChecker misses calls of {name}: {failure_text(error)}.", once=f"config-check {name}")

    def remove(self) -> None:
        """Put all functions back."""
        self._attributes.remove()


def _noting(
    original: Callable[..., Any],
    note: Callable[[str, Sequence[Any], Mapping[str, Any]], None],
    name: str,
    compiling: Callable[[], bool],
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiling():
            note(name, args, kwargs)
        return original(*args, **kwargs)

    return call


def _stack(frame: FrameType | None) -> _Stack:
    """The frames of the program from `frame` outwards."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith((OWN_FILES, "<frozen")) and MARK not in code.co_consts:
            found.append((code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _stack_lines(stack: _Stack) -> list[str]:
    texts = (frame_text((code.co_filename, line, code.co_name)) for code, line in stack)
    return [clean_frame(text) for text in texts if text]


def _check_framework(where: str, fmk: Any) -> None:
    if fmk not in FRAMEWORKS:
        raise MsprobeException(f"{where}: fmk is {fmk!r}; allowed: {', '.join(FRAMEWORKS)}.")
