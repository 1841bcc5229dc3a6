"""The names in a dump, spelled and parsed; levels that two dumps share; the known names nearest to an unknown one.

    API        <Prefix>.<api>.<n>.forward | backward
    module     <Root>.<path>.<Class>.forward.<n> | backward.<n>
    gradient   <Root>.<path>.<Class>.parameters_grad.<n>
    debug      <name>.<n>.debug  and  <name>_grad.<n>.debug

`Root` is ``Module`` (torch-shaped frameworks) or ``Cell`` (MindSpore). The path is that of the module in its model. A
model that is one layer has a record itself; its path is empty: ``<Root>.<Class>.forward.<n>``. If there are several
models, the path begins with the prefix of the model.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
from collections.abc import Collection, Iterable
from itertools import islice
from sys import intern
from typing import NamedTuple, Optional

FORWARD = "forward"
BACKWARD = "backward"
PARAMETERS_GRAD = "parameters_grad"
MODULE_ROOTS = ("Module", "Cell")
CLIP_GRAD = "clip_grad"
OPTIMIZER = "optimizer"
OUTSIDE_MODULES = frozenset((CLIP_GRAD, OPTIMIZER))
"""Places in the module tree that calls can be inside of, without being calls themselves."""

_API = re.compile(r"^(?P<prefix>[^.\s]+)\.(?P<api>[^\s]+)\.(?P<number>[0-9]{1,18})\.(?P<direction>forward|backward)\Z")
_MODULE = re.compile(
    rf"^(?P<root>{'|'.join(MODULE_ROOTS)})\.(?P<path>[^\s]+)"
    r"\.(?P<direction>forward|backward|parameters_grad)\.(?P<number>[0-9]{1,18})\Z"
)
_IN_MODULES = tuple(f"{root}." for root in MODULE_ROOTS)
# In older files a record's gradients have no number.
_GRADIENTS = re.compile(r"parameters_grad(\.[0-9]+)?\Z")
_DEBUG = ".debug"
_FORWARD, _BACKWARD = f".{FORWARD}", f".{BACKWARD}"
_MODEL, _PART = "model", "part"
_LONGEST_FILE_NAME = 255
"""Bytes of a name, the limit of most file systems."""


class ParsedName(NamedTuple):
    """A record name taken apart: `base` is everything that does not depend on the call."""

    base: str
    number: int
    direction: str
    is_module: bool


def api_name(base: str, number: int, direction: str) -> str:
    """`base` is ``Prefix.api``."""
    return f"{base}.{number}.{direction}"


def module_name(base: str, number: int, direction: str) -> str:
    """`base` is ``Root.path.Class``; `direction` may also be ``parameters_grad``."""
    return f"{base}.{direction}.{number}"


def module_base(root: str, path: str, class_name: str) -> str:
    """The part of a module's name that all its records share; `path` is empty for a model that is one layer."""
    return f"{root}.{path}.{class_name}" if path else f"{root}.{class_name}"


def unused_module_base(root: str, path: str, class_name: str, used: Collection[str]) -> str:
    """`module_base`; if `used` has it already, ``~2`` follows the path, or the next number that is free."""
    base = module_base(root, path, class_name)
    for number in itertools.count(2):
        if base not in used:
            break
        base = module_base(root, f"{path}~{number}", class_name)
    return base


def model_prefix(number: int) -> str:
    """The prefix of the `number`-th model of a program, counted from 1; the first model has none.

    No module of the first model has such a path: ``model~2`` is neither an identifier nor an index.
    """
    return f"{_MODEL}~{number}" if number > 1 else ""


def part_prefix(number: int) -> str:
    """The prefix of the `number`-th part that is called when the model that it was a part of is gone."""
    return f"{_PART}~{number}"


def debug_name(name: str, number: int) -> str:
    """The name of the `number`-th value that was saved as `name`."""
    return f"{name}.{number}{_DEBUG}"


def parse(name: str) -> ParsedName | None:
    """Take a module's or API's record name apart; ``None`` when it is neither."""
    if is_module(name):
        match = _MODULE.match(name)
        if match is None:
            return None
        root, path, direction, number = match.groups()
        return ParsedName(intern(f"{root}.{path}"), int(number), intern(direction), True)
    match = _API.match(name)
    if match is None:
        return None
    prefix, api, number, direction = match.groups()
    return ParsedName(intern(f"{prefix}.{api}"), int(number), intern(direction), False)


def record_name(parsed: ParsedName) -> str:
    """The name that `parse` takes apart into `parsed`."""
    spell = module_name if parsed.is_module else api_name
    return spell(parsed.base, parsed.number, parsed.direction)


def is_forward(name: str) -> bool:
    """True if it is the record of a forward; ``post_feedforward_layernorm`` has the word in its backward, too."""
    return name.endswith(_FORWARD) or name.rpartition(".")[0].endswith(_FORWARD)


