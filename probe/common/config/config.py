"""The choice of what to collect: the configuration file, the constructor's arguments, and the defaults behind both.

`load_config` checks everything before any work is done. A wrong value is one error that names place, key, value and
what is allowed; an unknown key is only a warning, because files are shared between versions and between tools.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from probe.common import log
from probe.common.config.fields import (
    ABSENT,
    ASCEND,
    Key,
    Location,
    check_scope,
    key,
    keys_of,
    one_of,
    parse_ascending,
    parse_count,
    parse_existing,
    parse_flag,
    parse_folder,
    parse_gib,
    parse_limit,
    parse_names,
    parse_new_folder,
    parse_number_above,
    parse_numbers,
    parse_pattern,
    parse_scope,
    parse_size,
    parse_summary_mode,
    parse_texts,
    some_of,
)
from probe.common.data_files import read_object
from probe.common.dump.naming import did_you_mean, nearest
from probe.common.errors import MsprobeException
from probe.common.harmless_text import show

RECORDING = ("statistics", "tensor", "structure", "overflow_check")
"""The tasks that write records."""
GRAD_PROBE = "grad_probe"
"""The task that collects no calls: it writes what the gradients of parameters are at each step of an optimizer."""
_OF_CALLS = (*RECORDING, "free_benchmark")
TASKS = (*_OF_CALLS, GRAD_PROBE)
_COMMAND = "runs the calls of a dump again, after the training: msprobe acc_check DUMP.json -config CONFIG.json"
PERT_MODES = ("improve_precision", "bit_noise", "add_noise", "change_value", "no_change", "to_cpu")
UNAVAILABLE_LEVELS = {"L2": ASCEND}
UNAVAILABLE_TASKS = {
    "exception_dump": ASCEND,
    "run_ut": _COMMAND,
    "acc_check": _COMMAND,
    "api_accuracy": ABSENT,
    "nan_analyze": ABSENT,
    "nan_check": ABSENT,
}
# fmt: off
WITHOUT_EFFECT = (
    "acl_config", "is_init", "is_regen", "enable_dataloader", "seed", "is_deterministic",
    "backward_input", "device", "stat_cal_mode", "error_data_path",
    "online_run_ut", "online_run_ut_recompute", "nfs_path", "host", "port", "tls_path",
)
# fmt: on
"""Keys that files written for msProbe carry and that change nothing here; the warning says so without a guess."""

_MOST_KEYS_LOGGED = 10
"""Keys without effect that are named; a guess."""


def _if(is_so: Callable[[Config], bool], words: str) -> Callable[[Config], str]:
    """The reason why a key has no effect: `words` if the configuration has a property, and otherwise none."""
    return lambda config: words.format(config=config) if is_so(config) else ""


_ALWAYS: Callable[[Config], bool] = lambda config: True  # noqa: E731 (one of several conditions)
_WITHOUT_ASYNC_DUMP = _if(lambda config: not config.async_dump, 'without "async_dump"')
_WITHOUT_TENSORS = _if(
    lambda config: config.task != "tensor" and not config.tensor_list,
    'if no tensors are saved; task "tensor" and "statistics.tensor_list" save them',
)
_WITHOUT_REFERENCE = _if(lambda config: config.bench_path is None, 'without "bench_path"')
_WITHOUT_GOLDEN_RUN = _if(lambda config: config.against is None, 'without "against"')
_WITHOUT_REPLAY = _if(lambda config: not config.replay_step, 'without "replay_step"')
_WITH_CHECKSUMS_ONLY = _if(
    lambda config: config.summary_mode == "xor", 'if "summary_mode" is "xor", which computes no statistics'
)
_WITHOUT_INTERVALS = _if(lambda config: config.grad_level != "L2", 'where "grad_level" is "{config.grad_level}"')
_WITHOUT_APIS = _if(
    # "ALL" leaves nothing out anywhere.
    lambda config: config.level in ("L0", "debug") and config.risk_level != "ALL",
    'at level "{config.level}", which collects no APIs',
)
_ON_EVERY_DEVICE = _if(_ALWAYS, "here: the statistics of every value are checked, not a unit of a device")
_AS_THE_FRAMEWORK_SAVES = _if(_ALWAYS, "here: the files of tensors are .pt with PyTorch and .npy with MindSpore")
_AT_DEBUG = _if(lambda config: config.level == "debug", 'at level "debug", which records what the program saves')
_BY_DERIVED_LIMITS = _if(
    _ALWAYS, "here: the limits of a correct kernel are derived for each call, not learned in the first steps"
)

_BY_HAND = (
    "changes the results of the training, which this tool never does; compute the functions found in higher precision, "
    "or on the CPU, in your own code"
)


@dataclass(frozen=True)
class Config:
    """One complete, checked configuration, and the table of keys: each field is one of them.

    The defaults are those of a run without a file.

    Args:
        task: ``statistics``, ``tensor``, ``structure``, ``overflow_check``, ``free_benchmark`` or ``grad_probe``.
        dump_path: the folder that gets the ``step<S>`` folders.
        level: ``L0`` modules, ``L1`` APIs, ``mix`` both, ``debug`` only what is saved by hand. This is the effective
            level: task structure never has another than ``L0`` and ``mix``.
        step: the steps to collect, sorted; empty means all.
        rank: the ranks to collect, sorted; empty means all.
        async_dump: write tensors at the end of the step instead of at once.
        async_dump_max_mib: what they may take in memory until then, in MiB; with more they are written earlier.
        max_gib: what the tensor files of this process may take on the disk, in GiB; -1 for no limit.
        log_level: the lowest level of the lines that are shown.
        dump_enable: collect now; ``None`` when the file has no such key, and so is not read again while running.
        extra_info: write ``stack.json`` and ``construct.json``.
        environment: write versions, variables, switches and seeds of the run next to the dump.
        precision: ``high`` computes statistics in float32.
        risk_level: which APIs are collected when neither `scope` nor `names` is set; else the framework's choice.
        scope: nothing, or the first and the last record to collect.
        names: key ``list``; keep records whose name contains one of these texts, empty keeps all.
        module: a pattern such as ``layers.1`` or ``*Norm``; keep modules that fit, and everything inside of them.
        api: a pattern such as ``softmax`` or ``Functional.*``; keep calls of functions that fit.
        tensor_list: records of task statistics whose tensors are saved too.
        data_mode: the parts of a record to keep; empty means all.
        summary_mode: ``statistics``, ``md5`` (checksum added) or ``xor`` (checksum instead).
        nonfinite: say of tensors with NaN or infinities how many these are, and the extremes of the other elements.
        sketch: keep a sketch of every tensor, by which two runs are compared element by element, in sketch.npz.
        file_format: known from msProbe; the framework decides how tensors are saved.
        against: a golden run with which each call is compared while the program runs.
        stop_at: ``divergence``: end the program after the step that diverges from `against`.
        bench_path: a dump with checksums to compare with while running.
        diff_nums: end after so many differences from `bench_path`; -1 means never.
        overflow_nums: end after so many steps with values that are not finite; -1 means never.
        check_mode: which units of an Ascend device look for them in msProbe; here every value is looked at.
        records_kept: key ``ring``, the records of a step that are kept in memory.
        every: look, and ask the other ranks, at the end of every so many steps.
        min_scale: a gradient scaler that skips a step at a smaller scale is reported.
        max_skips: so is one that skips so many steps in a row.
        max_gradient_norm_score: how far above the others a gradient norm may be, in deviations.
        replay_step: run the forward and the backward of a step that is written again, to save tensors.
        keep: what is kept of each step for that: what its model was given, or parameters and buffers too.
        pert_mode: what is changed where a call is run again.
        handler_type: ``check``; msProbe's ``fix`` is refused.
        fuzz_stage: ``forward`` or ``backward``.
        fuzz_device: known from msProbe; a call is run again where it ran, and with ``to_cpu`` on the CPU.
        fuzz_level: ``L1``, the only one there is.
        grad_level: what is written of each gradient: ``L0`` checksum and statistics, ``L1`` statistics and signs,
            ``L2`` the shares of intervals as well.
        param_list: the parameters that are wanted; empty means all.
        bounds: the ends of these intervals, ascending.
        if_preheat, preheat_step, max_sample: known from msProbe, which learns its limits in the first steps.
    """

    task: str = key("statistics", one_of(*TASKS, unavailable=UNAVAILABLE_TASKS))
    dump_path: str = key("./dump_path", parse_new_folder)
    level: str = key("L1", one_of("L0", "L1", "mix", "debug", unavailable=UNAVAILABLE_LEVELS))
    step: tuple[int, ...] = key((), parse_numbers)
    rank: tuple[int, ...] = key((), parse_numbers)
    async_dump: bool = key(False, parse_flag)
    async_dump_max_mib: int = key(1024, parse_size, unused=_WITHOUT_ASYNC_DUMP)
    max_gib: float = key(100.0, parse_gib, unused=_WITHOUT_TENSORS)
    log_level: str = key("info", one_of(*log.LEVELS))
    dump_enable: bool | None = key(None, parse_flag)
    extra_info: bool = key(True, parse_flag)
    environment: bool = key(True, parse_flag)
    precision: str = key("low", one_of("low", "high"))
    risk_level: str | None = key(None, one_of("ALL", "FOCUS", "CORE"), unused=_WITHOUT_APIS)
    scope: tuple[str, ...] = key((), parse_scope, _OF_CALLS, _AT_DEBUG)
    names: tuple[str, ...] = key((), parse_names, _OF_CALLS, _AT_DEBUG, name="list")
    module: str | None = key(None, parse_pattern, _OF_CALLS, _AT_DEBUG)
    api: str | None = key(None, parse_pattern, _OF_CALLS, _AT_DEBUG)
    tensor_list: tuple[str, ...] = key((), parse_texts, ("statistics",), _AT_DEBUG)
    data_mode: frozenset[str] = key(
        frozenset(), some_of("forward", "backward", "input", "output", everything="all"), RECORDING, _AT_DEBUG
    )
    summary_mode: str = key("statistics", parse_summary_mode, ("statistics", "tensor"))
    nonfinite: bool = key(False, parse_flag, ("statistics", "tensor"), _WITH_CHECKSUMS_ONLY)
    sketch: bool = key(True, parse_flag, ("statistics", "tensor", GRAD_PROBE))
    file_format: str | None = key(None, one_of("npy", "bin"), ("tensor",), _AS_THE_FRAMEWORK_SAVES)
    against: str | None = key(None, parse_existing, ("statistics", "tensor"), _AT_DEBUG)
    stop_at: str | None = key(None, one_of("divergence"), ("statistics", "tensor"), _WITHOUT_GOLDEN_RUN)
    bench_path: str | None = key(None, parse_folder, ("tensor",), _AT_DEBUG)
    diff_nums: int = key(1, parse_limit, ("tensor",), _WITHOUT_REFERENCE)
    overflow_nums: int = key(1, parse_limit, ("overflow_check",))
    check_mode: str | None = key(None, one_of("aicore", "atomic", "all"), ("overflow_check",), _ON_EVERY_DEVICE)
    records_kept: int = key(20_000, parse_count, ("overflow_check",), name="ring")
    every: int = key(1, parse_count, ("overflow_check",))
    min_scale: float = key(1.0, parse_number_above, ("overflow_check",))
    max_skips: int = key(20, parse_count, ("overflow_check",))
    max_gradient_norm_score: float | None = key(None, parse_number_above, ("overflow_check",))
    replay_step: bool = key(False, parse_flag, ("overflow_check",))
    keep: str = key("batch+params", one_of("batch", "batch+params"), ("overflow_check",), _WITHOUT_REPLAY)
    pert_mode: str = key("improve_precision", one_of(*PERT_MODES), ("free_benchmark",))
    handler_type: str = key("check", one_of("check", unavailable={"fix": _BY_HAND}), ("free_benchmark",))
    fuzz_stage: str = key("forward", one_of("forward", "backward"), ("free_benchmark",))
    fuzz_device: str = key("npu", one_of("npu", "cpu"), ("free_benchmark",))
    fuzz_level: str = key("L1", one_of("L1"), ("free_benchmark",))
    if_preheat: bool = key(False, parse_flag, ("free_benchmark",), _BY_DERIVED_LIMITS)
    preheat_step: int = key(15, parse_count, ("free_benchmark",))
    max_sample: int = key(20, parse_count, ("free_benchmark",))
    grad_level: str = key("L1", one_of("L0", "L1", "L2"), (GRAD_PROBE,))
    param_list: tuple[str, ...] = key((), parse_texts, (GRAD_PROBE,))
    bounds: tuple[float, ...] = key((-1, 0, 1), parse_ascending, (GRAD_PROBE,), _WITHOUT_INTERVALS)

    @property
    def is_filtered(self) -> bool:
        """True if only some records are collected, or only the tensors of some are saved."""
        return bool(self.names or self.scope or self.tensor_list or self.module or self.api)

    @property
    def takes_every_function(self) -> bool:
        """True if calls are recorded of functions that are not in msProbe's list, since any may make an infinity."""
        return self.task == "overflow_check" and self.risk_level in (None, "ALL")


