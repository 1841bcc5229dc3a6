"""Statistics of many tensors for a monitor: at once on the CPU, and with one transfer for all on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, cast

import numpy as np
import torch

from probe.backends.protocol import Measured, Signature, Sketched
from probe.backends.shared import trends
from probe.backends.shared.trends import LIKE_ITSELF, of_number
from probe.backends.torch import internals
from probe.backends.torch.guards import beneath_transforms, with_autograd_kernels
from probe.backends.torch.originals import functions, own
from probe.backends.torch.tensors import plain_tensors, statistics
from probe.backends.torch.tensors.describe import is_wrapped
from probe.common.interfaces import MOST_ON_DEVICE, StatisticsMode

_BY_NUMPY = frozenset((torch.float16, torch.float32, torch.float64))
_WEIGHTS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Values of the bits of a byte, the highest first, as numpy packs them."""


def signatures(
    gradients: Sequence[torch.Tensor], bounds: Sequence[float], checksum: bool, bits: bool
) -> list[Signature | None]:
    """See `probe.backends.protocol.Measurer.signatures`."""
    found: list[Signature | None] = [None] * len(gradients)
    waiting: list[_OnDevice] = []
    held = 0
    for place, gradient in enumerate(gradients):
        if gradient.is_meta or gradient.is_quantized or gradient.is_nested or gradient.layout is not torch.strided:
            continue
        with with_autograd_kernels():
            tensor = own.detach(gradient)
            if tensor.dtype not in _BY_NUMPY:
                # numpy has no bfloat16; every value of it is one of float32.
                tensor = own.to(tensor, torch.float32)
            if tensor.is_cpu or not own.numel(tensor):
                found[place] = trends.signature(own.numpy(own.cpu(tensor)), bounds, checksum, bits)
                continue
            waiting.append(_on_a_device(place, tensor, bounds, checksum, bits))
            held += sum(own.numel(part) for part in waiting[-1].parts)
            if held > MOST_ON_DEVICE:
                _fill(found, waiting, bounds)
                waiting, held = [], 0
    with with_autograd_kernels():
        _fill(found, waiting, bounds)
    return found


class _OnDevice(NamedTuple):
    """The signature of a gradient, still being computed."""

    place: int
    elements: int
    parts: list[torch.Tensor]
    """Bytes: of the numbers in float64, of the signs if they are wanted, of the elements unless `checksum` is known."""
    checksum: str | None
    bits: bool


def _on_a_device(place: int, tensor: torch.Tensor, bounds: Sequence[float], checksum: bool, bits: bool) -> _OnDevice:
    smallest, largest = functions.aminmax(tensor)
    numbers = [largest, smallest, internals.vector_norm(tensor, dtype=torch.float64)]
    if bounds:
        numbers += [own.sum(functions.le(tensor, bound)) for bound in bounds]
        numbers += [own.sum(functions.isnan(tensor)), own.sum(functions.eq(tensor, 0))]
    parts = [own.view(functions.stack([own.to(each, torch.float64) for each in numbers]), torch.uint8)]
    if bits:
        # An eighth of a byte for each element.
        parts.append(_packed(tensor))
    digest: str | None = None
    if not checksum:
        digest = ""
    elif statistics.waits(tensor):
        parts.append(own.view(own.reshape(tensor, -1), torch.uint8))
    else:
        digest = trends.md5(statistics.bytes_of(tensor))
    return _OnDevice(place, own.numel(tensor), parts, digest, bits)


