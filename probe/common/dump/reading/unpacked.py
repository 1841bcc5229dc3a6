"""The pack of a run, which ``msprobe pack`` writes, read like its folder: unpacked into a temporary one.

A pack is a zip file with `MANIFEST` as its first member, so that one which is cut short is recognised, and behind it
the files of the run under their names below its folder. Nothing else of it is unpacked.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil

from probe.common import archives, files, given_paths, log
from probe.common.archives import Limits
from probe.common.dump.layout import MADE_FILES, PROCESS_FILE, is_environment_file
from probe.common.errors import FileCheckException

MANIFEST = "msprobe_pack.json"
"""The member that tells what was packed."""
PACKED_FILES = (*MADE_FILES, PROCESS_FILE)
"""The files of a process that are packed; tensors, journals and logs are not."""
_LIMITS = Limits(members=1_000_000, member_bytes=8 << 30, total_bytes=32 << 30, what="pack of a run")
"""A step of 31,000 records has 30 MB, so that a thousand of them fit; a guess."""
_MOST_FOLDERS = 3
"""A mode of MindSpore, a step and a process."""
_FOLDER = re.compile(r"[\w.-]{1,200}\Z")
_ROOM_LEFT = 0.9
"""The share of the free bytes of the disk that a pack may take; a guess."""

_unpacked: dict[tuple[str, int, int], str] = {}
"""The folder of each pack that this process has unpacked, by path, time and size of the file."""


def located(path: str) -> str:
    """The path at which the content of a pack is, or of a folder in it; any other path as it is.

    Example:
        ``/tmp/msprobe_x1/run_a/step0`` for ``run_a.zip/step0``

    Raises:
        FileCheckException: as `unpacked` does.
    """
    pack, inside = _pack_and_inside(path)
    return os.path.join(unpacked(pack), inside).rstrip(os.sep) if pack else path


def refuse_pack(path: str, command: str) -> None:
    """Check that the content of `path` is not in a pack, for a command that needs what a pack does not have.

    Raises:
        FileCheckException: it is, or it is in a file that is no pack or is damaged.
    """
    pack, _ = _pack_and_inside(path)
    # What is wrong with the pack itself is said first, as every command says it.
    if pack and unpacked(pack):
        raise FileCheckException(
            f"{path} is in a pack, which has no values of tensors, and {command} needs them; give the folder instead."
        )


def _pack_and_inside(path: str) -> tuple[str, str]:
    """The zip file in which `path` is, and its path there; both empty where it is in none."""
    if os.path.isdir(path):
        return "", ""
    pack, inside = path, ""
    while not os.path.lexists(pack) and os.path.dirname(pack) not in ("", pack):
        inside = os.path.join(os.path.basename(pack), inside)
        pack = os.path.dirname(pack)
    is_zip = os.path.isfile(pack) and (pack.endswith(archives.SUFFIX) or archives.first_member(pack) is not None)
    return (pack, inside) if is_zip and os.pardir not in inside.split(os.sep) else ("", "")


def unpacked(path: str) -> str:
    """The folder with the content of a pack, which is removed when this process ends.

    Its name is that of the pack. A pack that is asked for again is not unpacked again.

    Raises:
        FileCheckException: the file is no pack of a run, is cut short or damaged, holds what no pack holds, or there is
            no room for it.
    """
    first = archives.first_member(path)
    if first != MANIFEST:
        raise FileCheckException(
            f"{path} is no pack of a run: it does not begin with {MANIFEST}. Give what msprobe pack wrote, or the "
            "folder of a run; a pack of config_check is compared by msprobe config_check."
        )
    found = os.stat(path)
    key = (os.path.abspath(path), found.st_mtime_ns, found.st_size)
    folder = _unpacked.get(key)
    if folder is None or not os.path.isdir(folder):
        folder = _unpacked[key] = _unpack(path)
    return folder


def _unpack(path: str) -> str:
    import tempfile  # Not needed where there is no pack, which is nearly always.

    above = tempfile.mkdtemp(prefix=given_paths.PREFIX)
    atexit.register(_remove, above, os.getpid())
    name = os.path.basename(path).removesuffix(archives.SUFFIX)
    folder = os.path.join(above, name if _FOLDER.match(name) else "run")
    ignored = []
    try:
        given_paths.remember(above, path)
        with archives.opened(path, _LIMITS) as (archive, infos):
            _check_room(path, above, sum(info.file_size for info in infos))
            for info in infos:
                if not _is_of_run(info.filename):
                    ignored += [info.filename] if info.filename != MANIFEST else []
                    continue
                target = os.path.join(folder, *info.filename.split("/"))
                files.make_folder(os.path.dirname(target))
                with files.open_for_writing(target) as stream:
                    archives.copy_out(path, archive, info, stream)
    except BaseException:
        _remove(above, os.getpid())
        raise
    if ignored:
        more = f" and {len(ignored) - 1} more" if ignored[1:] else ""
        log.warning(f"{path}: {ignored[0]!r}{more} ignored: no file of a run.")
    files.make_folder(folder)
    return folder


def _check_room(path: str, folder: str, size: int) -> None:
    room = int(shutil.disk_usage(folder).free * _ROOM_LEFT)
    if size > room:
        raise FileCheckException(
            f"{path} takes {size >> 20} MiB unpacked, and {os.path.dirname(folder)} has room for {room >> 20}; set "
            "TMPDIR to a folder on a larger disk."
        )


def _is_of_run(member: str) -> bool:
    *folders, name = member.split("/")
    if is_environment_file(name):
        return not folders
    return name in PACKED_FILES and len(folders) <= _MOST_FOLDERS and all(map(_is_folder, folders))


def _is_folder(name: str) -> bool:
    return _FOLDER.match(name) is not None and name.strip(".") != ""


def _remove(folder: str, pid: int) -> None:
    # A process that was forked has it from its parent.
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