KEYS = keys_of(Config)
"""Every key, by its name in the file."""


def load_config(
    path: str | None,
    *,
    task: object = None,
    dump_path: object = None,
    level: object = None,
    step: object = None,
    module: object = None,
    api: object = None,
    against: object = None,
    stop_at: object = None,
    summary_mode: object = None,
) -> Config:
    """Read and check the file `path`; what is given as an argument wins over the file.

    Args:
        path: a ``.json`` file; ``None`` stands for the defaults.
        task, dump_path, level, step: the constructor's arguments as the user gave them, ``None`` if not given.
        module, api: the patterns of ``msprobe run``, ``None`` if not given.
        against, stop_at: its golden run and where it ends, ``None`` if not given.
        summary_mode: that of the task's section, ``None`` if not given.

    Returns:
        The configuration; equal for equal content, so the file can be read again while the training runs.

    Raises:
        MsprobeException: a value is wrong, or ``dump_path`` is missing.
        ScopeException: ``scope`` is not a pair of names that the level can collect.
        FileCheckException: there is no such file, it is a link, or its name does not end in ``.json``.
        ConfigSyntaxError: the file is not a JSON object of a reasonable size.

    Example:
        >>> load_config(None, level="mix", step=["0-2"]).step
        (0, 1, 2)
    """
    if path is not None and not isinstance(path, str):
        raise Location(_argument("config_path"), "config_path").wrong(path, "the path of a .json file as text")
    arguments = {
        "task": task, "dump_path": dump_path, "level": level, "step": step, "module": module, "api": api,
        "against": against, "stop_at": stop_at, "summary_mode": summary_mode,
    }  # fmt: skip
    given = {key: value for key, value in arguments.items() if value is not None}
    content = {"dump_path": Config.dump_path} if path is None else read_object(path)
    top = _Settings(path or "default configuration", content, given)
    if top.value("dump_path") is None:
        meant = nearest("dump_path", [key for key in content if key not in KEYS])
        why = f', and {show(meant[0])} is not a known key; did you mean "dump_path"?' if meant else (
            "; give the folder for the dump there, in PrecisionDebugger(dump_path=), or to msprobe run with -o."
        )  # fmt: skip
        raise MsprobeException(f'{path}: "dump_path" is missing{why}')
    return _checked(top)


