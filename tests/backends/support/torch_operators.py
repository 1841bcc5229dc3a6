"""Operators of every family of the API list, each with arguments that it takes."""

from __future__ import annotations

import functools
import itertools
import random
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch

from probe.backends.shared.api_list import load
from probe.backends.torch.hooks import api_hooks

_OF_THE_GPU = ("_fused_adamw_", "batch_norm_backward", "batch_norm_elemt", "batch_norm_gather", "batch_norm_stats")
_NO_PROGRAM = frozenset(("__hash__", "__repr__", "__dir__", "__len__", "__array__", "share_memory_", "set_"))
"""What Python or numpy calls by itself, or what changes more than its tensor."""
_UNINITIALIZED = frozenset(("resize_", "resize_as_", "empty", "empty_like", "as_strided"))
"""What gives back memory as it was found."""


@functools.cache
def _inputs() -> dict[str, torch.Tensor]:
    def numbers(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) * 0.8 + 0.1

    square = numbers(4, 4) + 4 * torch.eye(4)
    return {
        "row": numbers(4),
        "matrix": numbers(4, 6),
        "other": numbers(4, 6).flip(0),
        "square": square @ square.T,
        "batch": numbers(2, 4, 4),
        "sequence": numbers(2, 4, 8),
        "image": numbers(2, 4, 8, 8),
        "volume": numbers(2, 4, 4, 4, 4),
        "whole": torch.arange(24).reshape(4, 6) % 4,
        "index": torch.tensor([0, 2, 1, 3]),
        "wide": torch.tensor([[0, 2, 1, 3, 0, 1]] * 4),
        "chosen": numbers(4, 6) > 0.5,
        "kernel1": numbers(4, 4, 3),
        "kernel2": numbers(4, 4, 3, 3),
        "kernel3": numbers(4, 4, 3, 3, 3),
    }


_SHAPES: tuple[tuple[Any, ...], ...] = (
    ("matrix",), ("matrix", "other"), ("square",), ("square", "square"), ("row", "row"), ("whole",),
    ("whole", "whole"), ("chosen",), ("matrix", 2), ("matrix", 1), ("matrix", 0, 1), ("matrix", 0.5), ("sequence",),
    ("image",), ("volume",), ("image", 2), ("sequence", 2), ("volume", 2), ("batch", "batch"), ("square", "row"),
    ("matrix", "other", "other"), ("square", "square", "square"), ("row", "square", "row"), ("square", "row", "row"),
    ("square", "batch", "batch"), ("batch", "batch", "batch"), ("sequence", "kernel1"), ("image", "kernel2"),
    ("volume", "kernel3"), ("matrix", "index"), ("matrix", 0, "index"), ("matrix", 0, "wide"),
    ("matrix", 0, "index", "other"), ("matrix", 0, "wide", "other"), ("matrix", 0, "index", 1.5),
    ("matrix", "chosen"), ("matrix", "chosen", 1.5), ("matrix", "chosen", "other"), ("matrix", (4, 6)),
    ("matrix", 0, 0, 2), ("matrix", (1, 0)), ("matrix", [0, 1]), ([("matrix"), ("other")],),
    ([("square"), ("square")],), ([("row"), ("row")],), ("index", "matrix"), ("sequence", 2, 4), ("whole", 2), (4,),
    (0.0, 1.0, 5), ((4, 6), 1.5), ("matrix", 0.1, True), ("matrix", (0, 1)), ("matrix", 2, 0, 1.0),
    ("matrix", "index", "index"), ("matrix", ["index"], "row"), ("image", (1, 1)), ("matrix", (0,), (1,)),
    ("sequence", "sequence", "sequence"), ("matrix", 0.0, 1.0), ("matrix", 2.0, 0, 1.0), ("sequence", 1, (2, 4)),
    (2, "matrix"), ("matrix", [1, 2, 3]), ("matrix", 1, [1, 2]),
)  # fmt: skip
"""Arguments to try, one after the other: an operator is called with the first that it takes."""

