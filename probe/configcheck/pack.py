"""Packs: the zip files that ``config_check -d`` and `ConfigChecker` write, and that are compared.

Names and layout are those of msProbe, whose packs are read as well; ``manifest.json``, ``environment.json``,
``settings/``, ``checksums/``, ``random_calls/`` and ``random_states/`` are ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from probe._version import __version__
from probe.common import archives, files, log
from probe.common.archives import Limits
from probe.common.containers import MOST_LEVELS, is_too_deep
from probe.common.dump.stack_text import parse_frame
from probe.common.environment.gathered import clean_line, clean_settings, clean_variables, is_secret_value
from probe.common.errors import FileCheckException, MsprobeException

MANIFEST, ENVIRONMENT, ENV, PIP = "manifest.json", "environment.json", "env", "pip"
STATIC = "hyperparameters/hyperparameters_static.json"
DYNAMIC = "hyperparameters/hyperparameters_dynamic.json"
SCHEMA = 1
"""The version of the manifest: a part of the format."""
DEFAULT_PACK = "./config_check_pack.zip"

_LIMITS = Limits(members=1_000_000, member_bytes=256 << 20, total_bytes=1 << 30)
"""Guesses: a member takes ten microseconds to look at, and packs of trainings have some thousands; the weights of
100 000 parameters have 20 MB."""
_STEP_AND_RANK = re.compile(
    r"(dataset|weights|checksums)/step(\d{1,18})/rank(\d{1,18})/(dataset|weight|weights)\.json\Z"
)
_RANDOM = re.compile(r"(random|random_calls)/rank(\d{1,18})\.json\Z")
_STATES = re.compile(r"(random_states)/step(\d{1,18})/rank(\d{1,18})\.json\Z")
_HYPER = re.compile(r"hyperparameters/([\w.-]+\.json)\Z")
_PACKAGE = re.compile(r"[\w.-]+\Z")
_SETTINGS = re.compile(r"settings/(.+)\.json\Z")

StepAndRank = tuple[int, int]


@dataclass
class Pack:
    """The content of a pack, or of the environment files of a dump; a part that is missing is ``None`` or empty."""

    path: str
    env: Optional[dict[str, str]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    pip: Optional[dict[str, str]] = None  # noqa: UP045
    hyperparameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the names of files, as ``hyperparameters_static.json``."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The settings, file by file of the user's."""
    dataset: dict[StepAndRank, dict[str, Any]] = field(default_factory=dict)
    weights: dict[StepAndRank, dict[str, Any]] = field(default_factory=dict)
    checksums: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    """By ``dataset`` or ``weights``, step and rank: dtype, shape, checksum and first values of each tensor."""
    random: dict[int, dict[str, Any]] = field(default_factory=dict)
    random_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    random_states: dict[StepAndRank, dict[str, Any]] = field(default_factory=dict)
    """Checksums of the states of the generators before each collected step."""
    environment: Optional[dict[str, Any]] = None  # noqa: UP045
    manifest: Optional[dict[str, Any]] = None  # noqa: UP045
    further: dict[str, Pack] = field(default_factory=dict)
    """The environments of a dump's processes after the first one, by their names."""
    left_out: int = 0
    """Settings that may be secrets, and were left out while the pack was read."""

    @property
    def withheld(self) -> int:
        """The number of values that were withheld when the pack was made."""
        found = (self.manifest or {}).get("withheld", 0)
        return (found if isinstance(found, int) else 0) + self.left_out


# --- writing


def encoded(content: Any) -> bytes:
    """A member with JSON."""
    return json.dumps(content, indent=4, default=str).encode()


def write_pack(path: str, members: Mapping[str, bytes], collected: Iterable[str], withheld: int) -> None:
    """Write a pack; a process that is killed meanwhile leaves no half of it.

    Args:
        path: The zip file, which is replaced.
        members: Content by name.
        collected: The names of what was collected, for the manifest.
        withheld: The number of values that were withheld.

    Raises:
        FileCheckException: it cannot be written.
    """
    manifest = {
        "schema": SCHEMA,
        "tool": f"msprobe {__version__}",
        "collected": list(collected),
        "withheld": withheld,
        "members": sorted(members),
    }
    archives.write(path, {MANIFEST: encoded(manifest), **members}.items())


