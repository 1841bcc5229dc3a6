"""The settings of one run from all places where they are written: files, launches of a script, the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probe.configcheck.meanings import (
    BETAS,
    BY_TITLE,
    COUNT,
    DTYPE,
    FLAG,
    NAME,
    PATH,
    REFERENCES,
    STAGE,
    TABLE,
    Setting,
    has_no_effect,
    meaning,
    plain_name,
    scope,
    variables_of,
)  # fmt: skip
from probe.configcheck.shell import LAUNCHER, PROGRAM
from probe.configcheck.tables import are_equal, plain_value

Sources = Mapping[str, Mapping[str, Any]]
"""The settings in each place, by the name of the file; ``run.sh (2)`` is the second launch of a script."""
ENVIRONMENT = "the environment"
_CONFIG_FILE = f"{LAUNCHER}config_file"
_WORLD = BY_TITLE["world size"]
_STAGE = re.compile(r"(?i)(?:zero|z|stage)[-_]?(?:stage)?[-_]?([0-3])(?![0-9])")
_UNKNOWN = re.compile(r"\$[({\w]|`")
_SCRIPT = re.compile(r"\.(sh|bash|slurm|sbatch)( \(\d+\))?\Z")
ONE_PROCESS = "number of processes"
"""The name of the world size of a launch that says nothing of it."""
_AUTO = ("auto", "cuda")
_SHARDING = {"1": "fullshard", "2": "shardgradop", "3": "noshard", "4": "hybridshard", "5": "hybridshardzero2"}
"""Numbers of the strategies of FSDP in accelerate."""


@dataclass(frozen=True)
class Entry:
    """One setting in one place."""

    source: str
    name: str
    value: Any
    """The value in the form in which it is compared."""
    shown: Any
    setting: Setting | None
    is_overridden: bool = False
    """True if an option of the launcher that reads the file counts instead."""

    @property
    def key(self) -> tuple[tuple[str, ...], str]:
        """Equal for settings that mean the same."""
        last = plain_name(self.name).rpartition(".")[2].replace("_", "")
        if self.setting is None:
            return scope(self.name), f"={last}"
        title = self.setting.group or self.setting.title
        return scope(self.name), f"{title}={last}" if self.setting.is_family else title

    @property
    def has_no_effect(self) -> bool:
        """True if no value of the training depends on it, as far as its name says."""
        if self.setting is None:
            return self.name.startswith(LAUNCHER) or has_no_effect(self.name)
        return any(part in ("eval", "val", "validation", "test") for part in scope(self.name))

    @property
    def is_unknown(self) -> bool:
        """True if only a running script knows the value."""
        return bool(_UNKNOWN.search(str(self.shown)))


def entries(
    sources: Sources, variables: Mapping[str, str] | None = None, left: frozenset[str] | None = None
) -> list[Entry]:
    """All settings of a run; the world size of each place is computed from its parts.

    Args:
        sources: The settings of each place.
        variables: The environment.
        left: The variables that count as settings; ``None`` for all that can be such.
    """
    found: list[Entry] = []
    environment = dict(variables or {})
    own = [entry for name, value in environment.items() if name in (SETTING_VARIABLES if left is None else left)
           for entry in _entries(ENVIRONMENT, name, value, "$")]  # fmt: skip
    places: dict[str, Mapping[str, Any]] = {**sources, ENVIRONMENT: {}}
    for source, settings in places.items():
        here = [entry for name, value in settings.items() if name != PROGRAM for entry in _entries(source, name, value)]
        found += (entry for entry in here if _kind(entry) != COUNT)
        counts = [entry for entry in here if _kind(entry) == COUNT]
        is_launch = bool(_SCRIPT.search(source)) or any(name.startswith(LAUNCHER) for name in settings)
        if is_launch or (source == ENVIRONMENT and not any(map(_is_world, found))):
            counts += (entry for entry in own if _kind(entry) == COUNT)
        world = _world(source, counts, environment, is_launch, settings.get(PROGRAM))
        found += [world] if world is not None else []
    worlds = [entry for entry in found if _is_world(entry) and entry.name != ONE_PROCESS]
    found = [entry for entry in (*found, *(each for each in own if _kind(each) != COUNT))
             if not worlds or entry.name != ONE_PROCESS]  # fmt: skip
    return _with_precedence(found, sources)


def _with_precedence(found: Sequence[Entry], sources: Sources) -> list[Entry]:
    """The entries, those marked that options of `accelerate launch` override in the file of its ``--config_file``."""
    options: dict[str, list[set[Any]]] = {}
    for source, settings in sources.items():
        file = settings.get(_CONFIG_FILE)
        if file is not None and "accelerate" in str(settings.get(PROGRAM)).split():
            # A number of processes that is computed, such as that of Slurm, is none of its options.
            names = {name for name in settings if name.startswith(LAUNCHER)}
            own = {each.key for each in found if each.source == source and each.name in names}
            options.setdefault(_last(str(file)), []).append(own)
    return [replace(each, is_overridden=True) if (given := options.get(each.source))
            and all(each.key in keys for keys in given) else each for each in found]  # fmt: skip


def _is_world(entry: Entry) -> bool:
    return entry.setting is _WORLD


def world_size(found: Sequence[Entry]) -> Any:
    """The number of processes of a run, if one is written down; otherwise ``None``."""
    worlds = [entry for entry in found if _is_world(entry) and not entry.is_overridden]
    values = {str(entry.value): entry.value for entry in worlds if entry.name != ONE_PROCESS}
    return values.popitem()[1] if len(values) == 1 else None


SETTING_VARIABLES = frozenset(
    name for setting in TABLE for name in variables_of(setting)
    if setting.kind == COUNT or any(each[0] != "$" for each in setting.names.split())
)  # fmt: skip
"""The variables of the environment that mean what a launcher or a script can be told as well."""
_COUNT_VARIABLES = frozenset(name for setting in TABLE if setting.kind == COUNT for name in variables_of(setting))


def left_to_settings(
    variables: tuple[Mapping[str, str], Mapping[str, str]], sources: tuple[Sources, Sources]
) -> frozenset[str]:
    """Variables that are compared with options and files.

    These are numbers of processes, and what the other run sets by an option or a file and not by the variable.
    """
    found = set(_COUNT_VARIABLES)
    one, other = variables
    for mine, theirs, settings in ((one, other, sources[1]), (other, one, sources[0])):
        keys = {entry.key for entry in entries(settings)}
        for name in SETTING_VARIABLES & (mine.keys() - theirs.keys()):
            if any(entry.key in keys for entry in _entries(ENVIRONMENT, name, mine[name], "$")):
                found.add(name)
    return frozenset(found)


def _kind(entry: Entry) -> str:
    return entry.setting.kind if entry.setting is not None else ""


def _entries(source: str, name: str, value: Any, prefix: str = "") -> Iterator[Entry]:
    """The entries that a name and its value are; none for what is left to the program."""
    setting, asked = meaning(f"{prefix}{name}")
    plain = plain_value(value)
    if plain is None or (isinstance(plain, str) and plain.lower() in _AUTO):
        return
    if setting is None:
        yield Entry(source, name, plain, value, None)
    elif setting.kind == BETAS:
        values = plain if isinstance(plain, list) else []
        for number, each in enumerate(values[:2], 1):
            yield Entry(source, f"{name}[{number - 1}]", each, each, BY_TITLE[f"beta{number}"])
    elif setting.kind == STAGE:
        stage = plain if isinstance(plain, float) else _stage(plain)
        if stage is not None:
            yield Entry(source, name, stage, value, setting)
        elif plain is not True and plain is not False:
            yield Entry(source, name, _last(str(value)), value, None)
    elif setting.kind == DTYPE:
        yield from _dtype(source, name, plain, value, setting, asked)
    elif asked and isinstance(plain, (bool, float)):
        if plain:
            yield Entry(source, name, asked, value, setting)
    else:
        yield Entry(source, name, _canonical(plain, setting.kind), value, setting)


def _dtype(source: str, name: str, plain: Any, value: Any, setting: Setting, asked: str) -> Iterator[Entry]:
    """A dtype that a name asks for. A flag that is off asks for none."""
    if asked and isinstance(plain, (bool, float)):
        if plain:
            yield Entry(source, name, asked, asked, setting)
        return
    if plain is True:
        return
    found = "float32" if plain is False else plain
    if isinstance(found, float):
        found = {16.0: "float16", 32.0: "float32", 64.0: "float64"}.get(found, found)
    yield Entry(source, name, found, found, setting)


def _stage(text: Any) -> float | None:
    match = _STAGE.search(_last(str(text)))
    return float(match[1]) if match else None


def _canonical(plain: Any, kind: str) -> Any:
    if kind == FLAG:
        return plain if isinstance(plain, bool) else bool(plain) if isinstance(plain, float) else plain
    if kind == PATH and isinstance(plain, list):
        return [_last(str(each)) for each in plain]
    if kind == PATH:
        return _last(str(plain))
    if kind == NAME:
        text = re.sub(r"[-_\s]", "", str(plain).lower())
        return _SHARDING.get(text.removesuffix(".0"), text) if "shard" not in text else text
    return plain


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


# --- the number of processes


def _world(
    source: str, counts: Sequence[Entry], variables: Mapping[str, str], is_launch: bool, program: Any
) -> Entry | None:
    """The number of processes of one place: given as a whole, or of each node times nodes; a launch has one if not."""

    def best(title: str) -> Entry | None:
        order = BY_TITLE[title].names.split()
        found = [entry for entry in counts if entry.setting is BY_TITLE[title]]
        return min(found, key=lambda each: _position(order, each), default=None)

    total, each, nodes, devices = map(best, ("world size", "processes per node", "nodes", "devices of DeepSpeed"))
    if devices is not None:
        return Entry(source, devices.name, _devices(str(devices.shown)), devices.shown, _WORLD)
    # The environment of a job says less than its command, and a batch system less than the launcher inside.
    is_whole = total is not None and (each is None or plain_name(total.name).rpartition(".")[2] in _WHOLE)
    if each is not None and not is_whole:
        numbers = _number(each.value), 1.0 if nodes is None else _number(nodes.value)
        name = each.name if nodes is None or numbers[1] == 1.0 else f"{each.name} x {nodes.name}"
        if None in numbers:
            shown = f"{each.shown} x {1 if nodes is None else nodes.shown}"
            return Entry(source, name, shown, shown, _WORLD)
        product = (numbers[0] or 0.0) * (numbers[1] or 0.0)
        return Entry(source, name, product, int(product), _WORLD)
    if total is not None:
        return Entry(source, total.name, _number(total.value) or total.value, total.shown, _WORLD)
    if program == "deepspeed":
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        return None if visible is None else Entry(source, "CUDA_VISIBLE_DEVICES", _devices(visible), visible, _WORLD)
    if is_launch and program is None:
        number = 1.0 if nodes is None else _number(nodes.value) or 1.0
        return Entry(source, ONE_PROCESS if nodes is None else nodes.name, number, int(number), _WORLD)
    if nodes is not None and nodes.value != 1.0:
        return Entry(source, nodes.name, f"{nodes.shown} nodes", f"{nodes.shown} nodes", _WORLD)
    return None


_WHOLE = ("num_processes", "worker_num", "np")
"""Names of the world size that count also where processes per node are given."""


def _position(order: Sequence[str], entry: Entry) -> int:
    name = plain_name(entry.name).rpartition(".")[2]
    return next(
        (index for index, each in enumerate(order) if each.strip("$").lower().rpartition(".")[2] == name), len(order)
    )


def _number(value: Any) -> float | None:
    if isinstance(value, list):
        # Devices by number; a word behind a number is no value of the option.
        return float(len(value)) if all(isinstance(each, float) for each in value) else _number(value[0])
    if isinstance(value, str) and (match := re.match(r"(\d+):\1\Z", value)):
        return float(match[1])  # --nnodes 2:2
    return float(value) if isinstance(value, float) and not isinstance(value, bool) else None


def _devices(text: str) -> float:
    """The number of devices in ``localhost:0,1@other:0-3``, or ``0,1``."""
    count = 0
    for host in text.split("@"):
        for part in host.rpartition(":")[2].split(","):
            first, _, last = part.partition("-")
            count += int(last) - int(first) + 1 if first.isdecimal() and last.isdecimal() else bool(part.strip())
    return float(count)


# --- settings that follow from others


def derived(side: Sequence[Entry], other: Sequence[Entry]) -> list[Entry]:
    """The settings of batches that only the other run mentions, where they follow from those of this one.

    A global batch is a batch for each replica and accumulated step. Megatron is told two of these, Transformers others.
    """
    wanted = {entry.key for entry in other} - {entry.key for entry in side}
    numbers: dict[str, set[float]] = {}
    for entry in side:
        if entry.key[0] == () and not entry.is_overridden and isinstance(entry.value, float):
            numbers.setdefault(entry.key[1], set()).add(entry.value)

    def number(title: str, otherwise: float | None) -> float | None:
        values = numbers.get(title, {otherwise})
        return next(iter(values)) if len(values) == 1 else None

    replicas = number("world size", None)
    for which in ("tensor", "pipeline", "context"):
        size = number(f"{which} parallel size", 1.0)
        replicas = None if replicas is None or not size else replicas / size
    whole, micro, steps = number("global batch size", None), number("batch size", None), number("accumulation", None)
    found: dict[str, float] = {}
    if whole and micro and replicas:
        found["accumulation"] = whole / (micro * replicas)
    if whole and steps and replicas:
        found["batch size"] = whole / (steps * replicas)
    if micro and replicas:
        found["global batch size"] = micro * replicas * (steps or 1.0)
    return [Entry("", f"{title}, as it follows", value, value, BY_TITLE[title]) for title, value in found.items()
            if ((), title) in wanted and value == int(value)]  # fmt: skip


# --- one setting with two values


def conflicts(sources: Sources) -> list[str]:
    """A sentence for each setting that two places of one run have with different values."""
    found: dict[tuple[tuple[str, ...], str], list[Entry]] = {}
    for entry in entries(sources):
        if not entry.is_overridden:
            found.setdefault(entry.key, []).append(entry)
    sentences = []
    for alike in found.values():
        if any(each.has_no_effect or each.is_unknown for each in alike) or not _in_two_files(alike):
            continue
        firsts: list[Entry] = []
        for each in alike:
            if not any(are_equal(each.value, other.value) or not _is_one(each, other) for other in firsts):
                firsts.append(each)
        if len(firsts) > 1 and len({file_of(each) for each in firsts}) > 1:
            values = ", ".join(f"{each.shown} in {each.source} ({each.name})" for each in firsts)
            title = alike[0].setting.title if alike[0].setting else alike[0].name
            sentences.append(f"{title} has {len(firsts)} values: {values}; each of them is compared")
    return sentences


def file_of(entry: Entry) -> str:
    """The file that a setting is written in, without the number of the launch."""
    return entry.source.partition(" (")[0]


def _in_two_files(alike: Iterable[Entry]) -> bool:
    return len({file_of(each) for each in alike}) > 1


def _is_one(one: Entry, other: Entry) -> bool:
    """True if two names stand for one setting of the run, and not for two settings of one kind."""
    if one.setting is None or other.setting is None:
        # A name that is not known has to be the same, sections included, or stand without them.
        names = sorted((plain_name(one.name), plain_name(other.name)), key=len)
        return names[0] == names[1] or ("." not in names[0] and names[1].endswith(f".{names[0]}"))
    return one.setting is other.setting


def is_reference(entry: Entry) -> bool:
    """True if the value is the name of a settings file, and says no more than that."""
    if entry.setting is not None:
        return False
    name = plain_name(entry.name).rpartition(".")[2]
    return name in REFERENCES and str(entry.shown).lower().endswith((".yaml", ".yml", ".json", ".toml"))