_OF_NAME: dict[str, tuple[Any, ...]] = {
    "affine_grid": (torch.ones(1, 2, 3), [1, 1, 4, 4]),
    "affine_grid_generator": (torch.ones(1, 2, 3), [1, 1, 4, 4], False),
    "bilinear": ("matrix", "other", torch.ones(3, 6, 6)),
    "channel_shuffle": ("image", 2),
    "cosine_embedding_loss": ("matrix", "other", torch.tensor([1, -1, 1, -1])),
    "cross_entropy": ("matrix", "index"),
    "ctc_loss": (torch.ones(5, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 1]]), torch.tensor([5, 5]),
                 torch.tensor([2, 2])),
    "einsum": ("ij,kj->ik", "matrix", "other"),
    "embedding": ("index", "matrix"),
    "embedding_bag": (torch.tensor([[0, 1], [2, 3]]), "matrix"),
    "fold": (torch.ones(1, 12, 9), (4, 4), (2, 2)),
    "fractional_max_pool2d": ("image", 2, 3),
    "fractional_max_pool2d_with_indices": ("image", 2, 3),
    "fractional_max_pool3d": ("volume", 2, 2),
    "fractional_max_pool3d_with_indices": ("volume", 2, 2),
    "gaussian_nll_loss": ("matrix", "other", "other"),
    "grid_sample": ("image", torch.zeros(2, 3, 3, 2)),
    "group_norm": ("image", 2),
    "layer_norm": ("matrix", (6,)),
    "linear": ("matrix", torch.ones(3, 6)),
    "local_response_norm": ("image", 2),
    "lp_pool1d": ("sequence", 2.0, 2), "lp_pool2d": ("image", 2.0, 2), "lp_pool3d": ("volume", 2.0, 2),
    "margin_ranking_loss": ("row", "row", torch.tensor([1, -1, 1, -1])),
    "multi_margin_loss": ("matrix", "index"),
    "nll_loss": ("matrix", "index"),
    "one_hot": ("index", 5),
    "pad": ("matrix", (0, 1)),
    "pixel_shuffle": ("image", 2),
    "scaled_dot_product_attention": ("sequence", "sequence", "sequence"),
    "threshold": ("matrix", 0.5, 0.0), "threshold_": ("matrix", 0.5, 0.0),
    "triplet_margin_loss": ("matrix", "other", "other"),
    "triplet_margin_with_distance_loss": ("matrix", "other", "other"),
    "unfold": ("image", 2),
    "upsample": ("image", 4), "interpolate": ("image", 4),
    "where": ("chosen", "matrix", "other"),
}  # fmt: skip
_WEIGHTS = [torch.ones(8, 6) / 9, torch.ones(8, 2) / 7, torch.ones(8) / 5, torch.ones(8) / 3]
_OF_NAME["lstm"] = (torch.ones(4, 3, 6) / 11, [torch.ones(1, 3, 2), torch.ones(1, 3, 2)], _WEIGHTS, True, 1, 0.0,
                    False, False, False)  # fmt: skip
_OF_NAME["lstm_cell"] = ("matrix", [torch.ones(4, 2), torch.ones(4, 2)], *_WEIGHTS)
_OF_NAME["gru_cell"] = ("matrix", torch.ones(4, 2), torch.ones(6, 6), torch.ones(6, 2))
_OF_ATEN = (
    "relu", "add.Tensor", "mm", "softmax.int", "native_layer_norm", "cat", "view", "sort", "exp_", "sum.dim_IntList",
    "sigmoid", "mul", "pow", "linalg_inv", "t", "max.dim",
)  # fmt: skip
_OF_NAME["native_layer_norm"] = ("matrix", (6,), None, None, 1e-5)
_OF_NAME["aten.cat"] = (["matrix", "other"], 1)
_OF_NAME["aten.view"] = ("matrix", (6, 4))
_OF_NAME["all_gather"] = (["matrix"], "other")
_OF_NAME["scatter"] = ("matrix", ["other"])
_OF_NAME["distributed.gather"] = ("matrix", ["other"])


