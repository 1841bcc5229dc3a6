"""The shape of a tensor whose pieces are known: along which dimension it was split.

A dump does not say it. It follows from what is known of the call: the weight of a linear layer is split along its
inputs where these are pieces, and along its outputs otherwise; what an operation returns is split where its input is,
which a change of shape carries along; what comes back in the backward pass is split as it was in the forward pass.
Where both factors of a product of many matrices are pieces, each rank has some of these matrices: its heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, function_name, parse, record_name
from probe.common.dump.reading.items import Shape, shape_text

_LINEAR = ("linear", "dense")
_TRANSPOSING = ("transpose", "permute", "swapaxes", "swapdims", "t")
_BATCHED = ("matmul", "bmm", "scaled_dot_product_attention")


class SplitDimensions:
    """Along which dimension the items of the calls of a stage are split; calls are given in order of execution."""

    def __init__(self) -> None:
        self._of_item: dict[str, tuple[Shape, int | None]] = {}
        """The shape of one piece, and the dimension; ``None`` of what every rank has whole."""
        self._inputs: dict[str, list[str]] = {}
        """The tensors among the inputs of each call."""
        self._of_values: dict[tuple[Any, ...], set[int]] = {}
        """A square tensor and the same transposed have the same values, and two dimensions."""
        self._of_parameter: dict[str, int | None] = {}
        self.record = ""
        """The record whose items are given now."""
        self._fields: dict[str, Any] = {}
        self._outputs: list[str] = []
        """The tensors among the outputs of the record."""
        self._given: tuple[Any, ...] = ()
        """The values of the first input of the record, if these are pieces."""
        self._looks_up_own_words = self._has_own_matrices = False
        self._of_forward: dict[str, tuple[bool, bool]] = {}
        """For each call of the forward pass, true if it looks up own words, and true if it has own matrices."""

    def begin(self, record: str, pieces: Sequence[dict[str, Any]]) -> None:
        """The items that follow are of this record."""
        self.record, self._fields, self._given, self._outputs = record, pieces[0], (), []
        self._looks_up_own_words, self._has_own_matrices = self._of_forward.get(self._forward, (False, False))
        if self._forward in ("", record):
            differs = [len({str(argument) for argument in of_ranks}) > 1 for of_ranks in zip(*map(_arguments, pieces))]
            takes_pieces = differs[:2] == [True, True]
            # Masks make the words of other ranks one of a rank's own, so that these are no pieces of anything.
            self._looks_up_own_words = takes_pieces and "embedding" in self._api
            self._has_own_matrices = takes_pieces and any(kind in self._api for kind in _BATCHED)
            self._of_forward[record] = self._looks_up_own_words, self._has_own_matrices

    @property
    def _forward(self) -> str:
        """The call of the forward pass that the record belongs to; empty of what has no direction."""
        parsed = parse(self.record)
        return "" if parsed is None or not parsed.direction else record_name(parsed._replace(direction=FORWARD))

    @property
    def _api(self) -> str:
        """``matmul`` of an API; of a module nothing."""
        parsed = parse(self.record)
        return "" if parsed is None or parsed.is_module else function_name(self.record)

    def see(self, name: str) -> None:
        """Take the next tensor of the record."""
        if name.startswith(f"{self.record}.output."):
            self._outputs.append(name)
        if name.startswith(f"{self.record}.input."):
            self._inputs.setdefault(self.record, []).append(name)

    def must_be_split(self, name: str, shapes: Sequence[Shape]) -> bool:
        """True if what all ranks have alike, one constant value, is pieces for all that: the bias of a split weight."""
        known = self._known(name, shapes[0])
        if known is not None:
            return known[1] is not None
        if self._is_gradient_of_input(name):
            possible = self._dimensions_of_inputs(name, shapes[0])
            return bool(possible) and None not in possible
        parameter = self._parameter(name)
        if parameter is None or not parameter.endswith(".bias") or len(shapes[0]) != 1:
            return False
        weight = self._of_item.get(f"{name.rpartition('.')[0]}.weight")
        return weight is not None and weight[1] == 0 and weight[0][:1] == shapes[0]

    def are_summands(self, name: str, shapes: Sequence[Shape]) -> bool:
        """True if it is the gradient of what every rank has whole, of which each has computed a part."""
        known = self._known(name, shapes[0])
        parsed = parse(self.record)
        is_gradient = (parsed is not None and parsed.direction == PARAMETERS_GRAD) or self._is_gradient_of_input(name)
        return is_gradient and known is not None and known[1] is None

    def may_be_summands(self, name: str, shapes: Sequence[Shape]) -> bool:
        """True if it is the gradient of one of several inputs, and some of these are whole and others are split."""
        possible = self._dimensions_of_inputs(name, shapes[0]) if self._is_gradient_of_input(name) else set()
        return len(possible) > 1 and None in possible

    def note_whole(self, name: str, shapes: Sequence[Shape]) -> None:
        """Every rank has all of this item."""
        self._of_item[name] = (shapes[0], None)
        parameter = self._parameter(name)
        if parameter is not None:
            self._of_parameter[parameter] = None

    def note_split(self, values: tuple[Any, ...]) -> None:
        """Note that tensors with these values are split along the first dimension."""
        self._of_values[values] = {0}

    def whole(
        self, name: str, shapes: Sequence[Shape], values: tuple[Any, ...], are_pieces: bool
    ) -> tuple[Shape | None, str]:
        """The shape of the whole of which the pieces have `shapes`, and a sentence; ``None`` where it is not known.

        Args:
            values: what tells the tensors of all ranks from others.
            are_pieces: true if it is that, and not what ranks exchange, which may be summands, nor numbers of words
                or masks.
        """
        dimension = self._dimension(name, shapes, values) if are_pieces else None
        if name == f"{self.record}.input.0":
            self._given = values
        pieces = ", ".join(map(shape_text, shapes))
        if dimension is None:
            return None, f"the shapes of its pieces are {pieces}; the dimension along which it is split is not known."
        self._of_item[name] = (shapes[0], dimension)
        self._of_values.setdefault(values, set()).add(dimension)
        parameter = self._parameter(name)
        if parameter is not None:
            self._of_parameter[parameter] = dimension
        size = sum(shape[dimension] for shape in shapes)
        whole = (*shapes[0][:dimension], size, *shapes[0][dimension + 1 :])
        return whole, f"pieces {pieces} along dimension {dimension} are {shape_text(whole)}."

    def _dimension(self, name: str, shapes: Sequence[Shape], values: tuple[Any, ...]) -> int | None:
        first = shapes[0]
        if not first or any(len(shape) != len(first) for shape in shapes):
            return None
        odd = {axis for shape in shapes for axis, size in enumerate(shape) if size != first[axis]}
        if odd:
            return odd.pop() if len(odd) == 1 else None
        if len(first) == 1:
            return 0
        if self._is_gradient_of_input(name):
            return self._gradient_dimension(name, first, values)
        known = self._known(name, first)
        if known is not None and known[1] is not None:
            return known[1]
        if self._api in _TRANSPOSING and name.startswith(f"{self.record}.output."):
            return self._carried(name, first)
        of_values = self._of_values.get(values, set())
        if of_values:
            return next(iter(of_values)) if len(of_values) == 1 else None
        weight = self._weight_dimension(name, first)
        if weight is not None:
            return weight
        if self._looks_up_own_words:
            return None
        return len(first) - 3 if self._has_own_matrices and len(first) > 2 else self._carried(name, first)

    def _known(self, name: str, shape: Shape) -> tuple[Shape, int | None] | None:
        """The shape that the forward pass gives for an item of the backward pass, or a parameter for its gradient."""
        parameter = self._parameter(name)
        if parameter is not None and parameter in self._of_parameter:
            return shape, self._of_parameter[parameter]
        if self._is_gradient_of_input(name):
            possible = self._dimensions_of_inputs(name, shape)
            return (shape, possible.pop()) if len(possible) == 1 else None
        parsed = parse(self.record)
        if parsed is None or parsed.direction != BACKWARD or not name.startswith(f"{self.record}.input."):
            return None
        found = self._of_item.get(f"{self._forward}.output.{name[len(self.record) + len('.input.') :]}")
        return found if found is not None and found[0] == shape else None

    def _is_gradient_of_input(self, name: str) -> bool:
        """True if it comes out of a call of the backward pass."""
        parsed = parse(self.record)
        return parsed is not None and parsed.direction == BACKWARD and name.startswith(f"{self.record}.output.")

    def _dimensions_of_inputs(self, name: str, shape: Shape) -> set[int | None]:
        """Each dimension along which a gradient may be split, from the inputs of its shape; ``None`` of whole ones.

        Gradients are those of the inputs that are tensors, one after the other. Those of a linear layer have no such
        order: torch gives that of the bias first and that of the weight transposed, and other frameworks do not.
        """
        inputs = self._inputs.get(self._forward, [])
        if not self._is_linear:
            position = name[len(self.record) + len(".output.") :]
            there = inputs[int(position)] if position.isdigit() and int(position) < len(inputs) else ""
            inputs = [there]
        known = {each: self._of_item[each] for each in inputs if each in self._of_item}
        possible = [dimension for of_input, dimension in known.values() if of_input == shape]
        if self._is_linear and len(shape) == 2:
            possible += [
                None if dimension is None else 1 - dimension
                for each, (of_input, dimension) in known.items()
                if of_input == shape[::-1] and each != f"{self._forward}.input.0"
            ]
        if self._is_linear:
            # Each input has one gradient: those of whole ones may have been among the outputs before this one.
            before = [self._of_item[each] for each in self._outputs if each != name and each in self._of_item]
            if before.count((shape, None)) >= possible.count(None):
                possible = [dimension for dimension in possible if dimension is not None]
        return set(possible)

    @property
    def _is_linear(self) -> bool:
        return any(kind in self._api for kind in _LINEAR)

    def _gradient_dimension(self, name: str, shape: Shape, values: tuple[Any, ...]) -> int | None:
        """The dimension of what comes out of a call of the backward pass; it is never guessed."""
        possible = self._dimensions_of_inputs(name, shape)
        given = self._of_item.get(f"{self.record}.input.0")
        # A framework that makes a linear layer of several functions records what the last of them returned.
        may_be_view = (self._is_linear or not possible) and self._api not in _TRANSPOSING
        if may_be_view and given is not None and given[1] is not None and _are_reshaped(self._given, values):
            viewed = given[1] if shape == given[0] else self._viewed(given, shape)
            if viewed is not None:
                return viewed
        if not possible:
            possible = {*self._of_values.get(values, ())}
        if not possible and self._has_own_matrices and len(shape) > 2:
            return len(shape) - 3
        return possible.pop() if len(possible) == 1 else None

    def _parameter(self, name: str) -> str | None:
        """Module and name of a parameter, the same of its values and its gradient."""
        if name.startswith(f"{self.record}.parameters."):
            parsed = parse(self.record)
            return None if parsed is None else f"{parsed.base}.{name[len(self.record) + len('.parameters.') :]}"
        parsed = parse(self.record)
        if parsed is not None and parsed.direction == PARAMETERS_GRAD:
            return f"{parsed.base}.{name[len(self.record) + 1 :]}"
        return None

    def _weight_dimension(self, name: str, shape: Shape) -> int | None:
        """Along which dimension a weight of two dimensions is split: along its inputs where these are pieces."""
        is_parameter = self._parameter(name) is not None
        if self._looks_up_own_words and len(shape) == 2:
            return 0
        is_argument = name == f"{self.record}.input.1" and self._is_linear
        if len(shape) != 2 or not (is_parameter or is_argument):
            return None
        given = self._of_item.get(f"{self.record}.input.0")
        takes_pieces = given is not None and given[1] == len(given[0]) - 1 and given[0][-1] == shape[1]
        return 1 if takes_pieces else 0

    def _carried(self, name: str, shape: Shape) -> int | None:
        """The dimension of what an operation returns, from that of what it takes; the last one of activations."""
        given = self._of_item.get(f"{self.record}.input.0")
        if given is None and self._given:
            # It takes pieces of which the dimension is not known.
            return None
        if given is None or given[1] is None:
            return len(shape) - 1 if len(shape) < 4 else None
        from_shape, dimension = given
        moved = self._moved(self._api, len(shape))
        if moved is not None:
            return moved.index(dimension) if dimension in moved else None
        return dimension if shape == from_shape else self._viewed(given, shape)

    def _viewed(self, given: tuple[Shape, int | None], shape: Shape) -> int | None:
        """The dimension of a view, which keeps the order of elements: what stands before it stands before it still."""
        from_shape, dimension = given
        before = math.prod(from_shape[:dimension])
        for axis in range(len(shape)):
            if math.prod(shape[:axis]) == before and shape[axis] > 1:
                return axis
        return None

    def _moved(self, api: str, dimensions: int) -> list[int] | None:
        """The dimension of the input for each dimension of a transposed tensor."""
        if api not in _TRANSPOSING:
            return None
        arguments = [argument.get("value") for argument in _arguments(self._fields)[1:] if argument]
        axes = list(range(dimensions))
        if api == "t":
            return axes[::-1]
        flat = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
        if not flat or not all(isinstance(axis, int) and -dimensions <= axis < dimensions for axis in flat):
            return None
        if api == "permute":
            return [axis % dimensions for axis in flat] if len(flat) == dimensions else None
        if len(flat) != 2:
            return None
        axes[flat[0]], axes[flat[1]] = axes[flat[1]], axes[flat[0]]
        return axes


def _are_reshaped(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """True if the tensors of all ranks have the same statistics, whatever shapes."""
    return [each[1:] for each in values] == [each[1:] for each in others]


def _arguments(fields: dict[str, Any]) -> list[Any]:
    found = fields.get("input_args") or fields.get("input") or []
    return found if isinstance(found, list) else []
