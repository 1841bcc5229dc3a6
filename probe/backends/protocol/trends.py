"""Values of a running training, as a monitor reads them: group `Trends` of an adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.interfaces import Handle, Logs

if TYPE_CHECKING:
    # A monitor of norms alone needs no numpy here, nor does the command line.
    from numpy.typing import NDArray


class Measured(NamedTuple):
    """The statistics of one tensor."""

    values: list[float]
    """One for each op of the `Measurer`; filled by `Measurer.resolve` where they are computed on a device."""
    shape: str
    """The shape as the framework prints it: ``[2, 8]``."""
    dtype: str
    elements: int
    is_exact: bool = False
    """True of integers and booleans, whose statistics are no signs of health."""


class StoredWeight(NamedTuple):
    """The elements of a weight that this process has, on the host."""

    dtype: str
    """The plain name."""
    shape: tuple[int, ...]
    data: NDArray[Any]
    """Their bytes in row-major order, uint8; not to be written to."""
    starts: tuple[int, ...] = ()
    """The index of the first element in the whole weight, whose shape follows, if the weight is distributed."""
    whole: tuple[int, ...] = ()


class Signature(NamedTuple):
    """A gradient in few numbers."""

    values: list[float]
    """The share of elements in each interval, the share of zeros, largest, smallest, L2 norm."""
    checksum: str
    """MD5 of the bytes; empty if it is not wanted."""
    bits: bytes
    """A bit for each element, 1 above zero, eight in a byte with the first one highest; empty if not wanted."""


class Sketched(NamedTuple):
    """The sketch of one tensor."""

    packed: list[bytes]
    """One value, see `probe.common.numerics.sketch.Sketch.packed`; there when what `Measurer.collect` gave has run."""
    shape: str
    dtype: str
    elements: int


class Measurer(Protocol):
    """Computes the same statistics of many tensors."""

    def measure(self, tensor: Any) -> Measured | None:
        """The statistics of `tensor` as it is now; ``None`` if it has no values of its own."""

    def change(self, before: Any, parameter: Any) -> Measured | None:
        """The norms of the change of a parameter and of what it was, and their quotient."""

    def signs(self, gradient: Any) -> Measured | None:
        """The share of elements above zero."""

    def signatures(
        self, gradients: Sequence[Any], bounds: Sequence[float], checksum: bool, bits: bool
    ) -> list[Signature | None]:
        """The signs and the distributions of gradients, at once; ``None`` of one that has no values of its own.

        Those on a device are read together.

        Args:
            bounds: The ends of intervals, ascending; (-inf, first], ..., (last, inf). Without them there are no shares.
            checksum, bits: True if they are wanted.
        """

    def sketch(self, tensor: Any) -> Sketched | None:
        """The sketch of `tensor` as it is now; ``None`` if it has no elements of its own in a known order."""

    def agreement(self, gradient: Any, moment: Any) -> Measured | None:
        """The mean of (1 + sign(gradient) * sign(moment)) / 2 as if it were a tensor of no dimension."""

    def number(self, value: float) -> Measured:
        """A number as if it were a tensor of no dimension."""

    def collect(self) -> Callable[[], None] | None:
        """Start the transfer of everything that is still on a device; the result waits for it and fills in `values`.

        ``None`` if nothing is on a device.
        """


class CommunicationListener(Protocol):
    """The callbacks of `Trends.attach_communication`. No method raises."""

    def enter_communication(self, name: str, tensors: Sequence[Any], about: Mapping[str, Any]) -> Any:
        """The collective `name` is about to run; `about` has ``group`` (size) and ``peer``."""

    def leave_communication(self, entered: Any, tensors: Sequence[Any]) -> None:
        """A call of communication has returned; `entered` is what `enter_communication` gave."""


SpectralNorms = Callable[[Mapping[int, Any]], Mapping[int, tuple[float, float]]]
"""Gives of each weight, under its number, the largest singular value and the Frobenius norm divided by it.

