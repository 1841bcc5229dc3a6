"""Words of a shell with their variables, arithmetic and quotes replaced. No command is run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from probe.configcheck.shell_syntax import pair_end, quote_end, word_end

Value = Union[str, list[str]]
_PARAMETER = re.compile(r"(?s)(\w+|[@*])(?:\[([^\]]*)\])?(:?[-=])?(.*)\Z")
_NAME = re.compile(r"\w+")
_OF_MORE_ARGUMENTS = re.compile(r"(?i)\A[@*]\Z|ARGS|ARGUMENTS|OPTS|OPTIONS|EXTRA|FLAGS|PARAMS")
"""Variables that hold further arguments, as a rule none: unset, they are no value of the option before them."""
_MOST_TURNS = 100
"""Turns of a loop that are followed: a guess."""
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: lambda one, other: int(one / other), ast.Mod: operator.mod,
}  # fmt: skip


@dataclass
class Variables:
    """The variables of a script; one that it assigns somewhere and not yet is empty, any other one is unknown."""

    values: dict[str, Value] = field(default_factory=dict)
    assigned: frozenset[str] = frozenset()

    def get(self, name: str) -> Value | None:
        """The value of a variable; ``None`` if only a running script knows it."""
        return self.values.get(name, "" if name in self.assigned else None)


def is_unknown(text: str) -> bool:
    """True if a text has something in it that only a running script knows."""
    return "$" in text or "`" in text


def text_of(raw: str, variables: Variables) -> str:
    """A word as one text, as it is assigned to a variable."""
    return " ".join(fields(raw, variables, is_split=False))


def fields(raw: str, variables: Variables, is_split: bool = True) -> list[str]:
    """The words that a written word stands for: an array is several, and an empty variable none."""
    found: list[str] = []
    current: str | None = None
    at = 0

    def add(text: str) -> None:
        nonlocal current
        current = (current or "") + text

    while at < len(raw):
        each = raw[at]
        if each == "\\":
            add(raw[at + 1 : at + 2])
            at += 2
        elif each == "'":
            end = quote_end(raw, at)
            add(raw[at + 1 : end - 1])
            at = end
        elif each == '"':
            end = quote_end(raw, at)
            parts = quoted(raw[at + 1 : end - 1], variables)
            for number, part in enumerate(parts):
                if number:
                    found.append(current or "")
                    current = None
                add(part)
            at = end
        elif each == "`":
            end = quote_end(raw, at)
            add(raw[at:end])
            at = end
        elif each == "$":
            value, at = _dollar(raw, at, variables)
            text = " ".join(value) if isinstance(value, list) else value
            if is_split and not is_unknown(text):
                words = text.split()
                if words and (text[:1].isspace() and current is not None):
                    found.append(current)
                    current = None
                for number, word in enumerate(words):
                    if number:
                        found.append(current or "")
                        current = None
                    add(word)
            elif text or not is_split:
                add(text)
        else:
            add(each)
            at += 1
    if current is not None:
        found.append(current)
    return found


def quoted(text: str, variables: Variables) -> list[str]:
    """The words in double quotes: one, but of an array as many as it has."""
    current, at = "", 0
    found: list[str] = []
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            current += text[at + 1].strip("\n")
            at += 2
        elif text[at] == "$":
            value, at = _dollar(text, at, variables)
            if isinstance(value, list):
                first, *rest = value or [""]
                if not value and not current and at == len(text):
                    return found
                found += [current + first, *rest] if rest else []
                current = found.pop() if rest else current + first
            else:
                current += value
        else:
            current += text[at]
            at += 1
    return [*found, current]


def _dollar(text: str, at: int, variables: Variables) -> tuple[Value, int]:
    """The value of what begins with ``$`` at `at`, and the index behind it; the text itself if it is unknown."""
    if text.startswith("$((", at):
        end = pair_end(text, at + 1)
        number = arithmetic(text[at + 3 : end - 2], variables)
        return (text[at:end] if number is None else str(number)), end
    if text.startswith("$(", at):
        end = pair_end(text, at + 1)
        return text[at:end], end
    if text.startswith("${", at):
        end = pair_end(text, at + 1)
        value = _parameter(text[at + 2 : end - 1], variables)
        return (_unknown(text[at:end]) if value is None else value), end
    match = re.compile(r"\$([A-Za-z_]\w*|\d|[@*#?$!])").match(text, at)
    if match is None:
        return "$", at + 1
    known = variables.get(match[1])
    # An array without an index is its first element.
    known = (known[0] if known else "") if isinstance(known, list) and match[1] not in ("@", "*") else known
    return (_unknown(match[0]) if known is None else known), match.end()


def _unknown(text: str) -> Value:
    return [] if _OF_MORE_ARGUMENTS.search(text.strip('${}"').partition(":")[0].partition("[")[0]) else text


def _parameter(inside: str, variables: Variables) -> Value | None:
    """The value of ``${...}``: a variable, an array or an element of one, or a default; ``None`` if it is unknown."""
    match = _PARAMETER.match(inside)
    if match is None:
        return None
    name, index, kind, word = match.groups()
    value = variables.get(name)
    if isinstance(value, list) and index not in (None, "@", "*"):
        number = arithmetic(index, variables)
        value = None if number is None else value[number] if -len(value) <= number < len(value) else ""
    elif isinstance(value, list) and index is None and name not in ("@", "*"):
        value = value[0] if value else ""
    if not kind:
        return None if word else value
    if value if kind[0] == ":" else name in variables.values:
        return value
    otherwise = text_of(word, variables)
    if kind[-1] == "=":
        variables.values[name] = otherwise
    return otherwise


def arithmetic(text: str, variables: Variables) -> int | None:
    """The value of an expression; ``None`` if it is unknown."""
    plain = _NAME.sub(lambda match: _number(match[0], variables), text_of(text.replace('"', ""), variables))
    try:
        return int(_computed(ast.parse(plain.strip(), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError):
        return None


def _number(name: str, variables: Variables) -> str:
    value = name if name.isdecimal() else variables.get(name)
    return value.lstrip("0") or "0" if isinstance(value, str) and value.isdecimal() else "_unknown"


def _computed(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and abs(node.value) < 1 << 63:
        return node.value
    if isinstance(node, ast.BinOp):
        value = _OPERATORS[type(node.op)](_computed(node.left), _computed(node.right))
        if abs(value) < 1 << 63:
            return value
    raise ValueError


def elements(raw: str, variables: Variables) -> list[str]:
    """The elements of an array that is written as ``(a b "c d")``."""
    found: list[str] = []
    inside, at = raw[1:-1] if raw.endswith(")") else raw[1:], 0
    while at < len(inside):
        if inside.startswith("\\\n", at):
            at += 2
        elif inside[at].isspace():
            at += 1
        elif inside[at] == "#":
            at = inside.find("\n", at) % (len(inside) + 1)
        else:
            end = word_end(inside, at)
            found += fields(inside[at:end], variables)
            at = end
    return found


def turns(words: Sequence[str], variables: Variables) -> list[str] | None:
    """The values of the variable of a loop; ``None`` if only a running script knows them."""
    found = [each for raw in words for each in fields(raw, variables)]
    unknown = any(is_unknown(each) or "*" in each or "{" in each for each in found)
    return None if unknown or len(found) > _MOST_TURNS else found
