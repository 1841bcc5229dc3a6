"""Signs by which a training without a line of ours shows where its steps end.

Optimizers in turn, call sites of models.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from probe.backends.protocol import Training
from probe.common.callstack import CallStacks

_PATIENCE = 16
"""An optimizer that did not step while another one did so often in one step is not waited for any more.

It bounds the first step of a program that calls a generator and never trains it, whose optimizer would be waited for
until the end. Of 39 programs with several optimizers, of which 32 are in ``tests/support/torch_step_programs.py``, so
many are counted rightly with a value:

    2: 37    4: 38 (not five updates of a critic for one of the generator)    6, 16, 1000000: 39

A value has to be larger than the updates of a critic for each of its generator, of which five are usual.
"""
_MISSES = 2
"""An optimizer that so many steps went by without has no turn in them: a new step begins with its first forward.

Of the same programs so many are counted rightly:

    0, 1: 37 (not two actors that step in every second iteration)    2: 39
    3, 4, 1000000: 38 (not the folds of a cross validation whose optimizers are all made before)
"""


class OptimizerTurns:
    """Notes which optimizers have stepped in a step, and decides which of the others have a turn in it.

    Only a program with several optimizers pays for it: nothing is asked of modules while no optimizer is waited for.

    Args:
        training: Finds optimizers and parameters.
        of_parent: In a process that was forked, the optimizers of its parent, which are waited for once they step here.
    """

    def __init__(self, training: Training, of_parent: Iterable[Any] = ()) -> None:
        self._training = training
        self._of_parent = weakref.WeakSet(of_parent)
        self._stacks = CallStacks()
        self._owned: weakref.WeakKeyDictionary[Any, frozenset[int]] | None = None
        """The parameters of each optimizer; ``None`` until optimizers were looked for."""
        self._may_exist = True
        """True if there may be an optimizer that nobody has looked for."""
        self._empty: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that had no parameters when they were looked for."""
        self._partners: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()
        """The optimizers that stepped in the last step in which the key did."""
        self._misses: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Steps since an optimizer stepped last that went by without it."""
        self._given_up: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that did not step for too long; until they do."""
        self.counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Updates of each optimizer in this step."""
        self._updated: set[int] = set()
        """Parameters that were updated in this step."""
        self._with_gradient: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that a backward of this step has reached."""
        self._marks: dict[Any, object] = {}
        """The marks of the optimizers that the running backward has not reached in this step."""
        self._turn_has_begun = False
        """A forward has gone on to an optimizer that has not stepped; so do those that follow, until one steps."""
        self._calls: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        """The modules that were called in this step, and the numbers of the stacks they were called from."""
        self._new_calls: weakref.WeakSet[Any] = weakref.WeakSet()
        """Modules that were called since an optimizer stepped last."""
        self._owners: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()
        """The optimizers of each of these modules, at the time of the update that followed its call."""
        self._uneven = False
        """True if steps have ended in which other optimizers stepped, or one of several more than once."""
        self._updates: collections.Counter[str] = collections.Counter()
        """Updates of all steps that have ended, by the class of the optimizer."""

    # --- which optimizers there are

    def exist(self) -> bool:
        """True if there is an optimizer with parameters.

        To look for them costs 200 ms for a million objects, so it is done once, and again when one was made.
        """
        if self._owned:
            self._may_exist = True  # when the last of them is gone, others are looked for that could be overlooked
        elif self._may_exist:
            self._find()
        else:
            self._note_all(self._empty)
        return bool(self._owned)

    def new_optimizer(self) -> None:
        """An optimizer was made."""
        self._may_exist = True

    def _find(self) -> None:
        self._may_exist = False
        self._owned = self._owned or weakref.WeakKeyDictionary()
        self._note_all(each for each in self._training.optimizers() if each not in self._of_parent)

    def _note_all(self, optimizers: Iterable[Any]) -> None:
        for optimizer in list(optimizers):
            self.note(optimizer)
            if optimizer not in (self._owned or ()):
                self._empty.add(optimizer)

    def known(self) -> list[Any]:
        """The optimizers that were found."""
        return list(self._owned or ())

    def note(self, optimizer: Any) -> None:
        """Note the parameters of an optimizer, which may have got further ones."""
        parameters = self._training.parameters(optimizer)
        if parameters and self._owned is not None:
            self._owned[optimizer] = parameters

    # --- what happens in a step

    def call_site(self) -> int:
        """The number of the call stack from which the program calls a module now."""
        return self._stacks.current()

    def called(self, module: Any, site: int) -> None:
        """A module was called, from the call stack with the number `site`."""
        self._calls.setdefault(module, set()).add(site)
        self._new_calls.add(module)

    def enter_backward(self, mark: Callable[[Any], object]) -> None:
        """Gradients are about to be computed; for `mark` see `probe.backends.protocol.TrainingListener`."""
        self._marks.clear()
        if len(self._owned or ()) > 1:
            unreached = (each for each in self.waiting() if each not in self._with_gradient)
            self._marks = {each: mark(each) for each in unreached}

    def leave_backward(self, mark: Callable[[Any], object] | None) -> None:
        """Gradients were computed; ``None``: computing them raised."""
        marks, self._marks = self._marks, {}
        if mark is not None:
            self._with_gradient.update(each for each, before in marks.items() if mark(each) != before)

    def stepped(self, optimizer: Any) -> bool:
        """An optimizer has stepped; whether it has parameters."""
        if self._owned is None or (optimizer not in self._owned and optimizer not in self._empty):
            self._find()  # others may have been made together with it
        self.note(optimizer)
        assert self._owned is not None
        if optimizer not in self._owned:
            self._empty.add(optimizer)
            return False
        self._given_up.discard(optimizer)
        self._turn_has_begun = False
        self._updated |= self._owned[optimizer]
        self.counts[optimizer] = self.counts.get(optimizer, 0) + 1
        if len(self._owned) > 1:
            self._note_owners()
        return True

    def is_of_step(self, optimizer: Any) -> bool:
        """True if an optimizer has parameters of a module that was called in this step."""
        owned = self._training.parameters(optimizer)
        return any(owned & self._training.trainable(module) for module in list(self._calls))

    def is_too_long(self, optimizer: Any) -> bool:
        """True if `optimizer` has stepped so often in this step that the others are not waited for any more."""
        return self.counts.get(optimizer, 0) >= _PATIENCE and bool(self.waiting())

    def give_up(self) -> None:
        """Wait for none of the others any more, until they step."""
        self._given_up.update(self.waiting())

    def end_step(self) -> None:
        """The step is over: remember which optimizers stepped in it."""
        stepped = weakref.WeakSet(self._stepped())
        for optimizer, count in list(self.counts.items()):
            self._updates[type(optimizer).__name__] += count
            others = self._partners.get(optimizer, stepped)
            in_turns = optimizer in self._partners and self._misses.get(optimizer, 0) > 0
            self._uneven |= in_turns or (len(self._owned or ()) > 1 and (count > 1 or set(others) != set(stepped)))
        for optimizer in stepped:
            self._partners[optimizer] = stepped
            self._misses[optimizer] = 0
        for optimizer in self.waiting():
            self._misses[optimizer] = self._misses.get(optimizer, 0) + 1
        self._turn_has_begun = False
        for noted in (self.counts, self._updated, self._with_gradient, self._calls, self._new_calls):
            noted.clear()
        self._owners.clear()
        self._marks.clear()  # held strongly: an optimizer must not outlive its program's use of it

    def uneven_text(self, steps: int) -> str:
        """The reason why the `steps` counted may not be the iterations; empty if all optimizers step evenly."""
        if not self._uneven:
            return ""
        updates = ", ".join(f"{name} {count} times" for name, count in self._updates.items())
        text = f"{steps} steps were counted, in which several optimizers stepped unevenly ({updates}). If these are "
        return text + "not the iterations of the script, --step-after optimizer ends a step with each optimizer's step."

    # --- whose turn may still come

    def expected(self) -> list[Any]:
        """The optimizers of a group that stepped beside the others the last time, or of which nothing is known yet."""
        known = [self._partners[each] for each in self._stepped() if each in self._partners]
        waiting = self.waiting()
        if not known:
            return [each for each in waiting if each not in self._partners and not self._misses.get(each)]
        return [each for each in waiting if any(each in partners for partners in known)]

    def seem_over(self) -> bool:
        """True if no other optimizer is likely to step in this step."""
        return not self._turn_has_begun and not self.expected()

    def goes_on(self, module: Any, site: int) -> bool:
        """True if the forward of `module` from `site` belongs to the step in which an optimizer has stepped.

        - The same call (the same line, called from the same lines) again means that the loop has come around. It has
          not if an optimizer is expected whose module was called in this step and that has no gradient yet, such as a
          generator's while its discriminator is updated several times.
        - Another call belongs to the step if its module has parameters of an optimizer that has not stepped, and that
          did not do its last step without those that have, or if an optimizer is expected.
        """
        if self._turn_has_begun:
            return True
        if site in self._calls.get(module, ()):
            return any(self._turn_is_to_come(each) for each in self.expected())
        trainable = self._training.trainable(module)
        owners = [each for each in self.waiting() if (self._owned or {})[each] & trainable]
        stepped = self._stepped()
        self._turn_has_begun = any(self._misses.get(each, 0) < _MISSES for each in owners if self._joins(each, stepped))
        return self._turn_has_begun or bool(self.expected())

    def _joins(self, optimizer: Any, stepped: list[Any]) -> bool:
        """True unless the last step of `optimizer` was one of its own, without any of `stepped`."""
        partners = self._partners.get(optimizer)
        return partners is None or any(each in partners for each in stepped)

    def _turn_is_to_come(self, optimizer: Any) -> bool:
        """True if a module of this optimizer, and of none that has stepped, was called and got no gradient yet."""
        if optimizer in self._with_gradient:
            return False
        stepped = self._stepped()
        calls = list(self._owners.values())
        return any(optimizer in owners and not any(each in owners for each in stepped) for owners in calls)

    def _note_owners(self) -> None:
        for module in list(self._new_calls):
            trainable = self._training.trainable(module)
            owners = (each for each, owned in list((self._owned or {}).items()) if owned & trainable)
            self._owners.setdefault(module, weakref.WeakSet()).update(owners)
        self._new_calls.clear()

    def waiting(self) -> list[Any]:
        """The optimizers that have not stepped in this step, nor another one with parameters of theirs."""
        known = list((self._owned or {}).items())
        return [each for each, owned in known if each not in self._given_up and not owned & self._updated]

    def _stepped(self) -> list[Any]:
        """The optimizers that have stepped, and those that have parameters of them, such as one that wraps another."""
        return [each for each, owned in list((self._owned or {}).items()) if owned & self._updated]


