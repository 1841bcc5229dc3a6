"""What to collect: the configuration file, the constructor's arguments, and the defaults behind both.

`load_config` checks everything before any work is done. A wrong value is one error that names place, key, value and
what is allowed; an unknown key is only a warning, because files are shared between versions and between tools.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from probe.common import log
from probe.common.config.fields import (
    Place,
    one_of,
    parse_flag,
    parse_folder,
    parse_limit,
    parse_new_folder,
    parse_numbers,
    parse_size,
    parse_texts,
    quoted,
    some_of,
)
from probe.common.config.json_file import read_object
from probe.common.dump import naming
from probe.common.errors import MsprobeException, ScopeException
from probe.common.show import show

TASKS = ("statistics", "tensor", "structure")
LEVELS = ("L0", "L1", "mix", "debug")
RISK_LEVELS = ("ALL", "FOCUS", "CORE")
PRECISIONS = ("low", "high")
DATA_MODES = ("forward", "backward", "input", "output")
SUMMARY_MODES = ("statistics", "md5", "xor")
FILE_FORMATS = ("npy", "bin")

# Values that msProbe knows and this version does not offer. They get an answer of their own: the user did not
# misspell anything.
_ABSENT = "is not available in this version"
_ASCEND = f"needs an Ascend device and {_ABSENT}"
UNAVAILABLE_LEVELS = {"L2": _ASCEND}
UNAVAILABLE_TASKS = {
    "overflow_check": _ASCEND,
    "exception_dump": _ASCEND,
    "free_benchmark": _ABSENT,
    "run_ut": _ABSENT,
    "acc_check": _ABSENT,
    "api_accuracy": _ABSENT,
    "grad_probe": _ABSENT,
    "nan_analyze": _ABSENT,
    "nan_check": _ABSENT,
}
_COMPILED = f"is for graphs that MindSpore compiles; that {_ASCEND}"
_KERNEL_PATTERN = "name-regex("
_KERNEL_STATISTICS = ("max", "min", "mean", "l2norm", "count", "hash")

# fmt: off
_TOP_KEYS = (
    "task", "dump_path", "level", "step", "rank",
    "async_dump", "async_dump_max_mib", "dump_enable", "extra_info", "precision", "risk_level",
)
# fmt: on
_SECTION_KEYS = {
    "statistics": ("scope", "list", "tensor_list", "data_mode", "summary_mode"),
    "tensor": ("scope", "list", "data_mode", "summary_mode", "file_format", "bench_path", "diff_nums"),
    "structure": ("scope", "list", "data_mode"),
}
_ALL_SECTION_KEYS = frozenset(key for keys in _SECTION_KEYS.values() for key in keys)
# Keys that files written for msProbe carry and that change nothing here; the warning says so without a guess.
# fmt: off
_WITHOUT_EFFECT = (
    "acl_config", "is_init", "is_regen", "enable_dataloader", "seed", "is_deterministic",
    "backward_input", "device", "stat_cal_mode", "check_mode", "overflow_nums", "error_data_path",
    "online_run_ut", "online_run_ut_recompute", "nfs_path", "host", "port", "tls_path",
)
# fmt: on
_MOST_KEYS_NAMED = 10
# Longer names are no records, and parsing would convert any number of digits.
_LONGEST_NAME = 1000
_NAME_EXAMPLES = '"Module.fc.Linear.forward.0" or "Functional.relu.0.backward"'

T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """One complete, checked configuration; the defaults are those of a run without a file.

    Args:
        task: ``statistics``, ``tensor`` or ``structure``.
        dump_path: the folder that gets the ``step<S>`` folders.
        level: ``L0`` modules, ``L1`` APIs, ``mix`` both, ``debug`` only what is saved by hand. This is the effective
            level: task structure never has another than ``L0`` and ``mix``.
        step: the steps to collect, sorted; empty means all.
        rank: the ranks to collect, sorted; empty means all.
        async_dump: write tensors at the end of the step instead of at once.
        async_dump_max_mib: what they may take in memory until then, in MiB; with more they are written earlier.
        dump_enable: collect now; ``None`` when the file has no such key, and so is not read again while running.
        extra_info: write ``stack.json`` and ``construct.json``.
        precision: ``high`` computes statistics in float32.
        risk_level: which APIs are collected when neither `scope` nor `names` is set; else the framework's choice.
        scope: nothing, or the first and the last record to collect.
        names: key ``list``; keep records whose name contains one of these texts, empty keeps all.
        tensor_list: records of task statistics whose tensors are saved too.
        data_mode: the halves to keep; empty means all.
        summary_mode: ``statistics``, ``md5`` (checksum added) or ``xor`` (checksum instead).
        file_format: how tensors are saved where the framework leaves a choice.
        bench_path: a dump with checksums to compare with while running.
        diff_nums: end after so many differences from `bench_path`; -1 means never.
    """

    task: str = "statistics"
    dump_path: str = "./dump_path"
    level: str = "L1"
    step: tuple[int, ...] = ()
    rank: tuple[int, ...] = ()
    async_dump: bool = False
    async_dump_max_mib: int = 1024
    dump_enable: bool | None = None
    extra_info: bool = True
    precision: str = "low"
    risk_level: str | None = None
    scope: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    tensor_list: tuple[str, ...] = ()
    data_mode: frozenset[str] = frozenset()
    summary_mode: str = "statistics"
    file_format: str = "npy"
    bench_path: str | None = None
    diff_nums: int = 1


def load_config(
    path: str | None,
    *,
    task: object = None,
    dump_path: object = None,
    level: object = None,
    step: object = None,
) -> Config:
    """Read and check the file `path`; what is given as an argument wins over the file.

    Args:
        path: a ``.json`` file; ``None`` stands for the defaults.
        task, dump_path, level, step: the constructor's arguments as the user gave them, ``None`` if not given.

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
        raise Place(_argument("config_path"), "config_path").wrong(path, "the path of a .json file as text")
    arguments = {"task": task, "dump_path": dump_path, "level": level, "step": step}
    given = {key: value for key, value in arguments.items() if value is not None}
    content = {} if path is None else read_object(path)
    settings = _Settings(path or "default configuration", content, given)
    if path is not None and settings.get("dump_path") is None:
        raise MsprobeException(
            f'{path}: "dump_path" is missing; name the folder for the dump there or in PrecisionDebugger(dump_path=).'
        )
    config = _build(settings)
    _check_together(config, settings.origin)
    return config