def _fill(found: list[Signature | None], waiting: Sequence[_OnDevice], bounds: Sequence[float]) -> None:
    """Read signatures, with one transfer from each device."""
    read = iter(statistics.fetched_bytes([part for each in waiting for part in each.parts]))
    for each in waiting:
        numbers = np.frombuffer(next(read).tobytes(), np.float64).tolist()
        shares: list[float] = []
        if bounds:
            *below, nans, zeros = map(int, numbers[3:])
            shares = trends.interval_shares(below, each.elements, nans, zeros)
        packed = next(read).tobytes() if each.bits else b""
        digest = trends.md5(next(read)) if each.checksum is None else each.checksum
        found[each.place] = Signature([*shares, *numbers[:3]], digest, packed)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of `Signature.bits`, still on the device."""
    flags = own.to(own.reshape(functions.gt(tensor, 0), (-1,)), torch.uint8)
    missing = -own.numel(flags) % len(_WEIGHTS)
    if missing:
        flags = functions.cat((flags, functions.zeros(missing, dtype=torch.uint8, device=flags.device)))
    weights = functions.tensor(_WEIGHTS, dtype=torch.uint8, device=flags.device)
    octets = own.sum(functions.mul(own.reshape(flags, (-1, len(_WEIGHTS))), weights), 1, dtype=torch.uint8)
    return cast(torch.Tensor, octets)


# --- measuring


_NAN = math.nan
_KEYS = {"min": "Min", "max": "Max", "mean": "Mean", "norm": "Norm"}
_NO_KINDS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_DESCRIBE = plain_tensors.direct_describer(StatisticsMode(high_precision=True))
_PAIRS: Any = _DESCRIBE
_norm = internals.vector_norm
_new: Any = tuple.__new__
_prod = math.prod
_SCALAR_DTYPE = "torch.float32"


def local(tensor: Any) -> Any:
    """The rank's part of a sharded tensor, or the tensor."""
    kind = type(tensor)
    # To ask an ordinary tensor for an attribute that it lacks takes as long as to measure it.
    return tensor if kind is torch.Tensor or kind is torch.nn.Parameter else getattr(tensor, "_local_tensor", tensor)