@dataclass(frozen=True)
class _Settings:
    """The values of the file, or of one section of it, under those given as arguments."""

    origin: str
    content: Mapping[str, object]
    given: Mapping[str, object]
    section: str = ""

    def value(self, name: str) -> object:
        """The value of the key `name`; ``null`` is the same as none."""
        value = self.given.get(name)
        return self.content.get(name) if value is None else value

    def location(self, name: str) -> Location:
        if name in self.given:
            return Location(_argument(name), name)
        return Location(self.origin, f"{self.section}.{name}" if self.section else name)

    def read(self, key: Key) -> Any:
        """The value of `key` as the configuration has it."""
        value = self.value(key.name)
        return key.default if value is None else key.parse(value, self.location(key.name))

    def below(self, section: str) -> _Settings:
        """The settings in a section; a missing section is an empty one."""
        content = self.value(section)
        if content is None:
            content = {}
        if not isinstance(content, dict):
            raise self.location(section).wrong(content, "an object with the settings of this task")
        known = [name for name, key in KEYS.items() if section in key.tasks]
        _warn_of_unknown(_Settings(self.origin, content, {}, section), known)
        given = {name: self.given[name] for name in known if name in self.given}
        return _Settings(self.origin, {name: content[name] for name in known if name in content}, given, section)