A weight keeps its number over many steps. All of them are read together.
"""
Ready = Callable[[int, Any], None]
"""Called with the index of a parameter and its gradient."""


class Trends(Protocol):
    """Models, optimizers and their tensors, as a monitor reads them."""

    def modules(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Every module of `model` with its path, itself (with an empty path) first."""

    def parameters(self, model: Any, frozen: bool = False) -> Iterable[tuple[str, Any]]:
        """The parameters of `model` that are trained, each once, with their names; with `frozen` the others as well."""

    def weights(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The parameters and the buffers of `model` that a checkpoint of it has, under their names there."""

    def stored_weight(self, tensor: Any) -> StoredWeight | None:
        """The elements of a weight as they are stored; ``None`` if it has none of its own, such as on a meta device."""

    def is_frozen(self, parameter: Any) -> bool:
        """True of a parameter that the program has excluded from training."""

    def is_optimizer(self, value: Any) -> bool:
        """True of an optimizer that names its parameters, so that `parameters` takes it in the place of a model."""

    def gradient(self, parameter: Any, main: bool) -> Any:
        """The gradient of a parameter, or ``None``; with `main` the one that Megatron keeps as ``main_grad``."""

    def whole(self, tensor: Any) -> tuple[str, str]:
        """The shape of the whole that `tensor` is a part of, or its own, and which part of it.

        A part is such as ``Shard(dim=0) of [8, 16]``, and empty of a tensor that is not sharded.
        """

    def takes_gradient(self, tensor: Any) -> bool:
        """True if a gradient of `tensor` is counted by `Hooks.attach_module`."""

    def tensors_in(self, value: Any) -> list[Any]:
        """The tensors in a container, in the order in which `Hooks.attach_module` counts them."""

    def is_first(self, group: Any) -> bool:
        """True if this rank is the first of a process group, or the group is ``None``."""

    def members(self, group: Any) -> tuple[int, ...]:
        """The ranks of a process group; none if the group is ``None``."""

    def recording(self) -> bool:
        """True if gradients are recorded now."""

    def recomputing(self) -> bool:
        """True if forward code runs for a backward that is under way, as it does with activation checkpoints."""

    def measurer(self, ops: Sequence[str], eps: float, exact: bool = False) -> Measurer:
        """An object that computes `ops` of tensors; see `OPS`.

        Args:
            eps: Below it an element counts as zero.
            exact: True if sums are in float64 throughout, which takes longer.
        """

    def spectral_norms(self) -> SpectralNorms:
        """A function for the weights of one model."""

    def linear_weight(self, module: Any) -> Any:
        """The matrix of a module that multiplies by one, or ``None``."""

    def attention(self, query: Any, key: Any, order: str) -> Any:
        """Entropy and largest probability of causal attention, of the first batch and head: two numbers, for `read`.

        Args:
            order: The dimensions of `query` and `key`: ``s,b,h,d`` or ``b,s,h,d``.
        """

    def routing(self, values: Any, are_logits: bool) -> Any:
        """For each expert its part of the mean entropy, the share of tokens that prefer it, and its mean probability.

        Rows of three numbers, for `read`.

        The means are over the tokens whose weights are not all zero; a router that drops tokens gives them such.

        Args:
            values: Logits or weights, with the experts in the last dimension.
        """

    def read(self, made: Sequence[Any]) -> list[Any]:
        """The numbers of what `attention` and `routing` made, as lists; of a device with one transfer."""

    def copy(self, parameter: Any) -> Any:
        """A copy of the values of a parameter."""

    def attach_optimizer(
        self, optimizer: Any, before: Callable[[], None], after: Callable[[], None], logs: Logs
    ) -> Handle:
        """Call `before` and `after` around every step of `optimizer`, in which gradients are final."""

    def optimizer_state(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """The tensors that `optimizer` keeps for a parameter, by name (``exp_avg``); those of one number left out."""

    def innermost(self, optimizer: Any) -> Any:
        """The optimizer inside of its wrappers."""

    def state_counts(self, optimizer: Any) -> Mapping[str, float]:
        """``parameters``: those that have a state, and ``step``: the updates that it counts, as far as it does."""

    def ties(self, model: Any) -> Sequence[tuple[str, str, Callable[[], bool]]]:
        """The names of each two that are one parameter now, and a test whether they still are."""

    def attach_gradients(self, models: Sequence[Any], parameters: Sequence[Any], ready: Ready, logs: Logs) -> Handle:
        """Report each gradient of `parameters` when it was accumulated, before it is reduced over ranks.

        Only the first is given where the framework cannot tell more.
        """

    def reduces(self, model: Any) -> bool:
        """True if a wrapper of `model` reduces gradients over ranks."""

    def attach_communication(self, listener: CommunicationListener, logs: Logs) -> Handle:
        """Report collective communication of the program, calls inside of another one not."""


OPS = ("min", "max", "mean", "norm", "zeros", "nans", "id", "std", "absmax", "l1", "kurtosis", "infs")
"""The statistics that a `Measurer` knows."""
