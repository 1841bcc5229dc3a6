"""The parts of a training that a monitor collects."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional

from probe.backends.protocol import FrameworkAdapter, trends_of

ItemName = Callable[[str, str, int, int], str]
"""Makes the name of a row of the module's path, ``input``, ``output``, ``input_grad`` or ``output_grad``, the index of
the tensor among its siblings, and their number."""


def first_item_name(path: str, role: str, index: int, count: int) -> str:
    """Names as in the files of `TrainerMon`: ``head.input``, ``head.input_1``."""
    place = role.partition("_")[0]
    return f"{path}.{place}" if count == 1 else f"{path}.{place}_{index}"


def second_item_name(path: str, role: str, index: int, count: int) -> str:
    """Names as in the files of `TrainerMonitorV2`: ``head.input.0``, ``head.grad_input.0``."""
    place, _, gradient = role.partition("_")
    return f"{path}.{'grad_' if gradient else ''}{place}.{index}"


@dataclass(frozen=True)
class Wanted:
    """Selection of the rows of each step.

    Args:
        ops: Statistics by group: ``module``, ``gradient``, ``optimizer``, ``parameter``, ``communication``.
        eps: Below it an element counts as zero.
        activations, activation_gradients: Of modules.
        is_module: True of the path of a module that is wanted.
        is_parameter: True of the name of a parameter that is wanted.
        is_item: True of the path of a module, the role as of `ItemName` and the index of a tensor that is wanted;
            ``None`` for all.
        gradients: Of weights, before and after reduction.
        each_micro_batch: Unreduced gradients of each micro batch, not of the last one only.
        unreduced_always: Unreduced gradients also where nothing reduces them.
        states: Of the optimizer.
        states_after: Those that the step has made, not those that it begins with.
        weights: Parameters before and after the step.
        direction: Agreement of gradient and first moment.
        update: Norms of the update and of the weight.
        signs: The share of positive elements of gradients.
        signatures: Of gradients, for the probe of gradients.
        gradient_sketches: Of the gradients that the optimizer is about to use.
        linear, attention: The modules of the L2 metrics; ``None`` if there are none.
        router_logits, router_weights: The routers whose outputs are logits, or weights, of experts.
        order: Of the dimensions of attention.
        course: Hyper-parameters, counters of the optimizer, loss scale and ties, as plain numbers.
        item_name: Names of rows of modules.
        as_msprobe: True if rows are those of msProbe also where they mislead.
        main_gradients: True if ``main_grad`` of a parameter is its gradient.
        first_of: Process groups of which only the first rank has reduced gradients.
    """

    ops: dict[str, tuple[str, ...]]
    eps: float = 1e-8
    activations: bool = False
    activation_gradients: bool = False
    is_module: Callable[[str], bool] = lambda path: True
    is_parameter: Callable[[str], bool] = lambda name: True
    is_item: Optional[Callable[[str, str, int], bool]] = None  # noqa: UP045
    gradients: bool = False
    each_micro_batch: bool = False
    unreduced_always: bool = True
    states: bool = False
    states_after: bool = False
    weights: bool = False
    direction: bool = False
    update: bool = False
    signs: bool = False
    signatures: Optional[WantedSignatures] = None  # noqa: UP045
    gradient_sketches: bool = False
    linear: Optional[Callable[[str], bool]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    attention: Optional[Callable[[str], bool]] = None  # noqa: UP045
    router_logits: Optional[Callable[[str], bool]] = None  # noqa: UP045
    router_weights: Optional[Callable[[str], bool]] = None  # noqa: UP045
    order: str = "s,b,h,d"
    communication: Optional[WantedCommunication] = None  # noqa: UP045
    course: bool = True
    item_name: ItemName = first_item_name
    as_msprobe: bool = False
    main_gradients: bool = False
    first_of: tuple[Any, ...] = ()

    @property
    def modules(self) -> bool:
        """True if modules are hooked for their activations."""
        return self.activations or self.activation_gradients


class WantedSignatures(NamedTuple):
    """Selection of what describes a gradient."""

    ops: tuple[str, ...]
    """The names of the values: intervals and zeros if there are `bounds`, and ``max``, ``min``, ``norm``."""
    bounds: tuple[float, ...] = ()
    checksum: bool = False
    bits: bool = False


class WantedCommunication(NamedTuple):
    """Selection of collective communication."""

    lines: tuple[str, ...] = ()
    """Only calls from these, as ``train.py[10]``; all if empty."""
    inputs: bool = False
    log_only: bool = False


# --- watched


_Named = list[tuple[str, "weakref.ref[Any]"]]


class Chunk:
    """One model of several. A part that the program has deleted is no part of it any more."""

    def __init__(self, adapter: FrameworkAdapter, number: int, model: Any) -> None:
        self.number = number
        self._model = weakref.ref(model)
        trends = trends_of(adapter)
        self._modules: _Named = [(path, weakref.ref(each)) for path, each in trends.modules(model)]
        parameters = trends.parameters(model, frozen=True)
        self._parameters: _Named = [(name, weakref.ref(each)) for name, each in parameters]

    @property
    def model(self) -> Any:
        """The model itself; ``None`` if it is deleted, and its modules may be in use in another one."""
        return self._model()

    @property
    def modules(self) -> Iterator[tuple[str, Any]]:
        """The modules with their paths."""
        return _alive(self._modules)

    @property
    def parameters(self) -> Iterator[tuple[str, Any]]:
        """The parameters with their names, those that are frozen as well."""
        return _alive(self._parameters)


class Watched:
    """The models of a training and its optimizer."""

    def __init__(self, adapter: FrameworkAdapter, models: Sequence[Any], optimizer: Any) -> None:
        self.chunks = [Chunk(adapter, at, model) for at, model in enumerate(models)]
        self._optimizer = None if optimizer is None else weakref.ref(trends_of(adapter).innermost(optimizer))

    @property
    def optimizer(self) -> Any:
        """The innermost optimizer; ``None`` if there is none, or it is deleted."""
        return None if self._optimizer is None else self._optimizer()


def _alive(named: _Named) -> Iterator[tuple[str, Any]]:
    for name, each in named:
        found = each()
        if found is not None:
            yield name, found
