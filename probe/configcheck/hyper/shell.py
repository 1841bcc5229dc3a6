"""Arguments of a training in a start script of a shell, read without running it.

Assignments are followed in the order of the lines, as if each branch of an ``if`` were taken. A command substitution is
not run: the text stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any

_ASSIGNMENT = re.compile(
    r"(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?)=(.*)\Z", re.DOTALL
)
_EXPORT = re.compile(r"(?:export|declare\s+-\w*x\w*)\s+(?!-)(.+)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:?[-=])((?:[^{}]|\{[^{}]*\})*))?(?:\[[@*]\])?\}|(\w+))")
_LAUNCHERS = frozenset(
    ("torchrun", "deepspeed", "msrun", "accelerate", "bash", "sh", "nohup", "exec", "time", "srun", "mpirun")
)
_PYTHON = re.compile(r"python[\d.]*\Z")
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=(.*)\Z", re.DOTALL)
_NUMBER = re.compile(r"-\.?\d")
_ENDS = frozenset((";", "&&", "||", "|", "&", ">", ">>", "2>", "2>&1", "<", "&>", "|&"))
LAUNCHER = "launcher."
"""The beginning of the names of arguments that belong to the launcher and not to the training."""
_MOST_SUBSTITUTIONS = 50


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of the trainings that a script starts, by name without dashes; a flag is true.

    Example:
        >>> arguments_of('LR=1e-4\\ntorchrun --nproc_per_node 8 train.py --lr $LR --bf16')
        {'launcher.nproc_per_node': '8', 'lr': '1e-4', 'bf16': True}
    """
    return _arguments(_logical_lines(text), {}, {})


def environment_of(text: str) -> dict[str, str]:
    """The environment variables that a script exports, or puts before the command of a training.

    A variable whose value only a running script knows, such as the output of a command, is left out.

    Example:
        >>> environment_of('OMP_NUM_THREADS=4\\nexport OMP_NUM_THREADS NCCL_ALGO=Ring\\nMS_X=1 python train.py --lr 1')
        {'OMP_NUM_THREADS': '4', 'NCCL_ALGO': 'Ring', 'MS_X': '1'}
    """
    exported: dict[str, str] = {}
    _arguments(_logical_lines(text), {}, exported)
    return {name: value for name, value in exported.items() if "$" not in value and "`" not in value}


def uncertain_arguments(text: str) -> list[str]:
    """The names of arguments that depend on an ``if`` or a ``case``, of which `arguments_of` follows every branch.

    Example:
        >>> uncertain_arguments('LR=1\nif [ $# -gt 0 ]; then LR=2; fi\npython train.py --lr $LR --bs 4')
        ['lr']
    """
    lines = list(_logical_lines(text))
    # A variable that only a branch assigns is empty where none is taken.
    assigned = (match[1] for line in lines if (match := _ASSIGNMENT.match(line)))
    every = _arguments(lines, {}, {})
    certain = _arguments(_outside_of_branches(lines), dict.fromkeys(assigned, ""), {})
    return [name for name, value in every.items() if certain.get(name) != value]


def _outside_of_branches(lines: Iterable[str]) -> Iterator[str]:
    depth = 0
    for line in lines:
        word = (line.split(None, 1) or [""])[0]
        if word in ("if", "case"):
            depth += 1
        elif word in ("fi", "esac"):
            depth = max(depth - 1, 0)
        elif not depth:
            yield line


def _arguments(lines: Iterable[str], variables: dict[str, str], exported: dict[str, str]) -> dict[str, Any]:
    """The arguments of trainings; `variables` and `exported` get the variables of the shell and of the environment."""
    found: dict[str, Any] = {}
    for line in chain.from_iterable(map(_each_export, lines)):
        export = _EXPORT.match(line)
        if export and export[1].isidentifier():
            exported[export[1]] = variables.get(export[1], f"${export[1]}")
            continue
        match = _ASSIGNMENT.match(line)
        if match and (match[3][:1] == "(" or len(_words(match[3])) <= 1):
            # A variable that adds to itself is empty before its first assignment.
            value = _expanded(match[3], {match[1]: "", **variables})
            value = " ".join(_words(value.strip()[1:-1])) if value.startswith("(") else "".join(_words(value)[:1])
            variables[match[1]] = (
                f"{variables.get(match[1], '')}{' ' if match[3][:1] == '(' else ''}{value}" if match[2] else value
            )
            if export or match[1] in exported:
                exported[match[1]] = variables[match[1]]
            continue
        words = _words(_expanded(line, variables))
        command = _training(words)
        if command is not None:
            launcher, arguments = command
            found.update({f"{LAUNCHER}{name}": value for name, value in named(launcher).items()})
            found.update(named(arguments))
            before = takewhile(_is_assignment, words)
            exported.update((name, value) for word in before for name, is_, value in [word.partition("=")] if is_)
    return found