def _argument(name: str) -> str:
    return f"PrecisionDebugger({name}=...)"


def _checked(top: _Settings) -> Config:
    task, level = top.read(KEYS["task"]), top.read(KEYS["level"])
    level = _effective_level(task, level, top.location("level"))
    # Editors ask for the schema of a file at its key "$schema".
    silent = (*TASKS, *UNAVAILABLE_TASKS, "$schema")
    _warn_of_unknown(top, [name for name, key in KEYS.items() if not key.tasks], silent)
    _check_arguments(top, task)
    section = top.below(task)
    _check_golden_run(section)
    values = {key.attribute: (section if key.tasks else top).read(key) for key in KEYS.values()}
    config = Config(**{**values, "level": level})
    check_scope(config.scope, level, section.location("scope"))
    _warn_of_unused(config, top, section)
    _check_together(config, top.origin)
    return config


def _check_arguments(top: _Settings, task: str) -> None:
    """Refuse a golden run that is given as an argument and that the task has no use for."""
    for name in ("against", "stop_at"):
        if name in top.given and task not in KEYS[name].tasks:
            allowed = " and ".join(f'"{each}"' for each in KEYS[name].tasks)
            raise MsprobeException(f'{_argument(name)} is for the tasks {allowed}; the task is "{task}".')


