"""The loops of a program in which its optimizers step."""

from __future__ import annotations

import weakref
from typing import Any

from probe.collect.turns.loops import Loop, Loops
from probe.common.callstack import CallStacks


class StepLoops:
    """Notes the loops that train, and finds steps that are no iteration of any of them.

    Args:
        stacks: The calls, by number.
    """

    def __init__(self, stacks: CallStacks) -> None:
        self._stacks = stacks
        self._loops = Loops()
        self._known: dict[int, tuple[Loop, ...]] = {}
        """The loops around a call, by the number of its stack."""
        self._call = -1
        """The last call of a model."""
        self._update = -1
        """The last update of this step."""
        self._training: tuple[Loop, ...] = ()
        """The loops around both."""
        self._before: tuple[Loop, ...] = ()
        """The same of the step before."""
        self._of_optimizer: weakref.WeakKeyDictionary[Any, tuple[Loop, ...]] = weakref.WeakKeyDictionary()
        """The loops that trained when an optimizer stepped last."""
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers that stepped in this step."""
        self._returned = False
        """True if one of them has stepped in an earlier step."""
        self._stepped_before: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers that stepped in the step before."""
        self.uneven = ""
        """The first two optimizers whose steps may not be counted as a person counts them; empty without."""

    def called(self, stack: int) -> None:
        """A model was called."""
        self._call = stack

    def stepped(self, optimizer: Any, stack: int) -> None:
        """An optimizer has stepped, of several."""
        self._update = stack
        self._training = _common(self._around(stack), self._around(self._call))
        self._returned = self._returned or (optimizer in self._of_optimizer and optimizer not in self._stepped)
        self._stepped.add(optimizer)
        self._of_optimizer[optimizer] = self._training

    def are_left(self, stack: int) -> bool:
        """True if this call is outside of the innermost loop in which this step and the one before were updated."""
        shared = _common(self._training, self._before)
        return bool(shared) and self._is_same_thread(stack) and shared[-1] not in self._around(stack)

    def end_step(self) -> None:
        """The step is over."""
        if self._stepped and not self.uneven:
            self.uneven = self._uneven_text()
        self._before, self._training, self._returned = self._training, (), False
        self._stepped_before, self._stepped = self._stepped, weakref.WeakSet()

    def _around(self, stack: int) -> tuple[Loop, ...]:
        found = self._known.get(stack)
        if found is None:
            found = self._known[stack] = self._loops.around(self._stacks.locations(stack))
        return found

    def _is_same_thread(self, stack: int) -> bool:
        """True if a call and the update have the outermost function in common; else nothing is known of their loops."""
        return self._stacks.locations(stack)[0][0] is self._stacks.locations(self._update)[0][0]

    def _uneven_text(self) -> str:
        """Two optimizers that step in different loops, and in this step and the one before not in the same way."""
        for one in set(self._stepped) | set(self._stepped_before):
            for other in set(self._stepped):
                loops = self._of_optimizer.get(one, ()), self._of_optimizer.get(other, ())
                if all(loops) and loops[0][-1] != loops[1][-1] and self._is_uneven(one, other):
                    pairs = zip((one, other), loops)
                    texts = (f"{type(each).__name__} steps in the loop at {around[-1].text}" for each, around in pairs)
                    return " and ".join(sorted(texts))
        return ""

    def _is_uneven(self, one: Any, other: Any) -> bool:
        """True if two optimizers are in one step without a common loop, or the loop that both are in has come around.

        It has come around if an optimizer steps again, and another one stepped only in this step or the one before.
        """
        if not _common(self._of_optimizer[one], self._of_optimizer[other]):
            return one in self._stepped
        changed = set(self._stepped) ^ set(self._stepped_before)
        return self._returned and (one in changed or other in changed)


def _common(one: tuple[Loop, ...], other: tuple[Loop, ...]) -> tuple[Loop, ...]:
    return tuple(loop for loop in one if loop in other)