@dataclass(frozen=True)
class _Settings:
    """The values of the file, or of one section of it, under those given as arguments."""

    origin: str
    content: Mapping[str, object]
    given: Mapping[str, object]
    section: str = ""

    def get(self, key: str) -> object:
        """The value of `key`; ``null`` is the same as none."""
        value = self.given.get(key)
        return self.content.get(key) if value is None else value

    def place(self, key: str) -> Place:
        if key in self.given:
            return Place(_argument(key), key)
        return Place(self.origin, f"{self.section}.{key}" if self.section else key)

    def read(self, key: str, parse: Callable[[object, Place], T], default: T) -> T:
        """The value of `key` as `parse` understands it."""
        value = self.get(key)
        return default if value is None else parse(value, self.place(key))

    def below(self, section: str, known: tuple[str, ...]) -> _Settings:
        """The settings in a section, of these the `known` ones; a missing section is an empty one."""
        content = self.get(section)
        if content is None:
            content = {}
        if not isinstance(content, dict):
            raise self.place(section).wrong(content, "an object with the settings of this task")
        _warn_of_keys(_Settings(self.origin, content, {}, section), known)
        return _Settings(self.origin, {key: content[key] for key in known if key in content}, {}, section)


def _argument(name: str) -> str:
    return f"PrecisionDebugger({name}=...)"