def _check_golden_run(section: _Settings) -> None:
    """Refuse the end at a divergence that is given as an argument, where there is nothing to diverge from."""
    if "stop_at" in section.given and section.value("against") is None:
        raise MsprobeException(
            f"stop_at is {show(section.given['stop_at'])}, and no golden run is given to diverge from; give against as "
            "well (msprobe run --baseline GOLDEN), or leave stop_at (--stop-at) out."
        )


def _effective_level(task: str, level: str, location: Location) -> str:
    """Task structure describes which call is inside which module, which needs the modules."""
    if task == GRAD_PROBE:
        return "debug"  # no call is recorded
    if task == "overflow_check" and level == "debug":
        raise MsprobeException(
            f'{location.describe(level)}, but task "overflow_check" watches calls; use "L0", "L1" or "mix".'
        )
    if task == "free_benchmark" and level != "L1":
        raise MsprobeException(f'{location.describe(level)}, but task "free_benchmark" runs functions again; use "L1".')
    if task != "structure" or level in ("L0", "mix"):
        return level
    if level == "debug":
        raise MsprobeException(
            f'{location.describe(level)}, but task "structure" collects no values; use "L0" or "mix".'
        )
    log.warning(f'Task "structure" needs level "L0" or "mix"; "{level}" becomes "mix".', once="structure-level")
    return "mix"


def _check_together(config: Config, origin: str) -> None:
    """The rules that tie several settings to each other."""
    section = config.task
    if config.module is not None and config.level == "L1":
        raise MsprobeException(f'{origin}: "module" needs level "L0" or "mix"; the level is "L1", without modules.')
    if config.api is not None and config.level == "L0":
        raise MsprobeException(f'{origin}: "api" needs level "L1" or "mix"; the level is "L0", without functions.')
    if config.async_dump and config.summary_mode == "md5":
        raise MsprobeException(
            f'{origin}: "async_dump" is true and "{section}.summary_mode" is "md5", which do not go together; '
            "change one of them."
        )
    if config.async_dump and config.task == "tensor" and config.level != "debug" and not config.names:
        raise MsprobeException(
            f'{origin}: "async_dump" is true and "tensor.list" is empty; list the records to save, as all tensors of a '
            "step would have to stay in memory."
        )
    if config.against is not None and os.path.realpath(config.against) == os.path.realpath(config.dump_path):
        raise MsprobeException(
            f'{origin}: "{section}.against" is "{config.against}", and this run would write into the same folder; give '
            'it another "dump_path" (-o of msprobe run).'
        )
    if config.bench_path is not None and config.summary_mode != "md5":
        raise MsprobeException(
            f'{origin}: "tensor.bench_path" needs "tensor.summary_mode" to be "md5"; it is "{config.summary_mode}".'
        )


def _warn_of_unknown(settings: _Settings, known: Collection[str], silent: Collection[str] = ()) -> None:
    """Log each key that changes nothing, with the key it was probably meant to be."""
    unknown = [name for name in settings.content if name not in known and name not in silent]
    for name in unknown[:_MOST_KEYS_LOGGED]:
        shown = show(f"{settings.section}.{name}" if settings.section else name)
        reason = _why_ignored(name, settings.section, (*known, *silent))
        log.warning(f"{settings.origin}: {shown} {reason}", once=f"config-key-{shown}")
    if len(unknown) > _MOST_KEYS_LOGGED:
        rest = len(unknown) - _MOST_KEYS_LOGGED
        log.warning(f"{settings.origin}: {rest} more keys are not known and are ignored.", once="config-more-keys")


def _why_ignored(name: str, section: str, known: Collection[str]) -> str:
    if name in KEYS and KEYS[name].tasks:
        where = f'with task "{section}"' if section else "at the top; put it into the section of the task"
        return f"has no effect {where}."
    if name in KEYS:
        return "has no effect in a section; put it at the top."
    if name in WITHOUT_EFFECT:
        return "has no effect in this version."
    return "is not a known key and is ignored" + (did_you_mean(name, known) or ".")


def _warn_of_unused(config: Config, top: _Settings, section: _Settings) -> None:
    """Log each setting that changes nothing because of another one; one that says the default is no matter."""
    for entry in KEYS.values():
        reason = entry.unused(config)
        if reason and getattr(config, entry.attribute) != entry.default:
            location = (section if entry.tasks else top).location(entry.name)
            text = f'{location.origin}: "{location.key}" has no effect {reason}.'
            log.warning(text, once=f"config-setting-{location.key}")