class TorchMeasurer:
    """Implements `probe.backends.protocol.Measurer`; of a sharded tensor the rank's part is measured."""

    def __init__(self, ops: Sequence[str], eps: float, exact: bool = False) -> None:
        self._describe = None if exact else _DESCRIBE
        self._row = None if exact else plain_tensors.row_maker(ops, eps)
        self._ops = tuple(ops)
        self._eps = eps
        self._waiting: list[tuple[list[float], list[Any]]] = []
        """Lists to be filled, with numbers that are on a device."""
        self._sketches: list[tuple[list[bytes], torch.Tensor]] = []
        """Likewise for sketches."""
        self._keys = [_KEYS.get(op, "Min") for op in ops]
        """The key of an entry for each op; one that has none is computed by itself."""
        self._others = [(index, op) for index, op in enumerate(ops) if op not in _KEYS]
        self._texts: dict[tuple[int, ...], str] = {}

    # --- one tensor

    def measure(self, tensor: torch.Tensor) -> Measured | None:
        if self._row is not None:
            row = self._row(tensor)
            if row is not None:
                # The constructor of a named tuple is a function of Python, which takes longer than a small tensor.
                return _new(Measured, row)  # type: ignore[no-any-return]
        describe = self._describe
        if describe is not None:
            entry = describe(tensor)
            if entry is not None and entry["shape"] and entry["Norm"] is not None:
                return self._measured_entry(entry, tensor)
        return self._measured(local(tensor))

    def _measured_entry(self, entry: dict[str, Any], tensor: torch.Tensor) -> Measured:
        shape = entry["shape"]
        size = tuple(shape)
        text = self._texts.get(size)
        if text is None:
            text = self._texts[size] = str(shape)
        values = [entry[key] for key in self._keys]
        for index, op in self._others:
            values[index] = self._op_of_entry(op, entry, tensor)
        # The constructor of a named tuple is a function of Python, which takes longer than to measure a small tensor.
        made: Measured = _new(Measured, (values, text, entry["dtype"], _prod(shape), tensor.dtype not in _NO_KINDS))
        return made

    def _op_of_entry(self, op: str, entry: dict[str, Any], tensor: torch.Tensor) -> float:
        smallest, largest, mean = entry["Min"], entry["Max"], entry["Mean"]
        if op == "nans":
            return 0 if mean == mean else int(own.item(own.sum(functions.isnan(tensor))))
        if op == "id":
            return _NAN
        if op == "absmax":
            return max(abs(smallest), abs(largest))  # type: ignore[no-any-return]
        if op == "infs" and -math.inf < smallest and largest < math.inf:
            return 0
        if op == "zeros":
            if smallest >= self._eps or largest <= -self._eps:
                return 0.0
            if smallest == largest == 0:
                return 1.0
            array = _array(tensor)
            if array is not None:
                # A third of the time that torch's functions take for a small tensor.
                below = np.abs(array) < np.float32(self._eps)
                return float(np.float32(np.count_nonzero(below) / array.size))
        return float(own.item(_op(op, tensor, self._eps)))

    def _measured(self, tensor: Any) -> Measured | None:
        if not _is_plain(tensor):
            return None
        shape, dtype = list(tensor.shape), tensor.dtype
        exact = dtype not in _NO_KINDS and not dtype.is_complex and not str(dtype).startswith("torch.float")
        with with_autograd_kernels():
            results = beneath_transforms(self._results, tensor)
        values: list[float]
        if tensor.is_cpu:
            values = [_plain(each) for each in results]
        else:
            values = [_NAN] * len(self._ops)
            self._waiting.append((values, results))
        return Measured(values, str(shape), str(dtype), own.numel(tensor), exact)

    def _results(self, tensor: torch.Tensor) -> list[Any]:
        """One number or tensor of no dimension for each op."""
        tensor = own.detach(tensor)
        is_flag, is_empty = tensor.dtype is torch.bool, own.numel(tensor) == 0
        if tensor.dtype.is_complex:
            tensor = own.abs(tensor)
        if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point:
            tensor = own.to(tensor, torch.float32)
        if is_flag:
            tensor = own.to(tensor, torch.uint8)
        results: list[Any] = []
        extremes: Any = None
        for op in self._ops:
            if is_empty:
                results.append(0.0 if op in ("norm", "nans", "infs", "l1") else _NAN)
            elif op in ("min", "max"):
                if extremes is None:
                    extremes = functions.aminmax(tensor) if tensor.shape else (tensor, tensor)
                results.append(extremes[op == "max"])
            elif op == "id":
                results.append(_NAN if tensor.shape else tensor)
            elif op == "zeros" and is_flag:
                results.append(_NAN)
            else:
                results.append(_op(op, tensor, self._eps))
        if not tensor.is_cpu:
            # The program may write to it before it is read.
            results = [own.clone(each) if each is tensor else each for each in results]
        return results

    # --- several, and numbers

    def signatures(
        self, gradients: Sequence[torch.Tensor], bounds: Sequence[float], checksum: bool, bits: bool
    ) -> list[Signature | None]:
        return signatures([local(each) for each in gradients], bounds, checksum, bits)

    def sketch(self, tensor: torch.Tensor) -> Sketched | None:
        tensor = local(tensor)
        if not _is_plain(tensor) or not statistics.whole(tensor):
            return None
        made: list[bytes] = []
        with with_autograd_kernels():
            if tensor.is_cpu or not own.numel(tensor):
                made.append(beneath_transforms(statistics.packed, tensor))
            else:
                self._sketches.append((made, beneath_transforms(statistics.on_device, tensor)))
        return Sketched(made, str(list(tensor.shape)), str(tensor.dtype), own.numel(tensor))

    def agreement(self, gradient: torch.Tensor, moment: torch.Tensor) -> Measured | None:
        """The share of elements that have the same sign; products that are zero count one half."""
        gradient, moment = local(gradient), local(moment)
        share = None if _PAIRS is None else _PAIRS.agreement(gradient, moment)
        if share is not None:
            return self.number(share)
        one, other = _array(gradient), _array(moment)
        if one is not None and other is not None:
            agree = np.multiply(np.sign(one), np.sign(other))
            return self.number(float(np.float32((1 + float(np.mean(agree, dtype=np.float64))) / 2)))
        with with_autograd_kernels():
            products = functions.mul(functions.sign(gradient), functions.sign(own.to(moment, gradient.dtype)))
            value = functions.mul(functions.add(functions.mean(own.to(products, torch.float32)), 1), 0.5)
        if value.is_cpu:
            return self.number(own.item(value))
        values = [_NAN] * len(self._ops)
        self._waiting.append((values, [value if op in LIKE_ITSELF else of_number(op, 1.0) for op in self._ops]))
        return Measured(values, "[]", _SCALAR_DTYPE, 1)

    def change(self, before: torch.Tensor, parameter: torch.Tensor) -> Measured | None:
        parameter = local(parameter)
        with with_autograd_kernels():
            now = own.detach(parameter)
            wide = torch.float64 if now.dtype is torch.float64 or now.is_cpu else torch.float32
            update, weight = (_norm(each, dtype=wide) for each in (functions.sub(now, before), before))
            results = [update, weight, functions.div(update, weight)]
        if now.is_cpu:
            return Measured([_plain(each) for each in results], str(list(now.shape)), str(now.dtype), own.numel(now))
        values = [_NAN] * 3
        self._waiting.append((values, results))
        return Measured(values, str(list(now.shape)), str(now.dtype), own.numel(now))

    def signs(self, gradient: torch.Tensor) -> Measured | None:
        gradient = local(gradient)
        share = functions.mean(own.to(functions.gt(gradient, 0), torch.float32))
        shape = str(list(gradient.shape))
        if share.is_cpu:
            return Measured([_plain(share)], shape, str(gradient.dtype), own.numel(gradient))
        values = [_NAN]
        self._waiting.append((values, [share]))
        return Measured(values, shape, str(gradient.dtype), own.numel(gradient))

    def number(self, value: float) -> Measured:
        values = [of_number(op, value) for op in self._ops]
        return Measured(values, "[]", _SCALAR_DTYPE, 1)

    # --- what is on a device

    def collect(self) -> Callable[[], None] | None:
        waiting, self._waiting = self._waiting, []
        sketches, self._sketches = self._sketches, []
        if not waiting and not sketches:
            return None
        groups: dict[torch.device, list[tuple[list[float], int, torch.Tensor]]] = {}
        for values, results in waiting:
            for index, each in enumerate(results):
                if isinstance(each, torch.Tensor):
                    groups.setdefault(each.device, []).append((values, index, own.to(each, torch.float64)))
                else:
                    values[index] = each
        transfers = [(members, *_transfer([each for _, _, each in members])) for members in groups.values()]
        by_device: dict[torch.device, list[tuple[list[bytes], torch.Tensor]]] = {}
        for each in sketches:
            by_device.setdefault(each[1].device, []).append(each)
        rows = [(members, *_transfer([sums for _, sums in members])) for members in by_device.values()]

        def resolve() -> None:
            for holders, host, done in rows:
                done()
                for (holder, _), row in zip(holders, own.numpy(host)):
                    holder.append(statistics.packed_row(row))
            for members, host, done in transfers:
                done()
                for (values, index, _), number in zip(members, own.tolist(host)):
                    values[index] = number

        return resolve