class Operator:
    """A function where a program finds it, and what to call it with."""

    def __init__(self, family: str, path: str, arguments: tuple[Any, ...]) -> None:
        self.family = family
        self.name = f"{family}.{path}"
        self.arguments = arguments
        self._tensors: list[torch.Tensor] = []
        first, *others = (self._text(value) for value in arguments)
        given = ", ".join((first, *others))
        names = ", ".join(f"t{number}" for number in range(len(self._tensors)))
        if family == "tensor":
            lines = f"return {first}.{path}({', '.join(others)})"
        elif family == "distributed":
            lines = f"args = [{given}]; torch.distributed.{path}(*args); return args[0]"
        else:
            lines = f"return {_OWNERS.get(family, family)}.{path}({given})"
        self._source = compile(f"def program({names}): {lines}", f"<{self.name}>", "exec")

    def _text(self, value: Any) -> str:
        if isinstance(value, str) and value in _inputs():
            value = _inputs()[value]
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            return f"t{len(self._tensors) - 1}.clone()"
        if isinstance(value, (list, tuple)):
            inside = "".join(f"{self._text(one)}, " for one in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        return repr(value)

    def tensors(self) -> list[torch.Tensor]:
        """New ones of the same numbers each time."""
        return [tensor.clone() for tensor in self._tensors]

    def program(self) -> Any:
        """A new function of the tensors alone that calls the operator."""
        scope: dict[str, Any] = {}
        exec(self._source, globals(), scope)
        return scope["program"]


_OWNERS = {"functional": "torch.nn.functional", "torch": "torch", "vf": "torch._VF", "aten": "torch.ops.aten"}


@functools.cache
def operators() -> dict[str, Operator]:
    """By name, those for which arguments were found; those of torch.distributed if there is a process group."""
    return _found([(family, name) for family, names in _names().items() for name in names])


def drawn(counts: Mapping[str, int], choice: random.Random, but: Container[str]) -> list[Operator]:
    """So many operators of each family as `counts` has, other than those named in `but`."""
    found = []
    for family, names in _names().items():
        candidates = ((family, name) for name in choice.sample(names, len(names)) if f"{family}.{name}" not in but)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            found += itertools.islice(_with_arguments(candidates), counts.get(family, 0))
    return found


@functools.cache
def overridable() -> dict[str, Operator]:
    """By name, all that hands itself to function modes or to the class of a tensor, and takes arguments known here."""
    namespaces = {torch.Tensor: "tensor", torch: "torch", torch.nn.functional: "functional"}
    namespaces.update({getattr(torch, name): f"torch.{name}" for name in ("linalg", "fft", "special", "functional")})
    found = torch.overrides.get_overridable_functions()
    paths = {
        (family, name)
        for owner, family in namespaces.items()
        for name in dir(owner)
        if any(getattr(owner, name, None) is function for function in found.get(owner, ()))
    }
    return _found(sorted(path for path in paths if path[1] not in _NO_PROGRAM))


def _found(paths: list[tuple[str, str]]) -> dict[str, Operator]:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        return {operator.name: operator for operator in _with_arguments(paths)}


def _with_arguments(paths: Iterable[tuple[str, str]]) -> Iterator[Operator]:
    for family, path in paths:
        name = path.rpartition(".")[2]
        if name.startswith(_OF_THE_GPU) or name in _UNINITIALIZED:
            continue
        known = _OF_NAME.get(f"{family}.{path}", _OF_NAME.get(path))
        for arguments in _SHAPES if known is None else (known, *_SHAPES):
            try:
                operator = Operator(family, path, arguments)
                operator.program()(*operator.tensors())
            except Exception:  # it does not take these
                continue
            yield operator
            break


def _names() -> dict[str, list[str]]:
    listed = load(api_hooks._LIST)
    names: dict[str, list[str]] = {family: list(listed[family]["names"]) for family in listed}
    if not torch.distributed.is_initialized():
        del names["distributed"]
    names["distributed"] = [name for name in names.get("distributed", []) if name not in _OF_TWO]
    names["aten"] = list(_OF_ATEN)
    return names


_OF_TWO = frozenset(("send", "recv", "isend", "irecv", "batch_isend_irecv"))
"""What needs a second process."""
