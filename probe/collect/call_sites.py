"""Call sites of a program's models, by which a forward in evaluation mode is told from an evaluation.

A model can be trained in evaluation mode, most often because a script forgot ``model.train()`` behind an evaluation.
Only what follows a forward tells: a backward or an update makes it training. The program repeats itself, so what
followed the last forward from a site is expected of the next one. A forward from a site that nobody knows begins a step
on trial: if the program comes around without a backward, the step is taken back.
"""

from __future__ import annotations

import weakref
from typing import Any


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
