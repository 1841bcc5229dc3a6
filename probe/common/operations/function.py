"""One line of the table of functions, and the traits that it may have."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Trait(Enum):
    """A property of a function that decides how a value of it is judged."""

    # Members are compared by identity; Enum would hash their names, call by call.
    __hash__ = object.__hash__

    UNWRITTEN = auto()
    """It returns memory to which nothing was written, in whole or in part."""
    CONSTANT = auto()
    """It returns numbers that no tensor among its arguments decides."""
    HANDS_ON = auto()
    """It returns its argument, a view of it or a copy of it: each number as it is, in the order it had or another."""
    CASTS = auto()
    """It returns its argument in another dtype or on another device."""
    OVERWRITES = auto()
    """It writes into all of its first argument and reads nothing of it."""
    OVERWRITES_A_PART = auto()
    """It writes into a part of its first argument and reads nothing of it; the rest stays."""
    INFINITE = auto()
    """Its exact result may be minus infinity though its arguments are finite."""
    MASKED = auto()
    """It takes minus infinity in its argument for what is left out."""
    DRAWS = auto()
    """Its result is random numbers."""
    DROPS = auto()
    """It sets elements of its argument to zero at random, and enlarges the others."""
    DRAWS_INSIDE = auto()
    """It computes with random numbers that it draws itself."""
    MAY_DROP_INSIDE = auto()
    """It draws random numbers if an argument asks it to drop something."""
    COMMUTES = auto()
    """Its two operands may be exchanged, so that ``__radd__`` is the same function as ``__add__``."""


class Function(NamedTuple):
    """What is known of one function."""

    name: str
    """The name that PyTorch has for it, without prefix."""
    traits: frozenset[Trait] = frozenset()
    also: tuple[str, ...] = ()
    """Other names of the same function, in any framework; operators of tensors without their underscores."""
    primitive: tuple[str, ...] = ()
    """The classes of MindSpore's primitives that compute it."""
    akin: str = ""
    """The function that gives the same values if the shapes agree; empty if there is none."""
    order: tuple[int, ...] = ()
    """The tensor of the primitive that stands in each place of PyTorch's function, if the order is another."""
    arguments: tuple[str, ...] = ()
    """The names of its first arguments in order, if they are needed."""
    keeps: tuple[str, ...] = ()
    """The arguments into which it writes what it keeps from call to call."""

    def has(self, *traits: Trait) -> bool:
        """Whether the function has one of `traits`."""
        return not self.traits.isdisjoint(traits)


def op(
    name: str,
    *traits: Trait,
    also: str = "",
    primitive: str = "",
    akin: str = "",
    order: tuple[int, ...] = (),
    arguments: str = "",
    keeps: str = "",
) -> Function:
    """A line of the table; several names in one text are separated by spaces."""
    return Function(
        name,
        frozenset(traits),
        tuple(also.split()),
        tuple(primitive.split()),
        akin,
        order,
        tuple(arguments.split()),
        tuple(keeps.split()),
    )