def _each_export(line: str) -> Iterator[str]:
    """``export A=1 B`` as a line for each variable; another line as it is."""
    match = _EXPORT.match(line)
    if match is None or "$(" in line or "`" in line:
        yield line
        return
    for word in _words(match[1]):
        name, equals, value = word.partition("=")
        yield f"export {name}{equals}{shlex.quote(value) if value else ''}"


def named(words: Sequence[str]) -> dict[str, Any]:
    """Words of a command line as names and values: ``--a 1``, ``--a=1``, ``--a 1 2``, ``--flag``, ``a.b=1``."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word) and word.strip("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else True
            name = "" if equals else name
        elif name and (found[name] is True or not _SETTING.match(word)):
            before = found[name]
            found[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
        elif match := _SETTING.match(word):
            name = ""
            found[match[1]] = match[2]
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Lines that belong together: continued ones, open quotes and open parentheses of arrays; without comments."""
    line = ""
    document = ""
    for part in text.splitlines():
        if document:
            # Lines between `<<END` and `END` are not commands.
            document = "" if part.strip() == document else document
            continue
        part = part.rstrip()
        if not line and part.lstrip().startswith("#"):
            continue
        line = f"{line}\n{part}" if line else part
        if line.endswith("\\") and not line.endswith("\\\\"):
            line = line[:-1] + " "
            continue
        if _is_open(line):
            continue
        here = re.search(r"<<-?\s*['\"]?(\w+)['\"]?", line)
        document = here[1] if here else ""
        yield from _commands(line)
        line = ""
    if line.strip():
        yield line.strip()


def _commands(line: str) -> Iterator[str]:
    """The commands of a line that ``;`` and ``&&`` separate outside of quotes."""
    part, quote = "", ""
    for index, each in enumerate(line):
        if quote:
            quote = "" if each == quote and line[index - 1] != "\\" else quote
        elif each in "'\"":
            quote = each
        elif each == ";" or line[index : index + 2] == "&&":
            yield _without_keyword(part)
            part = ""
            continue
        elif each == "&" and line[index - 1 : index] == "&":
            continue
        part += each
    if part.strip():
        yield _without_keyword(part)


def _without_keyword(part: str) -> str:
    """The command behind a keyword, or behind the pattern of a ``case``."""
    return re.sub(r"\A(?:(?:then|else|do)\s+|[^\s()$]+\)\s+)", "", part.strip())


def _is_open(line: str) -> bool:
    quote, depth = "", 0
    before = ""
    in_comment = False
    for each in line:
        if in_comment:
            in_comment = each != "\n"
        elif quote:
            quote = "" if each == quote and before != "\\" else quote
        elif each in "'\"" and before != "\\":
            quote = each
        elif each == "#" and (not before or before.isspace()):
            in_comment = True
        elif each == "(":
            depth += 1
        elif each == ")":
            depth -= 1
        before = each
    return bool(quote) or (depth > 0 and _ASSIGNMENT.match(line.strip()) is not None)


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:
        return text.split()  # an open quote, in a script that is cut off


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables of the script in it; one that is not assigned stays, or has its default."""
    text = re.sub(r'"(\$\{\w+\[[@*]\]\})"', r"\1", text)  # each word of an array by itself
    for _ in range(_MOST_SUBSTITUTIONS):
        expanded = _VARIABLE.sub(lambda match: _value(match, variables), text)
        if expanded == text:
            break
        text = expanded
    return text


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name = match[1] or match[4]
    if variables.get(name) or (name in variables and not match[2]):
        return variables[name]
    return match[3] if match[2] else match[0]


def _training(words: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The words of the launcher and of the training in a command; ``None`` if it starts none."""
    for index, word in enumerate(words):
        if word in _ENDS:
            words = words[:index]
            break
    start = next((index for index, word in enumerate(words) if not _is_assignment(word)), len(words))
    words = list(words[start:])
    if not words or not (_PYTHON.match(_base(words[0])) or _base(words[0]) in _LAUNCHERS):
        return None
    for index, word in enumerate(words[1:], 1):
        if word.endswith(".py"):
            return _without_program(words[1:index]), list(words[index + 1 :])
        is_module = words[index - 1] == "-m" and not word.startswith(("torch.distributed", "deepspeed", "accelerate"))
        if is_module and _PYTHON.match(_base(words[index - 2])):
            return [], list(words[index + 1 :])
    return None


def _is_assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None or word in ("nohup", "exec", "time")


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _without_program(words: Sequence[str]) -> list[str]:
    """The launcher's own arguments, without ``-m torch.distributed.run`` and ``-u``."""
    found = list(words)
    if "-m" in found:
        del found[found.index("-m") : found.index("-m") + 2]
    return [word for word in found if word != "-u"]