def merge_pack(
    path: str, members: Mapping[str, bytes], collected: Iterable[str], withheld: int, rank: int | None, is_first: bool
) -> None:
    """Write the members of one rank into the pack that all ranks share.

    Args:
        path: The zip file.
        members: Content by name, all that this process has.
        collected: As for `write_pack`.
        withheld: The same.
        rank: The rank of this process; ``None`` without ranks, or as long as it is not known.
        is_first: True if this process has not written the pack yet: one of an earlier run is replaced then.

    Raises:
        FileCheckException: it cannot be written.
    """
    files.make_folder(os.path.dirname(os.path.abspath(path)))
    with _locked(f"{path}.lock"):
        others: dict[str, bytes] = {}
        names = list(collected)
        if os.path.exists(path) and not (is_first and time.time() - os.path.getmtime(path) > _SAME_RUN_S):
            try:
                others = read_members(path)
            except FileCheckException as error:
                log.warning(f"the pack is written anew: {error}")
            before = _listed(others.pop(MANIFEST, b""))
            names = list(dict.fromkeys((*before, *names)))
        kept = {name: content for name, content in others.items() if _is_of_other_rank(name, rank)}
        write_pack(path, {**kept, **members}, names if kept else collected, withheld)


_SAME_RUN_S = 60.0
"""Ranks of one run write their first pack within so many seconds; an older pack is of an earlier run. A guess."""
_LOCK_TRIES, _LOCK_WAIT_S = 200, 0.05


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Keep other ranks from writing meanwhile; where it takes too long the pack is written all the same."""
    for last in range(_LOCK_TRIES - 1, -1, -1):
        try:
            stream = files.open_for_writing(path, append=True)
        except OSError as error:
            raise FileCheckException(f"{path} cannot be written: {error.strerror}.") from None
        with stream:
            is_locked = files.lock(stream) and _is_same_file(stream.fileno(), path)
            if is_locked or not last:
                yield
                if is_locked:
                    # While it is locked: whoever waits for it sees that the file is gone, and takes the next one.
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                return
        time.sleep(_LOCK_WAIT_S)


def _is_same_file(descriptor: int, path: str) -> bool:
    """False if the file was removed, or another one has its name by now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _listed(manifest: bytes) -> list[str]:
    try:
        return list(json.loads(manifest).get("collected", ()))
    except (ValueError, AttributeError, TypeError):
        return []


def _is_of_other_rank(name: str, rank: int | None) -> bool:
    match = _STEP_AND_RANK.match(name) or _STATES.match(name) or _RANDOM.match(name)
    if match is None or rank is None:
        return match is not None and rank is None
    return int(match[2] if match.re is _RANDOM else match[3]) != rank


# --- reading


def read_members(path: str, ignored: list[str] | None = None) -> dict[str, bytes]:
    """The members of a pack, each within bounds that are checked before it is read.

    Args:
        path: The pack.
        ignored: Filled with the names of members that no pack has, which are not read then.

    Raises:
        FileCheckException: the file cannot be read, or a member is not what a pack may hold.
    """
    if not os.path.exists(path):
        raise FileCheckException(f"{path} does not exist; give a pack that config_check -d has written.")
    with archives.opened(path, _LIMITS) as (archive, infos):
        if ignored is not None:
            ignored += (info.filename for info in infos if not _is_known(info.filename))
        unread = set(ignored or ())
        wanted = (info for info in infos if info.filename not in unread)
        return {info.filename: b"".join(archives.parts(path, archive, info)) for info in wanted}


def read_pack(path: str) -> Pack:
    """The content of a pack; members that the manifest does not list are ignored with a line.

    Raises:
        FileCheckException: it is no pack, or a member may not be read.
        MsprobeException: a member is damaged.
    """
    ignored: list[str] = []
    members = read_members(path, ignored)
    found = Pack(path)
    if MANIFEST in members:
        found.manifest = _object(path, MANIFEST, members.pop(MANIFEST))
        if found.manifest.get("schema") != SCHEMA:
            raise MsprobeException(
                f'{path}: "schema" of {MANIFEST} is {found.manifest.get("schema")!r}; allowed: {SCHEMA}. '
                "The pack was written by another release of msprobe."
            )
        listed = found.manifest.get("members")
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise MsprobeException(f'{path}: "members" of {MANIFEST} is {listed!r:.60}; allowed: a list of names.')
        unlisted = sorted(set(members).difference(listed))
        _warn_of_ignored(path, unlisted, f"not in {MANIFEST}")
        for name in unlisted:
            del members[name]
    _warn_of_ignored(path, ignored, "no member of a pack")
    for name, content in members.items():
        _take(found, path, name, content)
    if found.env is None and found.pip is None and not found.hyperparameters and not found.weights:
        raise FileCheckException(f"{path} is not a pack: it has none of {ENV}, {PIP}, hyperparameters and weights.")
    return found


