"""One line of the table of functions, and the traits that it may have."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Rounding = Literal["exact", "rounded once", "elementwise", "activation", "dot product", "sum", "conditioning"]
EXACT: Rounding = "exact"
"""The result is made of the arguments' numbers, or of what is compared with them: at most the last rounding is left."""
ROUNDED_ONCE: Rounding = "rounded once"
"""One rounding of the exact result (IEEE 754-2019, 5.4.1). Vectorised square roots are not that good."""
ELEMENTWISE: Rounding = "elementwise"
"""Each element is made of one element of each argument, without cancellation: no error comes from its neighbours."""
ACTIVATION: Rounding = "activation"
"""The argument times a number from 0 to 1 that is the difference of two: the error has the size of the argument."""
DOT_PRODUCT: Rounding = "dot product"
"""Each element is a sum of products."""
SUM: Rounding = "sum"
"""Each element is a sum of many elements."""
CONDITIONING: Rounding = "conditioning"
"""Nothing is known of it: it is judged by conditioning alone."""


class Trait(Enum):
    """A property of a function that decides how a value of it is judged."""

    # Members are compared by identity; Enum would hash their names, call by call.
    __hash__ = object.__hash__

    UNWRITTEN = auto()
    """The function returns memory to which nothing was written, in whole or in part."""
    CONSTANT = auto()
    """The function returns numbers that no tensor among its arguments decides."""
    HANDS_ON = auto()
    """The function returns its argument, a view or a copy of it: each number as it is, in its order or another one."""
    CASTS = auto()
    """The function returns its argument in another dtype or on another device."""
    OVERWRITES = auto()
    """The function writes into all of its first argument and reads nothing of it."""
    INFINITE = auto()
    """The exact result may be minus infinity though the arguments are finite."""
    MASKED = auto()
    """The function takes minus infinity in its argument for what is left out."""
    DIVIDES = auto()
    """The function divides, so that its exact result is infinite where its divisor, its last argument, is 0."""
    LEAVES_OUT = auto()
    """The function may leave out elements of its argument: those that are not finite need not be in the result."""
    ASKS = auto()
    """The function compares the elements of its argument: its result has truth values and none of these numbers."""
    BRINGS_IN = auto()
    """The function makes a tensor of numbers that the program has elsewhere, which are data to it."""
    TELLS = auto()
    """The function tells or changes a property of its argument, and neither makes nor changes a number of a tensor."""
    DRAWS = auto()
    """The result is random numbers."""
    DROPS = auto()
    """The function sets elements of its argument to zero at random, and enlarges the others."""
    DRAWS_INSIDE = auto()
    """The function computes with random numbers that it draws itself."""
    MAY_DROP_INSIDE = auto()
    """The function draws random numbers if an argument asks it to drop something."""
    ADDS_A_DIMENSION = auto()
    """The result has one dimension more than the argument, which an argument `dim` counts in."""
    WEIGHS = auto()
    """The function returns means of its third argument, weighted by what the first two give."""
    NEVER_TWICE = auto()
    """The function returns indices into its argument, of which none occurs twice."""
    CHOOSES = auto()
    """The function returns the indices of the values that it takes, and column `dim` says where it looks for them."""
    CHOOSES_SMALLEST = auto()
    """The function chooses the smallest values (`CHOOSES`), and not the largest."""
    CHOOSES_SEVERAL = auto()
    """The function chooses several values at a time (`CHOOSES`)."""
    INDICES_SECOND = auto()
    """The function returns the values that it chooses before their indices (`CHOOSES`)."""
    EACH_ALONE = auto()
    """Each element of its result is made of one element of each tensor that it takes, where their shapes agree."""
    ROUNDS_EARLY = auto()
    """In half precision, PyTorch on a CPU rounds parts of the sum that its result is, and not the sum alone.

    ``benchmarks/half_sums.py`` measures it, and the same of gradients.
    """
    ROUNDS_GRADIENTS_EARLY = auto()
    """In half precision, PyTorch on a CPU rounds parts of the sum that one of its gradients is."""
    MODULUS = auto()
    """The function computes the absolute value of a complex number, which is rounded."""
    FACTORISES = auto()
    """The function factorises matrices (the last two dimensions of its first argument) or squares them."""
    UNORDERED = auto()
    """On a GPU or an NPU, the result may have other bits in each run, because threads add or write its elements in any
    order; ``torch.use_deterministic_algorithms`` forbids it, and its documentation has the list."""
    UNORDERED_GRADIENT = auto()
    """On a GPU or an NPU, one of the gradients of the function may have other bits in each run, as in `UNORDERED`."""
    UNORDERED_ON_CPU = auto()
    """The threads of a CPU add or write results (`UNORDERED`) or gradients (`UNORDERED_GRADIENT`) in any order, too."""
    FREE_ORDER = auto()
    """The results are right in any order."""
    FREE_SIGNS = auto()
    """The function returns vectors that are right with either sign, or with any phase."""
    FREE_VECTORS = auto()
    """The gradient depends on vectors that are right with either sign, or with any phase."""
    UNCHECKED = auto()
    """Numbers of its arguments are positions in memory that nothing checks: wrong ones end the process."""
    LOSES_DIGITS = auto()
    """The gradient sums logarithms, which loses digits that neither arguments nor result show."""
    BY_SQUARES = auto()
    """The function returns distances that may be computed from the squares of both points."""
    RELATIVE = auto()
    """The relative error of its result is that of its arguments, however small the result is."""
    EXPONENTIAL = auto()
    """An absolute error of its argument is a relative error of its result."""
    ADDS = auto()
    """The function adds up many elements, which may cancel, and does not divide by their number."""
    TWO_OPERATIONS = auto()
    """PyTorch computes it as two operations and records the gradient of the second."""
    FITS = auto()
    """The function changes no value and no order: only some programs need it, to fit a shape or a dtype."""
    SAME_NUMBERS = auto()
    """A plain number at any position means the same in every framework."""
    COMMUTES = auto()
    """The two operands may be exchanged, so that ``__radd__`` is the same function as ``__add__``."""