def _build(top: _Settings) -> Config:
    default = Config()
    task = top.read("task", _offered(TASKS, UNAVAILABLE_TASKS), default.task)
    level = top.read("level", _offered(LEVELS, UNAVAILABLE_LEVELS), default.level)
    level = _effective_level(task, level, top.place("level"))
    _warn_of_keys(top, _TOP_KEYS, silent=(*TASKS, *UNAVAILABLE_TASKS))
    section = top.below(task, _SECTION_KEYS[task])
    dump_path = top.get("dump_path")
    config = Config(
        task=task,
        dump_path=parse_new_folder(default.dump_path if dump_path is None else dump_path, top.place("dump_path")),
        level=level,
        step=top.read("step", parse_numbers, default.step),
        rank=top.read("rank", parse_numbers, default.rank),
        async_dump=top.read("async_dump", parse_flag, default.async_dump),
        async_dump_max_mib=top.read("async_dump_max_mib", parse_size, default.async_dump_max_mib),
        dump_enable=top.read("dump_enable", parse_flag, default.dump_enable),
        extra_info=top.read("extra_info", parse_flag, default.extra_info),
        precision=top.read("precision", one_of(*PRECISIONS), default.precision),
        risk_level=top.read("risk_level", one_of(*RISK_LEVELS), default.risk_level),
        scope=section.read("scope", lambda value, place: _scope(value, place, level), default.scope),
        names=section.read("list", _names, default.names),
        tensor_list=section.read("tensor_list", parse_texts, default.tensor_list),
        data_mode=section.read("data_mode", some_of(*DATA_MODES, everything="all"), default.data_mode),
        summary_mode=section.read("summary_mode", _summary_mode, default.summary_mode),
        file_format=section.read("file_format", one_of(*FILE_FORMATS), default.file_format),
        bench_path=section.read("bench_path", parse_folder, default.bench_path),
        diff_nums=section.read("diff_nums", parse_limit, default.diff_nums),
    )
    _warn_of_settings(top, section, config)
    return config


def _offered(allowed: tuple[str, ...], unavailable: Mapping[str, str]) -> Callable[[object, Place], str]:
    """Make the parser of an enumeration of which msProbe has more members than are offered here."""
    parse_allowed = one_of(*allowed)

    def parse(value: object, place: Place) -> str:
        if isinstance(value, str) and value in unavailable:
            raise MsprobeException(f"{place.says(value)}, which {unavailable[value]}; use {quoted(allowed)}.")
        return parse_allowed(value, place)

    return parse


def _names(value: object, place: Place) -> tuple[str, ...]:
    names = parse_texts(value, place)
    for index, name in enumerate(names):
        if name.startswith(_KERNEL_PATTERN):
            raise MsprobeException(f"{place.item(index).says(name)}, which {_COMPILED}. Give parts of record names.")
    return names


def _summary_mode(value: object, place: Place) -> str:
    if isinstance(value, list) and any(word in value for word in _KERNEL_STATISTICS):
        raise MsprobeException(f"{place.says(value)}, which {_COMPILED}. Use {quoted(SUMMARY_MODES)}.")
    return one_of(*SUMMARY_MODES)(value, place)


def _effective_level(task: str, level: str, place: Place) -> str:
    """Task structure describes which call is inside which module, which needs the modules."""
    if task != "structure" or level in ("L0", "mix"):
        return level
    if level == "debug":
        raise MsprobeException(f'{place.says(level)}, but task "structure" collects no values; use "L0" or "mix".')
    log.warning(f'Task "structure" needs level "L0" or "mix"; "{level}" becomes "mix".', once="structure-level")
    return "mix"


