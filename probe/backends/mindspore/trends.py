"""Values of a running training with MindSpore, as a monitor reads them: the group `Trends`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
from mindspore import ParameterTuple, Tensor, nn
from mindspore.experimental.optim import Optimizer

from probe.backends.mindspore.gradient_graph import tensors_in
from probe.backends.mindspore.guards import guarded, unobserved
from probe.backends.mindspore.hooks.module_hooks import CELLS, ModuleKind
from probe.backends.mindspore.internals import executor
from probe.backends.mindspore.statistics import packed, plain_name, to_array
from probe.backends.protocol import Measured, Measurer, Signature, Sketched
from probe.backends.protocol.trends import CommunicationListener, Ready, SpectralNorms, StoredWeight
from probe.backends.shared import trends
from probe.backends.shared.patching import Handles
from probe.common import log
from probe.common.interfaces import Handle, Logs

_NAMES = {"moment1": "exp_avg", "moment2": "exp_avg_sq", "moments": "momentum_buffer", "accum": "momentum_buffer"}
"""States by the names that PyTorch has for them."""
_OF_NUMPY = frozenset(("bool", "float16", "float32", "float64", "complex64", "complex128")) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_OPTIMIZERS = (nn.Optimizer, Optimizer)
_NOT_STATES = frozenset(("parameters", "_parameters", "param_groups"))


class ArrayMeasurer:
    """Implements `probe.backends.protocol.Measurer` with numpy, at once."""

    def __init__(self, ops: Sequence[str], eps: float, exact: bool = False) -> None:
        self._ops, self._eps, self._exact = tuple(ops), eps, exact

    def measure(self, tensor: Any) -> Measured | None:
        array = unobserved(to_array, tensor)
        values = trends.statistics(self._ops, array, self._eps, self._exact)
        exact = array.dtype.kind in "biu"
        return Measured(values, self._shape(tensor), str(tensor.dtype), array.size, exact)

    @staticmethod
    def _shape(tensor: Any) -> str:
        return str(tuple(tensor.shape))

    def change(self, before: Any, parameter: Any) -> Measured | None:
        now = _wide(parameter)
        update, weight = float(np.linalg.norm(now - before)), float(np.linalg.norm(before))
        ratio = update / weight if weight else np.inf if update else np.nan
        return Measured([update, weight, float(ratio)], self._shape(parameter), str(parameter.dtype), now.size)

    def signs(self, gradient: Any) -> Measured | None:
        array = _wide(gradient)
        return Measured([float(np.mean(array > 0))], self._shape(gradient), str(gradient.dtype), array.size)

    def signatures(
        self, gradients: Sequence[Any], bounds: Sequence[float], checksum: bool, bits: bool
    ) -> list[Signature | None]:
        return [trends.signature(unobserved(to_array, each), bounds, checksum, bits) for each in gradients]

    def sketch(self, tensor: Any) -> Sketched | None:
        array = unobserved(to_array, tensor)
        return Sketched([packed(array)], self._shape(tensor), str(tensor.dtype), array.size)

    def agreement(self, gradient: Any, moment: Any) -> Measured | None:
        product = np.sign(_wide(gradient)) * np.sign(_wide(moment))
        return self.number(float((1 + product.mean()) / 2))

    def number(self, value: float) -> Measured:
        return Measured([trends.of_number(op, value) for op in self._ops], "()", "Float32", 1)

    def collect(self) -> Callable[[], None] | None:
        return None


def _spectral_norm(weight: Any) -> tuple[float, float]:
    array = _wide(weight)
    frobenius = float(np.linalg.norm(array))
    if not np.isfinite(frobenius):
        return np.nan, np.nan
    largest = float(np.linalg.norm(array, 2))
    return largest, frobenius / largest if largest else np.nan


def _stored(tensor: Any) -> StoredWeight:
    dtype, shape = plain_name(tensor.dtype), tuple(tensor.shape)
    # numpy lacks bfloat16 and float8.
    array = to_array(tensor) if dtype in _OF_NUMPY else None
    data = np.frombuffer(tensor.get_bytes(), np.uint8) if array is None else np.ascontiguousarray(array)
    return StoredWeight(dtype, shape, data.reshape(-1).view(np.uint8))


def _wide(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(unobserved(to_array, tensor), dtype=np.float64)


class MindSporeTrends:
    """Implements `probe.backends.protocol.Trends` for MindSpore on the host."""

    def __init__(self, kind: ModuleKind = CELLS) -> None:
        self._kind = kind
        self._given: dict[int, Any] = {}
        """By the identity of parameters, the gradients that the optimizer was called with."""
        self._ready: list[tuple[Sequence[weakref.ref[Any]], Ready]] = []
        """Told of those where the framework reports no gradients of parameters."""

    # --- models

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        return iter(self._kind.inside(model))

    def parameters(self, model: Any, frozen: bool = False) -> Iterable[tuple[str, Any]]:
        if isinstance(model, _OPTIMIZERS):
            # Cells of their own, whose states are parameters as well.
            return [(each.name, each) for each in model.parameters]
        return [(each.name, each) for each in (model.get_parameters() if frozen else model.trainable_params())]

    def weights(self, model: Any) -> Iterable[tuple[str, Any]]:
        return self.parameters(model, frozen=True)

    def stored_weight(self, tensor: Any) -> StoredWeight | None:
        found: StoredWeight = unobserved(_stored, tensor)
        return found

    def is_frozen(self, parameter: Any) -> bool:
        return not parameter.requires_grad

    def is_optimizer(self, value: Any) -> bool:
        return isinstance(value, _OPTIMIZERS)

    def gradient(self, parameter: Any, main: bool) -> Any:
        return self._given.get(id(parameter))

    def whole(self, tensor: Any) -> tuple[str, str]:
        return str(tuple(tensor.shape)), ""

    def takes_gradient(self, tensor: Any) -> bool:
        # The tracker counts every tensor.
        return True

    def tensors_in(self, value: Any) -> list[Any]:
        return list(tensors_in(value))

    def is_first(self, group: Any) -> bool:
        if group is not None:
            log.warning(
                "Process groups of MindSpore are not read, so each rank writes all gradients.", once="monitor groups"
            )
        return True

    def members(self, group: Any) -> tuple[int, ...]:
        return ()  # groups of MindSpore need devices

    def copy(self, parameter: Any) -> Any:
        return np.array(_wide(parameter))

    def recording(self) -> bool:
        return bool(executor.requires_grad())

    def recomputing(self) -> bool:
        return False

    def measurer(self, ops: Sequence[str], eps: float, exact: bool = False) -> Measurer:
        return ArrayMeasurer(ops, eps, exact)

    def spectral_norms(self) -> SpectralNorms:
        return lambda weights: {number: _spectral_norm(weight) for number, weight in weights.items()}

    def linear_weight(self, module: Any) -> Any:
        weight = self._kind.parameters(module).get("weight")
        return weight if weight is not None and len(weight.shape) == 2 else None

    def attention(self, query: Any, key: Any, order: str) -> tuple[float, float]:
        q, k = (_wide(each)[:, 0, 0] if order == "s,b,h,d" else _wide(each)[0, :, 0] for each in (query, key))
        scores = q @ k.T / np.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        logs = np.log(np.where(p > 0, p, 1.0))
        return float(-(p * logs).sum(-1).mean()), float(p.max(-1).mean())

    def routing(self, values: Any, are_logits: bool) -> list[tuple[float, float, float]]:
        wide = _wide(values)
        wide = wide.reshape(-1, wide.shape[-1])
        p = np.exp(wide - wide.max(-1, keepdims=True)) if are_logits else wide
        total = p.sum(-1, keepdims=True)
        kept = total[:, 0] != 0
        p = p[kept] / total[kept]
        tokens = max(len(p), 1)
        logs = np.log(np.where(p > 0, p, 1.0))
        shares = np.bincount(p.argmax(-1), minlength=p.shape[1]) / tokens
        sums = (-p * logs).sum(0), p.sum(0)
        return list(zip((sums[0] / tokens).tolist(), shares.tolist(), (sums[1] / tokens).tolist()))

    def read(self, made: Sequence[Any]) -> list[Any]:
        return list(made)

    # --- optimizers

    def attach_optimizer(
        self, optimizer: Any, before: Callable[[], None], after: Callable[[], None], logs: Logs
    ) -> Handle:
        def enter(cell: Any, args: Any, kwargs: Any) -> None:
            guarded(logs, "the step of the optimizer", self._enter, optimizer, args, before)

        def leave(cell: Any, args: Any, kwargs: Any, output: Any) -> None:
            guarded(logs, "the step of the optimizer", after)
            self._given.clear()

        handles: list[Handle] = []
        CELLS.attach(optimizer, enter, leave, handles)
        return Handles(handles)

    def _enter(self, optimizer: Any, args: Any, before: Callable[[], None]) -> None:
        gradients = args[0] if args and isinstance(args[0], (tuple, list)) else args
        self._given = {
            id(parameter): gradient
            for parameter, gradient in zip(optimizer.parameters, gradients)
            if isinstance(gradient, Tensor)
        }
        self._tell_ready()
        before()

    def _tell_ready(self) -> None:
        for parameters, ready in self._ready:
            for index, parameter in enumerate(each() for each in parameters):
                gradient = None if parameter is None else self.gradient(parameter, False)
                if gradient is not None:
                    ready(index, gradient)

    def optimizer_state(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        parameters = list(getattr(optimizer, "parameters", ()))
        position = next((at for at, each in enumerate(parameters) if each is parameter), None)
        if position is None:
            return {}
        found: dict[str, Any] = {}
        for name in {**vars(optimizer), **vars(optimizer).get("_params_list", {})}:
            values = getattr(optimizer, name, None)
            if name in _NOT_STATES or not isinstance(values, ParameterTuple) or len(values) != len(parameters):
                continue
            state = values[position]
            if tuple(state.shape) == tuple(parameter.shape):
                found[_NAMES.get(name, name)] = state
        return found

    def innermost(self, optimizer: Any) -> Any:
        return optimizer

    def state_counts(self, optimizer: Any) -> Mapping[str, float]:
        return {}

    def ties(self, model: Any) -> Sequence[tuple[str, str, Callable[[], bool]]]:
        return ()

    # --- gradients and communication

    def attach_gradients(self, models: Sequence[Any], parameters: Sequence[Any], ready: Ready, logs: Logs) -> Handle:
        """The gradients that the optimizer is called with: nothing tells earlier ones."""
        told = ([weakref.ref(each) for each in parameters], ready)
        self._ready.append(told)
        return _Told(self._ready, told)

    def reduces(self, model: Any) -> bool:
        return False

    def attach_communication(self, listener: CommunicationListener, logs: Logs) -> Handle:
        log.warning("cc_distribution: communication of MindSpore is not observed; it has no rows.", once="monitor comm")
        return Handles([])


class _Told:
    def __init__(self, ready: list[Any], told: Any) -> None:
        self._ready, self._told = ready, told

    def remove(self) -> None:
        if self._told in self._ready:
            self._ready.remove(self._told)