def is_backward(name: str) -> bool:
    """True if it is the record of a backward; that of gradients of parameters is none."""
    return name.endswith(_BACKWARD) or name.rpartition(".")[0].endswith(_BACKWARD)


def function_name(name: str) -> str:
    """``relu`` of ``Functional.relu.0.forward``; empty of what is no call of an API."""
    parsed = parse(name)
    return "" if parsed is None or parsed.is_module else parsed.base.rpartition(".")[2]


def unused(name: str, used: Collection[str]) -> str:
    """`name`, or where it is in `used` ``name~<n>``, the `n`-th of them."""
    found = name
    for number in itertools.count(len(used) + 1):
        if found not in used:
            break
        found = f"{name}~{number}"
    return found


def is_module(name: str) -> bool:
    """True if a record name is that of a module."""
    return name.startswith(_IN_MODULES)


def is_gradients(name: str) -> bool:
    """True if a record, or a field of one, has this name because it holds gradients of parameters."""
    return PARAMETERS_GRAD in name and _GRADIENTS.search(name) is not None


def is_debug(name: str) -> bool:
    """True if a record of this name is a value that was saved by hand."""
    return name.endswith(_DEBUG)


def file_name(stem: str, suffix: str, folded: bool = False) -> str:
    """A file name for `stem` that stays inside its folder whatever a user's model is called.

    Separators, NUL and control characters become ``%XX``, as does ``%`` itself, so that two stems never share a
    file. What would exceed the usual limit of 255 bytes is cut, and ends in ``%~`` and a digest of the whole.

    Args:
        stem: the text.
        suffix: what the name ends in, such as ``.pt``.
        folded: the file system takes names that differ in case, or in how accents are spelt, for one; everything but
            small letters, digits, ``.``, ``_`` and ``-`` is ``%XX`` then.
    """
    if folded:
        safe = "".join(character if _FOLDED.match(character) else _escaped(character) for character in stem)
    else:
        safe = stem if _SAFE.match(stem) else "".join(map(_safe, stem))
    # Alone these would be the folder itself and the one above it.
    if not suffix and safe in (".", ".."):
        safe = safe.replace(".", "%2E")
    name = safe + suffix
    return name if len(name.encode()) <= _LONGEST_FILE_NAME else _cut(stem, safe, suffix)


def _cut(stem: str, safe: str, suffix: str) -> str:
    # No escape begins with %~, so that no shorter stem has such a name.
    end = f"%~{hashlib.blake2b(stem.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}{suffix}"
    begin = safe.encode()[: _LONGEST_FILE_NAME - len(end.encode())].decode(errors="ignore")
    return begin + end


_SAFE = re.compile(r"^[A-Za-z0-9_.\-]+\Z")
_FOLDED = re.compile(r"[a-z0-9_.\-]")


def _safe(character: str) -> str:
    if character.isprintable() and character not in "/\\%":
        return character
    return _escaped(character)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


# --- levels


Levels = tuple[Optional[str], Optional[str]]
"""The levels of target and golden side; ``None`` in files that do not say."""


def differ(levels: Levels) -> bool:
    """True if one side records what the other does not."""
    return None not in levels and levels[0] != levels[1]


def both_record(record: str, levels: Levels) -> bool:
    """True if a record of this name can be there on both sides."""
    if not differ(levels):
        return True
    return "L1" not in levels if is_module(record) else "L0" not in levels


def in_words(levels: Levels) -> str:
    """The difference in a sentence; empty where there is none."""
    if not differ(levels):
        return ""
    both = {"L0", "L1"} <= set(levels)
    what = "nothing is" if both else "only modules are" if "L0" in levels else "only functions are"
    return f'the target has level "{levels[0]}" and the golden run "{levels[1]}": {what} in both'


MOST = 3
"""The largest number of names."""
_MOST_COMPARED = 5000
"""Names among which the nearest are looked for, which takes 0.1 s."""
_LONGEST_COMPARED = 200
"""Characters that are compared; a guess."""
_NEAR = 0.6
"""The least similarity; the default of difflib."""


def nearest(wanted: str, names: Iterable[str]) -> list[str]:
    """The names most like `wanted`, the nearest first; none where none is like it.

    Args:
        wanted: a name that a user gave.
        names: the names that there are; of very many the first thousands are looked at.

    Example:
        >>> nearest("Torch.rellu", ["Torch.softmax", "Torch.relu"])
        ['Torch.relu']
    """
    return difflib.get_close_matches(wanted[:_LONGEST_COMPARED], islice(names, _MOST_COMPARED), MOST, _NEAR)


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """``; did you mean "compare"?``, with the most similar name; empty if no name is similar."""
    near = nearest(wanted, names)
    return f'; did you mean "{near[0]}"?' if near else ""