def _warn_of_ignored(path: str, names: list[str], why: str) -> None:
    if names:
        verb = "is" if len(names) == 1 else "are"
        others = f" and {len(names) - 1} others" if len(names) > 1 else ""
        log.warning(f"{path}: {names[0]!r}{others} {verb} {why} and {verb} ignored.")


def _matched(name: str) -> re.Match[str] | None:
    kinds = (_STEP_AND_RANK, _STATES, _RANDOM, _HYPER, _SETTINGS)
    return next((found for pattern in kinds if (found := pattern.match(name))), None)


def _is_known(name: str) -> bool:
    return name in (MANIFEST, PIP, ENV, ENVIRONMENT) or _matched(name) is not None


def _take(pack: Pack, path: str, name: str, content: bytes) -> None:
    if name == PIP:
        pack.pip = dict(_lines(content))
        return
    match = _matched(name)
    value = _object(path, name, content)
    if name == ENV:
        pack.env = {str(key): str(each) for key, each in value.items()}
    elif name == ENVIRONMENT:
        pack.environment = value
    elif match is not None and match.re is _STEP_AND_RANK:
        step, rank = int(match[2]), int(match[3])
        if match[1] == "checksums":
            pack.checksums["dataset" if match[4] == "dataset" else "weights", step, rank] = value
        else:
            (pack.dataset if match[1] == "dataset" else pack.weights)[step, rank] = value
    elif match is not None and match.re is _STATES:
        pack.random_states[int(match[2]), int(match[3])] = value
    elif match is not None and match.re is _RANDOM:
        (pack.random if match[1] == "random" else pack.random_calls)[int(match[2])] = _clean_calls(value)
    elif match is not None:
        # A pack of msProbe is not filtered, and what is read here goes into reports.
        kept, withheld = clean_settings(value)
        pack.left_out += withheld
        (pack.hyperparameters if match.re is _HYPER else pack.settings)[match[1]] = kept


def is_member(name: str) -> bool:
    """True if a member of a pack as msProbe writes them may have this name."""
    return name in (ENV, PIP) or any(each.match(name) for each in (_STEP_AND_RANK, _RANDOM, _HYPER))


def plain_members(pack: Pack) -> dict[str, bytes]:
    """The members that msProbe knows, from the content of a pack, without what may be secret."""
    found: dict[str, bytes] = {}
    if pack.env is not None:
        found[ENV] = encoded(clean_variables(pack.env)[0])
    if pack.pip is not None:
        found[PIP] = "\n".join(f"{name}={version}" for name, version in pack.pip.items()).encode()
    found.update((f"hyperparameters/{name}", encoded(each)) for name, each in pack.hyperparameters.items())
    for kind, name, content in (("dataset", "dataset", pack.dataset), ("weights", "weight", pack.weights)):
        found.update(
            (f"{kind}/step{step}/rank{rank}/{name}.json", encoded(each)) for (step, rank), each in content.items()
        )
    found.update((f"random/rank{rank}.json", encoded(each)) for rank, each in pack.random.items())
    return found


def _clean_calls(calls: dict[str, Any]) -> dict[str, Any]:
    """Places that draw random numbers, without folders, and without secrets in lines of code."""
    found: dict[str, Any] = {}
    for name, places in calls.items():
        known = [each for each in places if isinstance(each, dict)] if isinstance(places, list) else []
        found[name] = [
            {**each, "stack": [clean_frame(str(line)) for line in each.get("stack") or ()]} for each in known
        ]
    return found


def clean_frame(text: str) -> str:
    """A line of a stack, ``File /job/train.py, line 3, in main, code``, without the folder and without secrets."""
    found = parse_frame(text)
    if found is None or not found.line:
        return clean_line(text)
    return f"File {found.file}, line {found.line}, in {found.function}, {clean_line(found.source)}"


def _object(path: str, name: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MsprobeException(f"{path}: member {name!r} is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise MsprobeException(f"{path}: member {name!r} is a {type(found).__name__}; it has to be an object.")
    if is_too_deep(found):
        raise MsprobeException(f"{path}: member {name!r} is nested too deeply; allowed: {MOST_LEVELS} levels.")
    return found


def _lines(content: bytes) -> Iterator[tuple[str, str]]:
    for line in content.decode("utf-8", "replace").splitlines():
        name, equals, version = line.partition("=")
        name, version = name.strip(), version.lstrip("=").strip()
        if equals and _PACKAGE.match(name) and not is_secret_value(version):
            yield name, version
