"""Start-up logs of verl and slime: the configuration that they print, compared, or held to a list of keys.

The printed dictionary is read with `ast.literal_eval` only: nothing in a log is executed.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from probe.common import files
from probe.common.environment.gathered import clean_settings
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.report.csv_lines import csv_line
from probe.configcheck.settings_files import flat, read_settings
from probe.configcheck.tables import are_equal

RECOMMENDED: dict[str, Any] = {
    "data/seed": None,
    "data/shuffle": False,
    "data/train_batch_size": None,
    "data/max_prompt_length": None,
    "data/max_response_length": None,
    "actor_rollout_ref/actor/use_dynamic_bsz": False,
    "actor_rollout_ref/actor/shuffle": False,
    "actor_rollout_ref/actor/ppo_mini_batch_size": None,
    "actor_rollout_ref/actor/ppo_micro_batch_size_per_gpu": None,
    "actor_rollout_ref/actor/optim/lr": None,
    "actor_rollout_ref/actor/clip_ratio": None,
    "actor_rollout_ref/actor/entropy_coeff": None,
    "actor_rollout_ref/actor/use_kl_loss": None,
    "actor_rollout_ref/model/use_remove_padding": None,
    "actor_rollout_ref/rollout/temperature": None,
    "actor_rollout_ref/rollout/top_p": None,
    "actor_rollout_ref/rollout/top_k": None,
    "actor_rollout_ref/rollout/n": None,
    "actor_rollout_ref/rollout/seed": None,
    "actor_rollout_ref/rollout/enforce_eager": True,
    "algorithm/adv_estimator": None,
}


# --- logs


VERL, SLIME = "verl", "slime"
_LARGEST = 256 << 20
"""Bytes of a log that are read from its beginning, where the settings stand; a guess."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^\s*(?:\([\w.:\- =]*pid=\d+[^)]*\)\s*"  # of Ray
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]+\]?\s*|\[[\w ./:-]*\]\s*|(?:INFO|DEBUG|WARNING)\b[: ]*)*"
)
_SLIME_LINE = re.compile(r"^\s*([A-Za-z_]\w*)\s*\.{2,}\s*(.*?)\s*$")
_VERL_KEY = "actor_rollout_ref"
_LONGEST_DICTIONARY = 4 << 20
"""Characters of a configuration that is printed."""


def read_log(path: str, kind: str) -> dict[str, Any]:
    """The configuration that a log prints, with ``/`` between the names, without what may be secret.

    Raises:
        FileCheckException: the log cannot be read.
        MsprobeException: it has no configuration, or the configuration is cut off.
    """
    try:
        with files.open_for_reading(path) as stream:
            lines = stream.read(_LARGEST).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise FileCheckException(f"{path} cannot be read: {error.strerror}.") from None
    found = _verl(path, lines) if kind == VERL else _slime(path, lines)
    return clean_settings({name.replace(".", "/"): value for name, value in flat(found).items()})[0]


def _bare(line: str) -> str:
    return _PREFIX.sub("", _COLOURS.sub("", line), count=1)


def _verl(path: str, lines: Sequence[str]) -> Mapping[Any, Any]:
    start = next((number for number, line in enumerate(lines) if f"'{_VERL_KEY}'" in line), None)
    if start is None:
        raise MsprobeException(f"{path} has no configuration of verl: no line has {_VERL_KEY!r} in quotes.")
    text = _bare(lines[start])
    if "{" not in text.partition(f"'{_VERL_KEY}'")[0]:
        # The dictionary begins in an earlier line.
        text = "{" + text
    return _dictionary(path, start, text[text.index("{") :], lines)


def _dictionary(path: str, start: int, text: str, lines: Sequence[str]) -> Mapping[Any, Any]:
    """The dictionary that begins with `text` in line `start`, as far as its braces reach."""
    number = start
    while not _is_closed(text):
        number += 1
        if number == len(lines) or len(text) > _LONGEST_DICTIONARY:
            raise MsprobeException(
                f"{path}: the configuration that begins in line {start + 1} does not end; the log is cut off at line "
                f"{len(lines)}."
            )
        text += "\n" + _bare(lines[number])
    try:
        found = ast.literal_eval(text[: _end(text)])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise MsprobeException(
            f"{path}: the configuration in lines {start + 1} to {number + 1} is no dictionary of plain values: {error}."
        ) from None
    if not isinstance(found, dict):
        raise MsprobeException(f"{path}: line {start + 1} holds no dictionary.")
    return found