# --- call sites


class CallSites:
    """Training or evaluation, by the call site of a forward: whether a backward or an update followed it.

    A site is the number of a call stack, the same for each iteration of a loop.
    """

    def __init__(self) -> None:
        self._trains: dict[int, bool] = {}
        """By site, True if a backward or an update followed a forward from there; one is enough."""
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()
        """The modules that were called in training mode."""
        self._in_step: set[int] = set()
        """The sites of the forwards of the open step."""
        self._calls: set[tuple[int, int]] = set()
        """The forwards of the open step: the site, and the identity of the module."""
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        """The modules of these forwards."""
        self._evaluated: weakref.WeakSet[Any] = weakref.WeakSet()
        """The modules that were called in evaluation mode in a step."""
        self.on_trial = False
        """True if the open step began with a forward in evaluation mode, which nothing has shown to be training."""

    def is_evaluated_again(self, module: Any) -> bool:
        """True if `module` was called in training mode before, and is in evaluation mode now."""
        if trains(module):
            self._trained.add(module)
            return False
        return module in self._trained

    def evaluates(self, module: Any, site: int) -> bool:
        """True if a forward that records gradients is an evaluation, as far as is known of its site."""
        return not trains(module) and not self._trains.get(site, True)

    # --- the forwards of a step

    def begin_step(self, module: Any, site: int) -> None:
        """A step begins with a forward of `module` from `site`."""
        self.on_trial = not trains(module)
        for noted in (self._in_step, self._calls, self._modules):
            noted.clear()
        self.add(module, site)

    def add(self, module: Any, site: int) -> None:
        """A further forward belongs to the open step."""
        self._in_step.add(site)
        self._calls.add((site, id(module)))
        self._modules.add(module)
        if not trains(module):
            self._evaluated.add(module)

    def was_evaluated(self, module: Any) -> bool:
        """True if `module` is in training mode now, and was in evaluation mode in a step."""
        return trains(module) and module in self._evaluated

    def is_called_again(self, module: Any, site: int) -> bool:
        """True if the open step has a forward of `module` from `site`, from which nothing was trained so far."""
        return (site, id(module)) in self._calls and not self._trains.get(site, False)

    def turns_to_training(self, module: Any, site: int) -> bool:
        """True if a forward in training mode, of its module or from a site that trains, ends a step on trial."""
        return self.on_trial and trains(module) and (module in self._modules or self._trains.get(site, False))

    def fail_trial(self) -> None:
        """The open step was an evaluation."""
        for site in self._in_step:
            self._trains.setdefault(site, False)
        self.on_trial = False

    def pass_trial(self) -> None:
        """The open step trains: gradients were computed in it, or an optimizer has stepped."""
        self._trains.update(dict.fromkeys(self._in_step, True))
        self.on_trial = False

    def note_training(self, site: int) -> None:
        """A forward from `site`, which no step began with, was training."""
        self._trains[site] = True


def trains(module: Any) -> bool:
    """True if a module is in training mode, or has no mode."""
    return bool(getattr(module, "training", True))
