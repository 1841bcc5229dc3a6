"""The group `Trends` of PyTorch, which the files of this folder make up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from probe.backends.protocol import Measurer, SpectralNorms
from probe.backends.protocol.trends import StoredWeight
from probe.backends.torch import internals
from probe.backends.torch.guards import alone
from probe.backends.torch.originals import own
from probe.backends.torch.tensors.statistics import bytes_of
from probe.backends.torch.trend_measuring import TorchMeasurer, TorchSpectralNorms, attention, local, read, routing
from probe.backends.torch.trend_observing import (
    attach_communication,
    attach_gradients,
    attach_optimizer,
    innermost,
    optimizer_state,
    reduces,
    state_counts,
    ties,
)
from probe.common.containers import found_in

__all__ = [
    "attach_communication",
    "attach_gradients",
    "attach_optimizer",
    "attention",
    "copy",
    "gradient",
    "innermost",
    "is_first",
    "is_frozen",
    "is_optimizer",
    "linear_weight",
    "measurer",
    "members",
    "modules",
    "optimizer_state",
    "parameters",
    "read",
    "recomputing",
    "recording",
    "reduces",
    "routing",
    "spectral_norms",
    "state_counts",
    "stored_weight",
    "takes_gradient",
    "tensors_in",
    "ties",
    "weights",
    "whole",
]

_COMPILED = "_orig_mod."
"""Prefix that torch.compile adds to the names of modules."""
recording = torch.is_grad_enabled


def modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module with its path; those that torch.compile has put around a model have the model's."""
    return ((_plain(path), module) for path, module in model.named_modules() if not path.endswith("_orig_mod"))


def parameters(model: torch.nn.Module, frozen: bool = False) -> Iterable[tuple[str, Any]]:
    """The parameters that take gradients, each once; with `frozen` the others as well."""
    return [(_plain(name), each) for name, each in model.named_parameters() if frozen or each.requires_grad]


def weights(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The parameters and persistent buffers under the names of `state_dict`, whose hooks are not run."""
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        buffers = (item for item in module._buffers.items() if item[0] not in module._non_persistent_buffers_set)
        for name, each in (*module._parameters.items(), *buffers):
            if each is not None:
                yield _plain(prefix + name), each


def stored_weight(tensor: torch.Tensor) -> StoredWeight | None:
    """The elements of a tensor on the host; of a DTensor those of this rank, with their place in the whole."""
    part = getattr(tensor, "_local_tensor", None)
    whole: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    if part is not None:
        distributed: Any = tensor
        whole = tuple(distributed.shape)
        place = internals.local_place(whole, distributed.device_mesh, distributed.placements)
        if tuple(part.shape) == whole:
            whole = ()
        elif place is None or any(each.is_partial() for each in distributed.placements):
            return None
        else:
            starts = place
    # Not one of the program's calls, whatever is recorded.
    with alone():
        local_part = (tensor if part is None else part).detach()
        if local_part.is_meta or local_part.layout is not torch.strided or local_part.is_nested:
            return None
        data = bytes_of(local_part)
    dtype = str(local_part.dtype).removeprefix("torch.")
    return StoredWeight(dtype, tuple(local_part.shape), data, starts, whole)


def is_frozen(parameter: Any) -> bool:
    """True of a parameter that takes no gradient."""
    return not parameter.requires_grad


def _plain(name: str) -> str:
    return name.replace(_COMPILED, "")


def is_optimizer(value: Any) -> bool:
    """False: optimizers of torch know no names."""
    return False


def gradient(parameter: Any, main: bool) -> Any:
    """The gradient of a parameter, as the rank has it."""
    if main:
        found = getattr(parameter, "main_grad", None)
        if found is not None:
            return local(found)
    return local(own.grad.__get__(parameter))


def whole(tensor: Any) -> tuple[str, str]:
    """The shape of the whole, and the placements of a DTensor."""
    shape = str(list(tensor.shape))
    return shape, f"{', '.join(map(str, tensor.placements))} of {shape}" if hasattr(tensor, "_local_tensor") else ""


def takes_gradient(tensor: Any) -> bool:
    """True if the tensor requires a gradient."""
    return bool(tensor.requires_grad)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in containers and dataclasses."""
    return list(found_in(value, torch.Tensor))


def is_first(group: Any) -> bool:
    """True of rank 0 of the group."""
    return group is None or torch.distributed.get_rank(group) == 0


def members(group: Any) -> tuple[int, ...]:
    """The ranks of the group, among all."""
    return () if group is None else tuple(torch.distributed.get_process_group_ranks(group))


def copy(parameter: Any) -> torch.Tensor:
    """A copy of what the rank has of a parameter."""
    copied: torch.Tensor = own.clone(own.detach(local(parameter)))
    return copied


def recomputing() -> bool:
    """True inside of a backward."""
    return internals.current_pass() not in (-1, None)


def measurer(ops: Sequence[str], eps: float, exact: bool = False) -> Measurer:
    """A measurer of tensors, and of the rank's part of sharded ones."""
    return TorchMeasurer(ops, eps, exact)


def spectral_norms() -> SpectralNorms:
    """The spectral norms of the weights of one model."""
    return TorchSpectralNorms()


def linear_weight(module: Any) -> Any:
    """The weight of a module whose weight is a matrix, embeddings left out."""
    weight = vars(module).get("_parameters", {}).get("weight")
    if weight is None or isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) or own.dim(weight) != 2:
        return None
    return local(weight)
