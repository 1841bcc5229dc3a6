"""Modules run eagerly, by torch.compile and in float64, on copies: what `Execution.compilation` of PyTorch is."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from probe.backends.protocol.execution import Backend, CallListener, Given, ModuleAt, NothingCompiled, Part
from probe.backends.torch import devices, internals
from probe.backends.torch.execution.rounding import SUMMED_IN, Raised, Recorded, move, plain_name, raised
from probe.backends.torch.guards import alone, guarded, skipped, with_mode
from probe.common.containers import found_in
from probe.common.dump.naming import did_you_mean
from probe.common.errors import MsprobeException
from probe.common.harmless_text import printable
from probe.common.numerics.formats import unit_roundoff

_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_TOLD = ("Explanation:", "Developer debug context:")
_MOST_FORMS = 1 << 16
"""Compiled forms of one function. The compiler's own limit, 8, would leave the ninth layer of a class uncompiled."""


# --- the calls of a training


class _Attached:
    """The two hooks of one module."""

    def __init__(self, module: torch.nn.Module, listener: CallListener) -> None:
        self._listener = listener
        # After the hooks of others, and before them: what the module itself takes and gives.
        before = module.register_forward_pre_hook(self._enter, with_kwargs=True)
        after = module.register_forward_hook(self._leave, prepend=True, with_kwargs=True)
        self._handles = [before, after]

    def __deepcopy__(self, memo: Any) -> _Attached:
        return self

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    @skipped
    def _enter(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        guarded(self._listener, "an input of a module", self._listener.enter, args, kwargs)

    @skipped
    def _leave(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tensors = list(found_in(output, torch.Tensor))
        guarded(self._listener, "an output of a module", self._listener.leave, tensors)


def attach(module: torch.nn.Module, listener: CallListener) -> _Attached:
    """Report every call of `module` to `listener`."""
    return _Attached(module, listener)


def modules(model: torch.nn.Module) -> list[ModuleAt]:
    """The model and every module inside, each once."""
    return [ModuleAt(name, name.count(".") + 1 if name else 0, each) for name, each in model.named_modules()]


# --- what may be asked for


def check_backend(backend: Backend) -> None:
    """Refuse a name that the compiler does not know.

    Raises:
        MsprobeException: there is no such backend.
    """
    if callable(backend):
        return
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        near = did_you_mean(str(backend), known) or "."
        raise MsprobeException(
            f'PrecisionChecker: backend is "{backend}"{near} Allowed: "eager", "aot_eager", "inductor", another name '
            "of torch.compiler.list_backends(exclude_tags=()), or a function."
        )


def dtype_name(dtype: Any) -> str:
    """``bfloat16`` for ``torch.bfloat16``.

    Raises:
        MsprobeException: it is no dtype of floating-point numbers.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise MsprobeException(f"PrecisionChecker: cast_dtype is {dtype!r}; allowed: a dtype such as torch.bfloat16.")
    return plain_name(dtype)


# --- one module


class TorchModule:
    """Implements `probe.backends.protocol.execution.KeptModule`.

    Args:
        module: A copy that nobody else has.
        surroundings: Makes what surrounded the call.
    """

    def __init__(self, module: torch.nn.Module, surroundings: _Surroundings) -> None:
        self._module, self._surroundings = module, surroundings
        self.units: Sequence[tuple[str, float]] | None = None

    def eager(self, given: Given) -> list[Part]:
        recorded = Recorded()
        parts = self._run(copy.deepcopy(self._module), given, recorded)
        self.units = recorded.units
        return parts

    def exact(self, given: Given, moved: int | None = None, least: float = 0.0) -> list[Part]:
        module = _in_float64(copy.deepcopy(self._module))
        if moved is None:
            return self._run(module, given, Raised())
        generator = torch.Generator().manual_seed(moved)
        with alone():
            for (_, own), parameter in zip(self._module.named_parameters(), module.parameters()):
                # Rounded for the call already, but for what sums of its products lose.
                unit = max(least, min(unit_roundoff(plain_name(own.dtype)), SUMMED_IN))
                move(parameter.data, unit, generator)
        return self._run(module, given, Raised(self.units, moved, least))

    def compiled(self, given: Given, backend: Backend, dump: Callable[[str], None] | None) -> list[Part]:
        module = copy.deepcopy(self._module)
        graphs: list[str] = []

        def watched(graph: Any, inputs: Any, **options: Any) -> Any:
            graphs.append(graph.print_readable(print_output=False) if dump is not None else "")
            return _backend(backend)(graph, inputs, **options)

        with _freely_compiling(backend):
            form = torch.compile(_caller(module), backend=watched, dynamic=False)
            parts = self._run(module, given, None, form)
        if not graphs:
            raise NothingCompiled(f"torch.compile made no graph of it{self._refusal(given)}")
        if dump is not None:
            for text in graphs:
                dump(text)
        return parts

    def _refusal(self, given: Given) -> str:
        """The reason why the compiler makes no graph of the call, which it tells if it must make a single one."""
        module = copy.deepcopy(self._module)
        try:
            with _freely_compiling("eager"):
                form = torch.compile(_caller(module), backend="eager", dynamic=False, fullgraph=True)
                self._run(module, replace(given, gradients=()), None, form)
        except Exception as error:
            # Of the many lines, those that say what it met; the others give advice.
            first, *more = str(error).strip().splitlines() or [""]
            told = [line.strip() for line in more if line.strip().startswith(_TOLD)]
            return printable(f": {type(error).__name__}: {' '.join([first, *told])}")
        return ""

    def cast_to(self, dtype: str) -> TorchModule:
        """A copy of the module with its parameters in another dtype."""
        return TorchModule(copy.deepcopy(self._module).to(getattr(torch, dtype)), self._surroundings)

    def _run(self, module: torch.nn.Module, given: Given, mode: Any, form: Any = None) -> list[Part]:
        wanted = [(f"input {index}", given.tensors[index].requires_grad_()) for index in given.differentiated]
        wanted += [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        args, kwargs = given.bind(_not_leaves(given.tensors))
        call = module if form is None else form
        with self._surroundings.again(mode):
            output = call(*args, **kwargs)
            tensors = list(found_in(output, torch.Tensor))
            taken = [
                (tensor, gradient.to(tensor.dtype)) for tensor, gradient in zip(tensors, given.gradients)
                if gradient is not None and tensor.requires_grad
            ]  # fmt: skip
            gradients: Sequence[Any] = [None] * len(wanted)
            if taken and wanted:
                results, of_results = zip(*taken)
                leaves = [each for _, each in wanted]
                gradients = torch.autograd.grad(results, leaves, of_results, allow_unused=True)
        parts = [Part("forward", f"output.{index}", each) for index, each in enumerate(tensors)]
        parts += [Part("forward", f"buffer {name}", each) for name, each in module.named_buffers()]
        if given.gradients:
            parts += [Part("backward", f"gradient of {name}", each) for (name, _), each in zip(wanted, gradients)]
        return parts


def keep(module: torch.nn.Module) -> TorchModule:
    """A copy of `module` as it is now.

    Raises:
        Exception: whatever torch raises for a module that cannot be copied.
    """
    with alone():
        copied = copy.deepcopy(module)
    for each in copied.modules():
        for name in _HOOKS:
            if name in vars(each):
                vars(each)[name].clear()
    return TorchModule(copied, _Surroundings())


def cast(kept: Any, dtype: str) -> TorchModule:
    """A copy of the module with its parameters in another dtype."""
    made: TorchModule = kept.cast_to(dtype)
    return made


def _caller(module: torch.nn.Module) -> Callable[..., Any]:
    """Calls `module`, by code of its own.

    The compiler remembers by code what it cannot compile, and all modules are called by the code of one class.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call


class _Surroundings:
    """Autocast, and whether gradients are recorded, as they are when this is made."""

    def __init__(self) -> None:
        self._records = torch.is_grad_enabled()
        self._casts = [
            (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", *devices.kinds(), "mps") if _is_cast(kind)
        ]

    @contextlib.contextmanager
    def again(self, mode: Any) -> Iterator[None]:
        """Run the call again, with a dispatch mode of the tool if one is given."""
        kind = self._casts[0][0] if self._casts else None
        with contextlib.ExitStack() as stack:
            if mode is not None:
                stack.enter_context(alone(self._records, kind))
                stack.enter_context(with_mode(mode))
            else:
                # The compiled code is called as a program calls it.
                stack.enter_context(torch.set_grad_enabled(self._records))
            for each, dtype in self._casts:
                # Without its cache, which holds on to the casts of parameters.
                stack.enter_context(torch.autocast(each, dtype, cache_enabled=False))
            yield


def _is_cast(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except RuntimeError:
        # No such device in this build.
        return False


def _not_leaves(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that a module may write to, whose gradients arrive at `tensors`."""
    with torch.enable_grad():
        return [each.clone() if each.requires_grad else each for each in tensors]


def _in_float64(module: torch.nn.Module) -> torch.nn.Module:
    # As Module.to, which takes one dtype of floating-point numbers and one of complex ones.
    wide: torch.nn.Module = module._apply(lambda tensor: tensor.to(raised(tensor.dtype)))  # type: ignore[no-untyped-call]
    return wide


def _backend(backend: Backend) -> Callable[..., Any]:
    if callable(backend):
        return backend
    return internals.compiler_backend(backend)


@contextlib.contextmanager
def _freely_compiling(backend: Backend) -> Iterator[None]:
    """Compile every module anew, in this process, with the random numbers of the eager form."""
    import torch._dynamo.config as frames

    limits: dict[str, Any] = {
        name: _MOST_FORMS
        for name in (
            "recompile_limit",
            "cache_size_limit",
            "accumulated_recompile_limit",
            "accumulated_cache_size_limit",
        )
        if hasattr(frames, name)
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # The compiler looks at it; the inputs are copies of which nobody asks the gradient in this way.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        stack.enter_context(frames.patch(suppress_errors=False, **limits))
        if backend == "inductor" or "torch._inductor.config" in sys.modules:
            import torch._inductor.config as inductor

            stack.enter_context(inductor.patch(fallback_random=True, compile_threads=1))
        yield
