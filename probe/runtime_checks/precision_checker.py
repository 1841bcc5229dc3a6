"""`PrecisionChecker`: the modules of a model in their compiled form next to their eager one, while a training runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from probe.backends.protocol import FrameworkAdapter, execution_of
from probe.backends.protocol.execution import Backend, Compilation, ModuleAt
from probe.common import files, log
from probe.common.dump.naming import file_name
from probe.common.errors import MsprobeException, failure_text
from probe.common.interfaces import Handle
from probe.common.log import ERROR_LOG, ErrorLog
from probe.common.report.csv_lines import csv_line
from probe.runtime_checks.compiled_call import DIFFERENT, NOT_CHECKED, CompiledPart, KeptCall

HEADER = (
    "module", "class", "stage", "tensor", "max_abs_diff", "mean_abs_diff", "max_rel_diff", "shape", "dtype", "status",
    "allclose", "tolerance", "why",
)  # fmt: skip
_MOST_REASONS = 5
"""Modules that are printed; a guess."""


@dataclass(frozen=True)
class CompiledReport:
    """Every tensor of every wrapped module, in the order in which the modules returned."""

    parts: Sequence[CompiledPart]
    threshold: float
    modules: int
    """The number of modules that were called."""

    @property
    def first(self) -> CompiledPart | None:
        """The first part that differs by more than roundings; ``None`` where none does."""
        return next((part for part in self.parts if part.status == DIFFERENT), None)

    def allclose(self, part: CompiledPart) -> bool | None:
        """True if no element differs by more than the threshold; ``None`` where nothing was compared."""
        return None if part.max_abs_diff is None else part.max_abs_diff <= self.threshold

    def rows(self) -> list[dict[str, Any]]:
        """A row for each tensor, with the columns of the CSV file."""
        rows = []
        for part in self.parts:
            row = {**asdict(part), "class": part.class_name, "allclose": self.allclose(part), "shape": list(part.shape)}
            rows.append({name: row[name] for name in HEADER})
        return rows

    def lines(self) -> Iterator[str]:
        """The answer: the first module that differs, or none; and what could not be checked."""
        first = self.first
        checked = {part.module for part in self.parts}
        checked -= {part.module for part in self.parts if part.status == NOT_CHECKED}
        if not checked:
            yield "cannot be told: no module was called and could be checked"
        elif first is None:
            count = _modules(len(checked))
            yield f"no difference: the compiled form of {count} is within rounding error of the eager one"
        else:
            yield f"first difference: {first.module or 'the model'} ({first.class_name}), {first.stage}, {first.tensor}"
            yield f"  {first.why}"
            if first.max_abs_diff is not None:
                granted = (
                    "" if first.tolerance is None else f"; roundings explain {first.tolerance:.1e} of the worst element"
                )
                yield f"  largest difference {first.max_abs_diff:.1e}, mean {first.mean_abs_diff:.1e}{granted}"
            others = {part.module for part in self.parts if part.status == DIFFERENT} - {first.module}
            if others:
                names = ", ".join(sorted(others)[:_MOST_REASONS])
                yield f"  {_modules(len(others), 'more ')} {'differs' if len(others) == 1 else 'differ'}: {names}"
        unchecked = [part for part in self.parts if part.status == NOT_CHECKED]
        for part in unchecked[:_MOST_REASONS]:
            yield f"not checked: {part.module or 'the model'} ({part.class_name}): {part.why}"
        if len(unchecked) > _MOST_REASONS:
            yield f"... and {len(unchecked) - _MOST_REASONS} more modules."


class _Policy(NamedTuple):
    """Modules that are named by what they are."""

    fits: Callable[[Any], bool]
    holder: Any
    """The module that they are inside of, or that is one of them; ``None`` stands for the model."""


@dataclass
class _Watched:
    """One module that is waited for, and its call."""

    at: ModuleAt
    call: KeptCall
    checker: PrecisionChecker
    open: int = 0
    """Calls that have not returned."""
    done: bool = False
    handle: Handle | None = None

    def enter(self, args: Sequence[Any], kwargs: Any) -> None:
        self.open += 1
        if self.open == 1 and not self.done:
            self.call.enter(self.at.module, args, kwargs)

    def leave(self, tensors: Sequence[Any]) -> None:
        self.open -= 1
        if self.open == 0 and not self.done:
            self.done = True
            self.call.leave(tensors)
            self.checker.returned.append(self.call)

    def failed(self, about: Any, error: Exception) -> None:
        self.checker.log_failure(f"{about} ({self.at.name or 'the model'})", error)


@dataclass
class PrecisionChecker:
    """The first call of each wrapped module, judged in its compiled form against its eager one.

    The training goes on with the eager form: losses, gradients, parameters and random numbers stay what they are.

    Args:
        adapter: The framework.
        backend: The compiler's backend: a name, or a function that takes a graph and its inputs.
        threshold: The absolute difference up to which a row is `allclose`; it does not change the verdict.
        dump_graphs: True if the text of every graph is written.
        graph_dir: The folder for these.
        cast_dtype: A dtype to which the inputs and parameters of the compiled form are cast.
    """

    adapter: FrameworkAdapter
    backend: Backend = "aot_eager"
    threshold: float = 1e-4
    dump_graphs: bool = False
    graph_dir: str = "./graph_dump"
    cast_dtype: Any = None
    returned: list[KeptCall] = field(default_factory=list)
    """The calls that were made, in the order in which they returned."""

    def __post_init__(self) -> None:
        compilation = execution_of(self.adapter).compilation
        if compilation is None:
            raise MsprobeException(
                f"PrecisionChecker: {self.adapter.framework} has no torch.compile, so there is no compiled form of a "
                "module to check; PyTorch has one."
            )
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)) or not self.threshold >= 0:
            raise MsprobeException(f"PrecisionChecker: threshold is {self.threshold!r}; allowed: a number from 0.")
        self._compilation: Compilation = compilation
        compilation.check_backend(self.backend)
        self._cast = None if self.cast_dtype is None else compilation.dtype_name(self.cast_dtype)
        self._wrapped: list[Any] = []
        self._ignored: list[Any] = []
        self._wanted: list[_Policy] = []
        self._unwanted: list[_Policy] = []
        self._depths: list[tuple[Any, int]] = []
        self._watched: list[_Watched] = []
        self._errors = ErrorLog(os.getcwd())

    # --- which modules

    def wrap(self, module: Any) -> Any:
        """Check this module; gives it back."""
        self._wrapped.append(self._module("wrap", module))
        return module

    def wrap_by_policy(self, *policy: Any) -> None:
        """Check the modules of some classes, or those for which a function says True.

        Args:
            policy: A class, a tuple of classes, or a function of a module. A module may stand before it; then only this
                module and the modules inside are checked.
        """
        self._wanted.append(self._policy("wrap_by_policy", policy))

    def wrap_all_children(self, model: Any = None, depth: int = 1) -> None:
        """Check every module that is inside of `depth` modules at most: with 1 the children.

        Args:
            model: The module that holds them; without it the model that is installed.
            depth: The number of modules.
        """
        if isinstance(model, int):
            model, depth = None, model
        if not isinstance(depth, int) or depth < 1:
            raise MsprobeException(f"PrecisionChecker: depth is {depth!r}; allowed: an integer from 1.")
        holder = None if model is None else self._module("wrap_all_children", model)
        self._depths.append((holder, depth))

    def ignore(self, module: Any) -> Any:
        """Do not check this module; gives it back."""
        self._ignored.append(self._module("ignore", module))
        return module

    def ignore_by_policy(self, *policy: Any) -> None:
        """Do not check the modules that a policy names; see `wrap_by_policy`."""
        self._unwanted.append(self._policy("ignore_by_policy", policy))

    # --- a step

    def install(self, model: Any) -> Any:
        """Watch the wrapped modules of a model until `collect`; gives the model back, which is not changed.

        Raises:
            MsprobeException: no module is wrapped.
        """
        self._module("install", model)
        self._abandon()
        modules = self._compilation.modules(model)
        holders = [holder for holder, _ in self._depths]
        holders += [policy.holder for policy in (*self._wanted, *self._unwanted)]
        by_id = {id(at.module): at for at in modules}
        for holder in holders:
            if holder is not None and id(holder) not in by_id:
                raise MsprobeException(
                    f"PrecisionChecker: {type(holder).__name__}, of which modules are wrapped, is no part of the model "
                    "that is installed; install the model that holds it."
                )
        chosen = [at for at in modules if self._is_chosen(at, by_id)]
        if not chosen:
            raise MsprobeException(
                "PrecisionChecker: no module of the model is wrapped; call wrap_all_children(model), "
                "wrap_by_policy(model, (Block,)) or wrap(module) before install."
            )
        for at in chosen:
            class_name = type(at.module).__name__
            call = KeptCall(self.adapter, self._compilation, at.name, class_name, self.log_failure)
            watched = _Watched(at, call, self)
            watched.handle = self._compilation.attach(at.module, watched)
            self._watched.append(watched)
        return model

    def collect(self, loss: Any = None) -> CompiledReport:
        """Judge the calls that were made since `install`, and leave the model alone again.

        Args:
            loss: The loss of the step, which is not used, and its backward is yours to call before this.
        """
        if not self._watched:
            raise MsprobeException("PrecisionChecker: nothing is watched; call install(model) before the step.")
        uncalled = [watched.at.name for watched in self._watched if not watched.done]
        self._remove()
        calls, self.returned = self.returned, []
        if not calls:
            log.warning("PrecisionChecker: no wrapped module was called since install.")
        elif uncalled:
            log.warning(
                f"PrecisionChecker: {_modules(len(uncalled), 'wrapped ')} without a call of its own not checked: "
                f"{', '.join(uncalled[:_MOST_REASONS])}."
            )
        if calls and not any(call.has_backward for call in calls):
            log.info(
                "PrecisionChecker: no gradient arrived, so only forwards are checked; call backward before collect."
            )
        parts: list[CompiledPart] = []
        for call in calls:
            call.release()
            dump = self._dump_of(call) if self.dump_graphs else None
            parts += call.parts(self.backend, self._cast, dump)
        return CompiledReport(parts, self.threshold, len(calls))

    def compare(self, run_step: Callable[[Any], Any], model: Any) -> CompiledReport:
        """Run a step, `run_step(model)`, which calls forward and backward; and judge it."""
        self.install(model)
        try:
            loss = run_step(model)
        except BaseException:
            self._abandon()
            raise
        return self.collect(loss)

    def report(self, result: CompiledReport, csv_path: str | None = None) -> CompiledReport:
        """Print the answer, and write a row for each tensor to a CSV file if a path is given."""
        for line in result.lines():
            print(line)
        if csv_path is not None:
            folder = os.path.dirname(csv_path)
            if folder:
                files.make_folder(folder)
            with files.replacing(csv_path) as stream:
                stream.write(csv_line(HEADER))
                for row in result.rows():
                    row["shape"] = str(row["shape"])
                    row["allclose"] = "" if row["allclose"] is None else str(row["allclose"])
                    stream.write(csv_line([row[name] for name in HEADER]))
        return result

    def log_failure(self, name: str, error: Exception) -> None:
        """Log a failure of the tool, each kind once; the program and the rest of the check go on."""
        is_first, unwritten = self._errors.add(f"PrecisionChecker: {name}", error)
        if is_first:
            where = f"{ERROR_LOG} cannot be written ({unwritten})" if unwritten else f"Details: {ERROR_LOG}"
            log.warning(f"PrecisionChecker: {name}: {failure_text(error)}; the program goes on. {where}.")

    # --- inside

    def _is_chosen(self, at: ModuleAt, by_id: Mapping[int, ModuleAt]) -> bool:
        if any(at.module is each for each in self._ignored) or _names(self._unwanted, at, by_id):
            return False
        if any(at.module is each for each in self._wrapped) or _names(self._wanted, at, by_id):
            return True
        return any(1 <= _depth_below(at, holder, by_id) <= depth for holder, depth in self._depths)

    def _remove(self) -> None:
        for watched in self._watched:
            if watched.handle is not None:
                watched.handle.remove()
        self._watched = []

    def _abandon(self) -> None:
        """Leave the model and what it returned as they were, without a judgement."""
        self._remove()
        for call in self.returned:
            call.release()
        self.returned.clear()

    def _module(self, call: str, module: Any) -> Any:
        if not self.adapter.hooks.is_module(module):
            raise MsprobeException(
                f"PrecisionChecker: {call} got {type(module).__name__}; allowed: a module of {self.adapter.framework}."
            )
        return module

    def _policy(self, call: str, given: Sequence[Any]) -> _Policy:
        policy = given[-1] if given else None
        holder = self._module(call, given[0]) if len(given) > 1 else None
        if isinstance(policy, type):
            policy = (policy,)
        if (
            isinstance(policy, (list, tuple, set, frozenset))
            and policy
            and all(isinstance(each, type) for each in policy)
        ):
            classes = tuple(policy)
            return _Policy(lambda module: isinstance(module, classes), holder)
        if callable(policy) and not self.adapter.hooks.is_module(policy):
            return _Policy(policy, holder)
        raise MsprobeException(
            f"PrecisionChecker: {call} got no policy; allowed: a class, a tuple of classes, or a function of a module."
        )

    def _dump_of(self, call: KeptCall) -> Callable[[str], None]:
        written: list[str] = []

        def write(text: str) -> None:
            name = file_name(f"{call.name or 'model'}.graph{len(written)}", ".txt")
            path = os.path.join(self.graph_dir, name)
            written.append(path)
            try:
                files.make_folder(self.graph_dir)
                with files.replacing(path) as stream:
                    stream.write(text.encode(errors="backslashreplace"))
            except (MsprobeException, OSError) as error:
                self.log_failure(path, error)

        return write


def _names(policies: Sequence[_Policy], at: ModuleAt, by_id: Mapping[int, ModuleAt]) -> bool:
    return any(_depth_below(at, each.holder, by_id) >= 0 and each.fits(at.module) for each in policies)


def _depth_below(at: ModuleAt, holder: Any, by_id: Mapping[int, ModuleAt]) -> int:
    """The number of modules around a module up to the holder, without one up to the model; -1 if it is not inside."""
    if holder is None or not by_id[id(holder)].name:
        return at.depth
    outer = by_id[id(holder)]
    is_inside = at.module is holder or at.name.startswith(f"{outer.name}.")
    return at.depth - outer.depth if is_inside else -1


def _modules(number: int, kind: str = "") -> str:
    return f"{number} {kind}module" if number == 1 else f"{number} {kind}modules"