def _is_plain(tensor: Any) -> bool:
    """True of a dense tensor with elements of its own, which is no wrapper."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or is_wrapped(tensor):
        return False
    return not (tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided)


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """The elements of an ordinary float32 tensor in the host's memory as numpy sees them; ``None`` of any other."""
    if tensor.dtype is not torch.float32 or not tensor.is_cpu or tensor.layout is not torch.strided:
        return None
    try:
        array: np.ndarray[Any, Any] = own.numpy(own.detach(tensor) if tensor.requires_grad else tensor)
    except (RuntimeError, TypeError):
        return None  # a wrapper, or memory that was given back
    return array


def _transfer(numbers: list[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object]]:
    """Start to copy `numbers`, of one device and type; the copy, and what waits for it and for nothing later."""
    stacked = functions.stack(numbers)
    if not stacked.is_cuda:
        return own.cpu(stacked), _no_wait
    host = functions.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
    own.copy_(host, stacked, non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return host, event.synchronize


def _no_wait() -> None:
    return None


def _plain(value: Any) -> float:
    number: float = own.item(value) if isinstance(value, torch.Tensor) else value
    return number


def _op(op: str, tensor: torch.Tensor, eps: float) -> torch.Tensor:
    """One statistic of a tensor with elements that are real numbers."""
    dtype = tensor.dtype
    wide = torch.float64 if dtype is torch.float64 or not dtype.is_floating_point else torch.float32
    if tensor.is_cpu:
        # Exact; a device without fast float64 accumulates in float32 inside of the reduction.
        wide = torch.float64
    result: torch.Tensor
    if op == "mean":
        result = functions.mean(tensor, dtype=wide)
    elif op == "norm":
        result = _norm(tensor, dtype=wide) if dtype.is_floating_point else _norm(own.to(tensor, wide))
    elif op == "zeros":
        result = functions.mean(own.to(functions.lt(own.abs(own.to(tensor, torch.float32)), eps), torch.float32))
    elif op == "nans":
        result = own.sum(functions.isnan(tensor))
    elif op == "infs":
        result = own.sum(functions.isinf(tensor))
    elif op == "absmax":
        result = own.amax(own.abs(tensor))
    elif op == "l1":
        result = own.sum(own.abs(tensor), dtype=wide)
    elif op == "std":
        result = functions.std(own.to(tensor, wide), correction=0)
    else:
        centred = own.to(tensor, wide)
        centred = functions.sub(centred, functions.mean(centred))
        square = own.square(centred)
        result = functions.div(functions.mean(own.square(square)), own.square(functions.mean(square)))
    return result


# --- matrices


_SMALL = 256
"""The smaller side up to which all singular values are computed: 256 x 256 take 9 ms on one core. A guess."""
_ITERATIONS = 50
"""At most; from the vector of the last step a few are enough."""
_TOLERANCE = 1e-6
"""Relative change of a spectral norm at which the power iteration ends; a guess, ten times float32's roundoff."""
_norm_of_matrix = internals.vector_norm


class TorchSpectralNorms:
    """Implements `probe.backends.protocol.SpectralNorms`: all singular values, or a power iteration that draws nothing.

    The iteration goes on from the vector at which it ended in the step before. All weights take the same iteration
    together, and what says which of them go on is read once.
    """

    def __init__(self) -> None:
        self._vectors: dict[int, torch.Tensor] = {}

    def __call__(self, weights: Mapping[int, torch.Tensor]) -> Mapping[int, tuple[float, float]]:
        with with_autograd_kernels():
            norms = {number: _norm_of_matrix(_single(each), dtype=torch.float64) for number, each in weights.items()}
            frobenius = _numbers(norms)
            finite = {number: each for number, each in weights.items() if math.isfinite(frobenius[number])}
            small = {number: each for number, each in finite.items() if _is_small(each)}
            largest = _numbers({key: own.amax(torch.linalg.svdvals(_single(each))) for key, each in small.items()})
            largest.update(self._iterated({key: each for key, each in finite.items() if key not in small}))
        found = {}
        for number in weights:
            value = largest.get(number, math.nan)
            found[number] = value, frobenius[number] / value if value else math.nan
        return found

    def _iterated(self, weights: Mapping[int, torch.Tensor]) -> dict[int, float]:
        vectors = {number: self._start(number, weight) for number, weight in weights.items()}
        values = dict.fromkeys(weights, 0.0)
        for _ in range(_ITERATIONS):
            across = {number: own.mv(_single(weights[number]), vector) for number, vector in vectors.items()}
            found = _numbers({number: _norm_of_matrix(each) for number, each in across.items()})
            for number, value in found.items():
                is_over = abs(value - values[number]) <= _TOLERANCE * value
                values[number] = value
                if not value:
                    del vectors[number]
                    continue
                back = own.mv(own.t(_single(weights[number])), functions.div(across[number], value))
                self._vectors[number] = vectors[number] = functions.div(back, _norm_of_matrix(back))
                if is_over:
                    del vectors[number]
            if not vectors:
                break
        return values

    def _start(self, number: int, weight: torch.Tensor) -> torch.Tensor:
        vector = self._vectors.get(number)
        if vector is None or vector.shape[0] != weight.shape[1] or vector.device != weight.device:
            # Row norms of the transposed: no row of a weight is orthogonal to all of them.
            vector = functions.add(_norm_of_matrix(_single(weight), dim=0), 1e-12)
        return functions.div(vector, _norm_of_matrix(vector))  # type: ignore[no-any-return]


def _single(weight: torch.Tensor) -> torch.Tensor:
    # Not kept: all weights in float32 at once may not fit.
    return cast(torch.Tensor, own.to(own.detach(weight), torch.float32))


def _is_small(weight: torch.Tensor) -> bool:
    return min(weight.shape) <= _SMALL and max(weight.shape) <= 16 * _SMALL


def _numbers(tensors: Mapping[int, torch.Tensor]) -> dict[int, float]:
    """The numbers of tensors of no dimension."""
    return dict(zip(tensors, (each[0] for each in read([own.reshape(each, (1,)) for each in tensors.values()]))))


def read(made: Sequence[torch.Tensor]) -> list[Any]:
    """See `probe.backends.protocol.Trends.read`; of tensors of any shapes."""
    with with_autograd_kernels():
        flat = [own.view(own.reshape(own.to(each, torch.float64), (-1,)), torch.uint8) for each in made]
        found = statistics.fetched_bytes(flat)
    return [np.frombuffer(each.tobytes()).reshape(tuple(of.shape)).tolist() for each, of in zip(found, made)]


def attention(query: torch.Tensor, key: torch.Tensor, order: str) -> torch.Tensor:
    """Entropy and largest probability of causal attention, means over the queries of the first batch and head."""
    with with_autograd_kernels():
        q, k = (_first(each, order) for each in (query, key))
        scores = functions.div(own.matmul(q, own.t(k)), math.sqrt(q.shape[-1]))
        causal = own.tril(functions.ones_like(scores, dtype=torch.bool))
        scores = own.masked_fill(scores, own.logical_not(causal), -math.inf)
        logs = functions.log_softmax(scores, -1)
        p = own.exp(logs)
        entropy = own.sum(own.masked_fill(functions.mul(p, logs), own.logical_not(causal), 0.0), -1)
        return functions.stack((own.neg(functions.mean(entropy)), functions.mean(own.amax(p, -1))))  # type: ignore[no-any-return]


def routing(values: torch.Tensor, are_logits: bool) -> torch.Tensor:
    """For each expert its part of the mean entropy, the share of tokens that prefer it, and its mean probability.

    Tokens that a router drops have weights of zero for all experts; the means are of the others.
    """
    with with_autograd_kernels():
        wide = own.to(own.detach(values), torch.float32)
        experts = wide.shape[-1]
        wide = own.reshape(wide, (-1, experts))
        p = own.softmax(wide, -1) if are_logits else wide
        total = own.sum(p, -1, True)
        is_dropped = own.eq(total, 0)
        p = functions.div(p, own.masked_fill(total, is_dropped, 1.0))
        first = own.unsqueeze(own.argmax(p, -1), -1)
        prefers = own.to(own.eq(first, functions.arange(experts, device=p.device)), torch.float32)
        parts = functions.stack([own.neg(functions.xlogy(p, p)), own.masked_fill(prefers, is_dropped, 0.0), p])
        tokens = own.clamp(own.sum(own.logical_not(is_dropped)), min=1)
        return own.t(functions.div(own.sum(parts, 1), tokens))  # type: ignore[no-any-return]


def _first(tensor: torch.Tensor, order: str) -> Any:
    wide = own.to(own.detach(tensor), torch.float32)
    return wide[:, 0, 0] if order == "s,b,h,d" else wide[0, :, 0]