COMPUTING_NOTHING = (Trait.HANDS_ON, Trait.CASTS, Trait.CONSTANT, Trait.UNWRITTEN)
"""The traits of functions that compute no number of their arguments."""


_NONE: Mapping[str, Any] = MappingProxyType({})


class Function(NamedTuple):
    """The properties of one function."""

    name: str
    """The name that PyTorch has for it, without prefix."""
    traits: frozenset[Trait] = frozenset()
    also: tuple[str, ...] = ()
    """Names of the function besides `name`, in any framework; operators of tensors without their underscores."""
    primitive: tuple[str, ...] = ()
    """The classes of MindSpore's primitives that compute it."""
    akin: str = ""
    """The function that gives the same values if the shapes agree; empty if there is none."""
    arguments: tuple[str, ...] = ()
    """The names of its first arguments in order, if they are needed; ``_`` for one that decides no value."""
    in_mindspore: tuple[str, ...] = ()
    """The names of the first arguments in mindspore.ops, if their order is another."""
    rounding: Rounding = CONDITIONING
    """The rounding errors that a correct kernel makes in its result."""
    gradient: Rounding = CONDITIONING
    """The rounding errors that a correct kernel makes in the gradient.

    A gradient of another size than that of the output is a sum.
    """
    summed: int | None = None
    """The argument whose last dimension a product sums over; if it is not known, the sizes tell."""
    dim: tuple[int, int | None] | None = None
    """For a reduction along a dimension, the index of this argument and its default, ``None`` for all elements."""
    drops: int | None = None
    """The number of leading dimensions whose elements it drops together; ``None`` if each is dropped by itself."""
    approximation: float = 0.0
    """The relative error that a kernel may make because it approximates the function.

    MindSpore on the CPU computes tanh by a quotient of polynomials, to 1e-4 near 5, and the exponential by another, to
    5e-6.
    """
    parts: tuple[str, ...] = ()
    """The functions that give the same values one after the other."""
    defaults: Mapping[str, Any] = _NONE
    """The settings that a call has without saying so."""
    of_primitive: Mapping[str, Any] = _NONE
    """The settings with which a primitive of MindSpore is made, without saying so."""

    def has(self, *traits: Trait) -> bool:
        """True if the function has one of `traits`."""
        return not self.traits.isdisjoint(traits)


def op(
    name: str,
    *traits: Trait,
    also: str = "",
    primitive: str = "",
    akin: str = "",
    arguments: str = "",
    in_mindspore: str = "",
    rounding: Rounding = CONDITIONING,
    gradient: Rounding = CONDITIONING,
    summed: int | None = None,
    dim: tuple[int, int | None] | None = None,
    drops: int | None = None,
    approximation: float = 0.0,
    parts: str = "",
    defaults: Mapping[str, Any] = _NONE,
    of_primitive: Mapping[str, Any] = _NONE,
) -> Function:
    """A line of the table; several names in one text are separated by spaces."""
    return Function(
        name,
        frozenset(traits),
        tuple(also.split()),
        tuple(primitive.split()),
        akin,
        tuple(arguments.split()),
        tuple(in_mindspore.split()),
        rounding,
        gradient,
        summed,
        dim,
        drops,
        approximation,
        tuple(parts.split()),
        defaults,
        of_primitive,
    )