def _scope(value: object, place: Place, level: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise place.wrong(value, "a list of two names of records, or an empty one")
    if not value:
        return ()
    if len(value) != 2:
        raise ScopeException(
            f'{place.origin}: "{place.key}" has length {len(value)}; name the first and the last record, or none.'
        )
    first, last = (_record_name(name, place.item(index), level) for index, name in enumerate(value))
    if _comes_after(first, last):
        raise ScopeException(
            f'{place.origin}: "{place.key}" runs backwards: {show(first)} comes after {show(last)}; exchange them.'
        )
    return first, last


def _comes_after(first: str, last: str) -> bool:
    """Whether `first` cannot be before `last`, as far as two names tell: forward calls of one thing are numbered.

    Of backwards nothing is known: they run in any order, and before later forward calls where gradients accumulate.
    """
    one, other = naming.parse(first), naming.parse(last)
    if one is None or other is None or one.base != other.base or other.direction != naming.FORWARD:
        return False
    return one.number > other.number or (one.number == other.number and one.direction == naming.BACKWARD)


def _record_name(name: object, place: Place, level: str) -> str:
    parsed = naming.parse(name) if isinstance(name, str) and len(name) <= _LONGEST_NAME else None
    # A module's base is at least root, path and class.
    complete = (
        parsed is not None
        and parsed.direction in (naming.FORWARD, naming.BACKWARD)
        and (not parsed.is_module or parsed.base.count(".") >= 2)
    )
    if not isinstance(name, str) or parsed is None or not complete or name != name.strip():
        raise ScopeException(f"{place.says(name)}; allowed: complete names as in dump.json, such as {_NAME_EXAMPLES}.")
    if level == "L1" and parsed.is_module:
        raise ScopeException(
            f'{place.says(name)}, a module, but level "L1" collects APIs; name an API or use level "L0" or "mix".'
        )
    if level == "L0" and not parsed.is_module:
        raise ScopeException(
            f'{place.says(name)}, an API, but level "L0" collects modules; name a module or use level "L1" or "mix".'
        )
    return name


def _check_together(config: Config, origin: str) -> None:
    """The rules that tie several settings to each other."""
    section = config.task
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
    if config.bench_path is not None and config.summary_mode != "md5":
        raise MsprobeException(
            f'{origin}: "tensor.bench_path" needs "tensor.summary_mode" to be "md5"; it is "{config.summary_mode}".'
        )


def _warn_of_keys(settings: _Settings, known: tuple[str, ...], silent: tuple[str, ...] = ()) -> None:
    """Name each key that changes nothing, with the key it was probably meant to be."""
    unknown = [key for key in settings.content if key not in known and key not in silent]
    for key in unknown[:_MOST_KEYS_NAMED]:
        shown = show(f"{settings.section}.{key}" if settings.section else key)
        reason = _why_ignored(key, settings.section, known)
        log.warning(f"{settings.origin}: {shown} {reason}", once=f"config-key-{shown}")
    if len(unknown) > _MOST_KEYS_NAMED:
        rest = len(unknown) - _MOST_KEYS_NAMED
        log.warning(f"{settings.origin}: {rest} more keys are not known and are ignored.", once="config-more-keys")


def _warn_of_settings(top: _Settings, section: _Settings, config: Config) -> None:
    """Name each setting that changes nothing because of another one; one that says the default is no matter."""
    at_level = f'at level "{config.level}"'
    if not config.async_dump:
        _warn_of_setting(top, "async_dump_max_mib", config.async_dump_max_mib, 'without "async_dump"')
    # "ALL" leaves nothing out anywhere.
    if config.level in ("L0", "debug") and config.risk_level != "ALL":
        _warn_of_setting(top, "risk_level", config.risk_level, f"{at_level}, which collects no APIs")
    if config.level == "debug":
        only = f"{at_level}, which records what the program saves"
        for key, value in (
            ("scope", config.scope),
            ("list", config.names),
            ("tensor_list", config.tensor_list),
            ("data_mode", config.data_mode),
            ("bench_path", config.bench_path),
        ):
            _warn_of_setting(section, key, value, only)
    if config.bench_path is None:
        _warn_of_setting(section, "diff_nums", config.diff_nums, 'without "bench_path"')


def _warn_of_setting(settings: _Settings, key: str, value: object, why: str) -> None:
    if value != getattr(Config, "names" if key == "list" else key):
        place = settings.place(key)
        log.warning(f'{place.origin}: "{place.key}" has no effect {why}.', once=f"config-setting-{place.key}")


def _why_ignored(key: str, section: str, known: tuple[str, ...]) -> str:
    if key in _ALL_SECTION_KEYS:
        place = f'with task "{section}"' if section else "at the top; put it into the section of the task"
        return f"has no effect {place}."
    if key in _TOP_KEYS:
        return "has no effect in a section; put it at the top."
    if key in _WITHOUT_EFFECT:
        return "has no effect in this version."
    near = difflib.get_close_matches(key[:100], known, n=1)
    return "is not a known key and is ignored" + (f'; did you mean "{near[0]}"?' if near else ".")
