"""`PrecisionDebugger`: what a training script calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter
from probe.collect.session import Session
from probe.collect.sinks.sink import Sink
from probe.common import log
from probe.common.config.config import GRAD_PROBE, Config
from probe.common.config.fields import Location, numbers_text, parse_numbers
from probe.common.containers import by_prefix
from probe.common.errors import MsprobeException
from probe.common.harmless_text import show
from probe.common.interfaces import CallChecker, JudgeStep

if TYPE_CHECKING:
    from probe.api.monitoring.grad_probe import GradientProbe


class PrecisionDebugger:
    """Collects what goes in and out of modules and APIs between `start` and `stop`.

    There is one instance per process; a second constructor call returns it, and says which of its arguments are ignored
    because others are in use. `reset` forgets it. Every method can be called on the class as well, from files that do
    not hold the instance.

    Leaving a ``with`` block, also by an exception, ends the step that has begun, as `stop` and `step` do. Entering it
    does nothing, since `start` needs the model.

    Args:
        config_path: A configuration file, see docs/reference/configuration.md; ``None`` for the defaults.
        task: ``statistics``, ``tensor``, ``structure``, ``overflow_check``, ``free_benchmark`` or ``grad_probe``. This
            and the following win over the file.
        dump_path: Folder for the results, created if missing.
        level: ``L0`` (modules), ``L1`` (APIs), ``mix`` (both) or ``debug`` (only `save`).
        step: Steps to collect: integers, or texts such as ``"4-6"``; empty for all.
        sinks: What receives the calls, instead of what the task stands for; see `probe.Sink`.
        module: A pattern such as ``layers.1`` or ``*Norm``; modules that fit, and everything inside of them.
        api: A pattern such as ``softmax``; calls of functions that fit.
        model: The module, or modules, for a `start` that is given none, as older releases had it.
        against: A golden run with which each call is compared while the program runs.
        stop_at: ``divergence`` ends the program, with status 1, after the step that diverges from it.
        summary_mode: ``statistics``, ``md5`` or ``xor``; what a record has of a tensor, which wins over the file, too.

    Raises:
        MsprobeException: a value is wrong; the message names it and what is allowed.

    Example:
        >>> debugger = PrecisionDebugger(dump_path="./dump", level="L0")
        >>> debugger.start(model)
        >>> model(batch).sum().backward()
        >>> debugger.stop()
        >>> debugger.step()

        >>> with PrecisionDebugger(dump_path="./dump", level="L0") as debugger:
        ...     debugger.start(model)
        ...     model(batch).sum().backward()
    """

    backend: ClassVar[str]
    """The name by which the loader knows the framework that the user's import stands for."""
    _instance: ClassVar[PrecisionDebugger | None] = None
    _give_way: ClassVar[Callable[[], None] | None] = None
    """Called before another instance is made: `msprobe run` can take back the one that it has made."""
    _session: Session
    _served_by: str
    _config_path: str | None
    _probe: GradientProbe | None
    """The probe of task ``grad_probe``; ``None`` with any other task."""
    _models: ClassVar[dict[str, weakref.ref[Any]]] = {}
    """The models of a `start` that is given none, by their prefixes."""
    _starts: int = 0
    """The number of times that collection was started when the ``with`` block was entered."""

    def __new__(cls, *args: Any, **kwargs: Any) -> PrecisionDebugger:
        if cls._give_way is not None:
            cls._give_way()
        return cls._instance if cls._instance is not None else super().__new__(cls)

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: Sequence[Any] | None = None,
        sinks: Sequence[Sink] | None = None,
        module: str | None = None,
        api: str | None = None,
        *,
        model: Any = None,
        against: str | None = None,
        stop_at: str | None = None,
        summary_mode: str | None = None,
    ) -> None:
        cls = type(self)
        arguments = {
            "task": task, "dump_path": dump_path, "level": level, "step": step, "module": module, "api": api,
            "against": against, "stop_at": stop_at, "summary_mode": summary_mode,
        }  # fmt: skip
        if sinks is not None:
            _check_sinks(sinks)
        if cls._instance is not None:
            cls._instance._log_ignored(config_path, arguments, sinks)
            if model is not None:
                cls._instance._check_model(model)
                cls._remember(model)
            return
        self._served_by = loader.detect(self.backend)
        self._session = Session(loader.load(self._served_by), config_path, arguments, _checker, sinks, _judge)
        self._config_path = config_path
        self._check_model(model)
        self._probe = _probe(self._session.config, self._served_by)
        cls._instance = self
        cls._remember(model)

    def _check_model(self, model: Any) -> None:
        is_module = loader.load(self._served_by).hooks.is_module
        for one in () if model is None else by_prefix(model).values():
            if not is_module(one):
                raise MsprobeException(
                    f"PrecisionDebugger(model=...): model is a {type(one).__name__}; allowed: a module or a list."
                )

    def _log_ignored(self, config_path: Any, arguments: dict[str, Any], sinks: Any) -> None:
        """Log which arguments of a further constructor call are not those in use."""
        config = self._session.config
        ignored = []
        if config_path is not None and config_path != self._config_path:
            used = "none" if self._config_path is None else show(self._config_path)
            ignored.append(("config_path", show(config_path), used))
        for name in ("task", "dump_path", "level", "module", "api", "against", "stop_at", "summary_mode"):
            if arguments[name] is not None and arguments[name] != getattr(config, name):
                ignored.append((name, show(arguments[name]), show(getattr(config, name))))
        step, used = arguments["step"], numbers_text(config.step) or "all"
        if step is not None and _steps_text(step) != used:
            ignored.append(("step", _steps_text(step), used))
        in_use = self._session.sinks
        others = sinks is not None and any(sink not in in_use for sink in sinks)
        if others:
            ignored.append(("sinks", _classes_text(sinks), _classes_text(in_use)))
        if ignored:
            text = ", ".join(f"{name} is {given} (in use: {used})" for name, given, used in ignored)
            text = f"A PrecisionDebugger exists already, so these arguments are ignored: {text}."
            text = f"{text} PrecisionDebugger.reset() makes room for a new one."
            if others:
                text += " PrecisionDebugger.add_sink(sink) adds a sink to those in use."
            log.warning(text, once=text)

    def __enter__(self) -> PrecisionDebugger:
        self._starts = self._session.starts
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session.starts == self._starts:
            log.warning("nothing was collected in this block: call start(model) in it.", once="empty-block")
        self._session.end()

    @classmethod
    def reset(cls) -> None:
        """End collection, complete the files, put everything back, and forget the instance; without one do nothing.

        The next constructor call makes a new instance with its own arguments. Steps count from 0 again.
        """
        instance, cls._instance, cls._give_way, cls._models = cls._instance, None, None, {}
        if instance is not None:
            if instance._probe is not None:
                instance._probe.stop()
            instance._session.close()
            log.reset()

    @classmethod
    def gives_way(cls, give_way: Callable[[], None]) -> None:
        """Call `give_way` before another instance is made, as long as this one is there."""
        cls._give_way = give_way

    @classmethod
    def exists(cls) -> bool:
        """True if this process has a debugger."""
        return cls._instance is not None

    @classmethod
    def session(cls) -> Session:
        """The work of the one instance.

        Raises:
            MsprobeException: there is no instance yet.
        """
        if cls._instance is None:
            raise MsprobeException("No PrecisionDebugger exists yet; create one before calling its methods.")
        return cls._instance._session

    @classmethod
    def start(cls, model: Any = None, token_range: Sequence[int] | None = None, rank_id: int | None = None) -> None:
        """Collect from here on, if the current step and rank are wanted.

        Args:
            model: The module, or a list or tuple of modules, to collect from; needed at levels L0 and mix.
            token_range: ``[first, last]``: only these forward passes of `model`, counted from 0, both included.
            rank_id: The rank to use in folder names; otherwise that of the default process group.
        """
        if cls.session().guard("start()", cls._collects_calls):
            cls.session().start(cls._model_given_last() if model is None else model, token_range, rank_id)

    @classmethod
    def _remember(cls, model: Any) -> None:
        # Weakly: what was collected once must not live on because of it.
        given = {} if model is None else by_prefix(model)
        cls._models = {prefix: weakref.ref(one) for prefix, one in given.items()}

    @classmethod
    def _model_given_last(cls) -> Any:
        models = {prefix: reference() for prefix, reference in cls._models.items()}
        if set(models) == {""}:
            return models[""]
        return None if None in models.values() else models or None

    @property
    def config(self) -> LiveConfig:
        """The configuration in use; ``config.dump_path`` can be set between `stop` and `start`."""
        return LiveConfig(self._session)

    @property
    def service(self) -> Service:
        """The object by which integrations that were written for msProbe set ``config.dump_path``."""
        return Service(self._session)

    @classmethod
    def stop(cls) -> None:
        """Collect no further calls and write the files. Gradients of collected calls are taken until `step`."""
        cls.session().stop()
        if cls._instance is not None and cls._instance._probe is not None:
            cls.session().guard("stop()", cls._instance._probe.stop)

    @classmethod
    def monitor(cls, module: Any) -> None:
        """Write the gradients of `module` at each step of its optimizer; for task ``grad_probe``.

        Args:
            module: A model; with MindSpore its optimizer as well. With PyTorch the optimizer may be made later.

        Raises:
            MsprobeException: `module` is something else.
        """
        session = cls.session()
        probe = cls._instance._probe if cls._instance is not None else None
        if probe is None:
            text = f'monitor() has no effect with task "{session.config.task}", only with "{GRAD_PROBE}".'
            log.warning(text, once="debugger-monitor")
            return
        session.guard("monitor()", probe.monitor, module)

    @classmethod
    def _collects_calls(cls) -> bool:
        """False with task ``grad_probe``, which takes a model by `monitor`."""
        if cls._instance is None or cls._instance._probe is None:
            return True
        if not cls._instance._probe.is_given:
            text = f'start() collects nothing with task "{GRAD_PROBE}"; call monitor(model) instead.'
            log.warning(text, once="debugger-start-probe")
        return False

    @classmethod
    def step(cls, loss: Any = None, grad_norm: Any = None, *, dump: bool = True) -> None:
        """End the training step: later calls belong to the next one. Ends collection if `stop` was not called.

        Args:
            loss: The step's loss; with task ``overflow_check`` a step is written whose loss is not finite.
            grad_norm: The norm of its gradients; the same, and where it is far above those of the steps before.
            dump: False of a pass in which nothing was collected: it is not counted.
        """
        cls.session().step(loss, grad_norm, dump)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Number the first step `step` instead of 0."""
        cls.session().set_init_step(step)

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one value at level debug.

        Args:
            variable: A tensor, int, float, str, bool, or dict, list, tuple of them.
            name: Its name in debug.json.
            save_backward: Also record the gradients of its tensors.
        """
        called = f"save({name!r})" if type(name) is str else "save()"
        session = cls.session()
        session.guard(called, session.save, variable, name, save_backward)

    @classmethod
    def add_sink(cls, sink: Sink) -> None:
        """Hand the collected calls to `sink` as well, from the next step on."""
        cls.session().add_sink(sink)

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Record calls of ``module.api`` as ``<api_prefix>.<api>``, by default with the module's own name."""
        cls.session().register_custom_api(module, api, api_prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Undo `register_custom_api`: ``module.api`` is the original object again."""
        cls.session().restore_custom_api(module, api)


def _probe(config: Config, backend: str) -> GradientProbe | None:
    if config.task != GRAD_PROBE:
        return None
    # Whoever does not ask for it needs no numpy.
    from probe.api.monitoring.grad_probe import GradientProbe

    return GradientProbe(config, backend)


def _checker(config: Config, adapter: FrameworkAdapter) -> CallChecker:
    # Whoever does not ask for it needs no numpy.
    from probe.runtime_checks.free_benchmark import FreeBenchmark

    return FreeBenchmark(config, adapter)


def _judge() -> JudgeStep:
    # Whoever does not ask for it imports no comparison.
    from probe.compare.while_running import judge

    return judge


def _classes_text(sinks: Iterable[Any]) -> str:
    return ", ".join(type(sink).__name__ for sink in sinks) or "none"


def _steps_text(steps: Any) -> str:
    """An argument ``step`` of any kind as the configuration would have it, or what it is if that would refuse it."""
    try:
        return numbers_text(parse_numbers(steps, Location("", "step"))) or "all"
    except MsprobeException:
        return show(steps)


def _check_sinks(sinks: Any) -> None:
    """Check the argument of that name.

    Raises:
        MsprobeException: it is no list of sinks.
    """
    if not isinstance(sinks, (list, tuple)) or not all(isinstance(sink, Sink) for sink in sinks):
        kinds = ", ".join(type(sink).__name__ for sink in sinks) if isinstance(sinks, (list, tuple)) else ""
        given = f"a {type(sinks).__name__}" + (f" of {kinds}" if kinds else "")
        allowed = "a list of instances of probe.Sink"
        raise MsprobeException(f"PrecisionDebugger(sinks=...): sinks is {given}; allowed: {allowed}.")


# --- what integrations of other projects reach for


class LiveConfig:
    """The configuration in use; ``dump_path`` can be set, for what is collected from the next `start` on."""

    def __init__(self, session: Session) -> None:
        object.__setattr__(self, "_session", session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "dump_path":
            raise AttributeError(f"config.{name} cannot be set while the program runs; only config.dump_path can.")
        self._session.move_to(value)


class Service:
    """``PrecisionDebugger.service`` of msProbe, as far as public integrations use it; other attributes may be set."""

    def __init__(self, session: Session) -> None:
        self.config = LiveConfig(session)
        self._reset_status = session.begin_again