def _end(text: str) -> int:
    """The position behind the brace that closes the first one; 0 if it is not there."""
    depth, quote, escaped = 0, "", False
    for index, each in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = each == "\\"
            quote = "" if each == quote else quote
        elif each in "'\"":
            quote = each
        elif each == "{":
            depth += 1
        elif each == "}":
            depth -= 1
            if not depth:
                return index + 1
    return 0


def _is_closed(text: str) -> bool:
    return _end(text) > 0


def _slime(path: str, lines: Sequence[str]) -> Mapping[str, Any]:
    """The arguments that slime prints as Megatron does, ``name ..... value``, or as one dictionary or namespace."""
    found: dict[str, Any] = {}
    for number, line in enumerate(lines):
        bare = _bare(line)
        if match := _SLIME_LINE.match(bare):
            found[match[1]] = match[2]
        elif not found and bare.startswith("Namespace(") and bare.rstrip().endswith(")"):
            found.update(_namespace(path, number, bare.strip()))
        elif not found and bare.startswith("{") and "'hf_checkpoint'" in bare:
            return _dictionary(path, number, bare, lines)
    if not found:
        raise MsprobeException(f"{path} has no configuration of slime: no line has the form 'name ..... value'.")
    return found


def _namespace(path: str, number: int, text: str) -> dict[str, Any]:
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MsprobeException(f"{path}: line {number + 1}: the namespace cannot be read: {error}.") from None
    found: dict[str, Any] = {}
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        if keyword.arg is not None:
            try:
                found[keyword.arg] = ast.literal_eval(keyword.value)
            except ValueError:
                found[keyword.arg] = ast.unparse(keyword.value)
    return found


# --- comparing and verifying

COMPARED = ("parameter", "npu_value", "bench_value", "equal")
VERIFIED = ("parameter", "value", "recommended", "equal")


def compared(npu: Mapping[str, Any], bench: Mapping[str, Any]) -> list[tuple[str, Any, Any, bool]]:
    """A row for each parameter of either log."""
    names = dict.fromkeys((*npu, *bench))
    return [
        (name, npu.get(name), bench.get(name), name in npu and name in bench and are_equal(npu[name], bench[name]))
        for name in names
    ]


def verified(target: Mapping[str, Any], bench: Mapping[str, Any] | None) -> list[tuple[str, Any, Any, bool]]:
    """A row for each recommended key; `bench` has recommended values of the user's own, by the same names."""
    wanted: Mapping[str, Any] = RECOMMENDED if bench is None else bench
    return [
        (name, target.get(name), value, value is None or (name in target and are_equal(target[name], value)))
        for name, value in wanted.items()
    ]


def recommended_of(path: str) -> dict[str, Any]:
    """Recommended values of a YAML file, with ``/`` between the names.

    Raises:
        MsprobeException: it cannot be read.
    """
    settings = {name: value for each in read_settings(path).sources.values() for name, value in each.items()}
    return {name.replace(".", "/"): value for name, value in clean_settings(settings)[0].items()}


def write_logs(
    folder: str, configs: Mapping[str, Any], table: str, head: Sequence[str], rows: Sequence[Sequence[Any]]
) -> list[str]:
    """Write each configuration as JSON, and the table; returns the paths."""
    paths = []
    for name, content in configs.items():
        paths.append(os.path.join(folder, name))
        with files.replacing(paths[-1]) as stream:
            stream.write(json.dumps(content, indent=4, default=str).encode())
    paths.append(os.path.join(folder, table))
    with files.replacing(paths[-1]) as stream:
        stream.write(b"\xef\xbb\xbf" + csv_line(list(head)))
        for row in rows:
            stream.write(csv_line([each if each is None or isinstance(each, str) else str(each) for each in row]))
    return paths
