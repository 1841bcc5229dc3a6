"""The commands of a shell script as a tree: words as they are written, conditions, loops and functions.

Only what start scripts are made of is known. What cannot be parsed ends the enclosing construct; nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional, Union

_OPERATORS = (
    "&&", "||", ";;", "|&", "&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", "|", "&", ";", "(", ")", "<", ">", "\n",
)  # fmt: skip
_REDIRECTIONS = frozenset(("&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", "<", ">"))
_PAIRS = {"(": ")", "{": "}"}
_MOST_NESTED = 50
"""Commands inside of each other, so that Python's own stack suffices: a guess."""


class Operator(str):
    """A token that is no word."""


@dataclass
class Command:
    """One command: its words, the file that its output goes to, and the document that it reads."""

    words: list[str] = field(default_factory=list)
    output: str = ""
    document: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    joined: str = ";"
    """The operator before it: ``&&``, ``||``, ``|`` or ``;``."""


@dataclass
class Choice:
    """An ``if`` or a ``case``: conditions with what is done then; a condition ``None`` is ``else``."""

    branches: list[tuple[Union[list[Node], tuple[str, list[str]], None], list[Node]]]  # noqa: UP007
    joined: str = ";"


@dataclass
class Loop:
    """A loop; `words` is ``None`` for one whose turns only a running script knows."""

    name: str
    words: Optional[list[str]]  # noqa: UP045
    body: list[Node]
    joined: str = ";"


@dataclass
class Function:
    """The definition of a function."""

    name: str
    body: list[Node]
    joined: str = ";"


@dataclass
class Group:
    """Commands in braces or parentheses."""

    body: list[Node]
    joined: str = ";"


Node = Union[Command, Choice, Loop, Function, Group]


def parse(text: str) -> tuple[list[Node], str]:
    """The commands of a script, and what is wrong with it: empty for a script that the shell can read."""
    problems: list[str] = []
    parser = _Parser(list(_tokens(text.replace("\r\n", "\n"), problems)))
    found: list[Node] = []
    while parser.at < len(parser.tokens):
        found += parser.commands(())
        if parser.at < len(parser.tokens):
            problems.append(f"{parser.tokens[parser.at]!r} closes nothing")
        parser.at += 1
    problems += (f"{word!r} has no end" for word in parser.unclosed)
    return found, problems[0] if problems else ""


def _tokens(text: str, problems: list[str]) -> Iterator[str]:
    """Words as they are written, and operators; a document behind ``<<END`` is a word behind it."""
    at = 0
    waiting: list[tuple[str, bool]] = []
    while at < len(text):
        if text.startswith("\\\n", at):
            at += 2
        elif text[at] in " \t":
            at += 1
        elif text[at] == "#":
            at = _index(text, "\n", at)
        elif operator := next((each for each in _OPERATORS if text.startswith(each, at)), ""):
            at += len(operator)
            if operator in ("<<", "<<-"):
                match = re.compile(r"[ \t]*(\\?)(['\"]?)([\w.!-]+)\2").match(text, at)
                if match:
                    at = match.end()
                    waiting.append((match[3], bool(match[1] or match[2])))
                continue
            yield Operator(operator)
            if operator == "\n":
                for delimiter, is_literal in waiting:
                    match = re.compile(rf"^[ \t]*{re.escape(delimiter)}[ \t]*$", re.MULTILINE).search(text, at)
                    document = text[at : match.start() if match else len(text)]
                    at = match.end() if match else len(text)
                    # The document belongs to the line before.
                    yield Operator("<<")
                    yield "'" + document if is_literal else '"' + document
                waiting = []
        else:
            end = word_end(text, at)
            if end == len(text) and quote_is_open(text[at:end]):
                problems.append(f"line {text.count(chr(10), 0, at) + 1}: a quote or a bracket is not closed")
            yield text[at:end].replace("\\\n", "")
            at = end


def _index(text: str, part: str, at: int) -> int:
    found = text.find(part, at)
    return len(text) if found < 0 else found


def word_end(text: str, at: int) -> int:
    """The index behind the word that begins at `at`: quotes, ``$(...)``, ``${...}`` and arrays belong to it."""
    start = at
    while at < len(text):
        each = text[at]
        if each == "\\":
            at += 2
        elif each in "'\"`":
            at = quote_end(text, at)
        elif each == "$" and text[at + 1 : at + 2] in _PAIRS:
            at = pair_end(text, at + 1)
        elif each == "(" and at > start and text[at - 1] == "=":
            at = pair_end(text, at)
        elif each.isspace() or each in ";|()<>" or each == "&":
            break
        else:
            at += 1
    return min(max(at, start + 1), len(text))


def quote_is_open(word: str) -> bool:
    """True if a word ends inside of quotes or brackets."""
    at = 0
    while at < len(word):
        each = word[at]
        if each == "\\":
            at += 2
            continue
        end = quote_end(word, at) if each in "'\"`" else 0
        if (each == "$" and word[at + 1 : at + 2] in _PAIRS) or (each == "(" and word[at - 1 : at] == "="):
            end = pair_end(word, at + (each == "$"))
            if end <= len(word) and word[end - 1] not in _PAIRS.values():
                return True
        if end > len(word):
            return True
        at = end or at + 1
    return False


def quote_end(text: str, at: int) -> int:
    """The index behind the text in quotes that begins at `at`."""
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "$" and text[at + 1 : at + 2] in _PAIRS:
            at = pair_end(text, at + 1)
        else:
            at += 2 if text[at] == "\\" and quote != "'" else 1
    return at + 1


def pair_end(text: str, at: int) -> int:
    """The index behind the bracket that closes the one at `at`."""
    closing = [_PAIRS[text[at]]]
    at += 1
    while at < len(text) and closing:
        each = text[at]
        if each == "\\":
            at += 1
        elif each in "'\"" and closing[-1] != "}":
            at = quote_end(text, at) - 1
        elif each == "#" and text[at - 1].isspace():
            at = _index(text, "\n", at)
        elif each in _PAIRS and (each == "(" or text[at - 1] == "$"):
            closing.append(_PAIRS[each])
        elif each == closing[-1]:
            closing.pop()
        at += 1
    return at


class _Parser:
    """Reads the tokens one after the other; `at` is the index of the next one."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.unclosed: list[str] = []
        self._nested = 0

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _is_word(self) -> bool:
        return self.at < len(self.tokens) and not isinstance(self._next(), Operator)

    def _skip(self, *wanted: str) -> None:
        while self.at < len(self.tokens) and self._next() in wanted:
            self.at += 1

    def commands(self, ends: Sequence[str]) -> list[Node]:
        """The commands up to one of the words `ends`, which is not read."""
        found: list[Node] = []
        joined = ";"
        self._nested += 1
        while self.at < len(self.tokens):
            token = self._next()
            if token in ends or (isinstance(token, Operator) and token in (")", ";;")) or self._nested > _MOST_NESTED:
                break
            if isinstance(token, Operator) and token == "<<":
                last = next((each for each in reversed(found) if isinstance(each, Command)), None)
                if last is not None:
                    last.document = self.tokens[self.at + 1]
                self.at += 2
            elif isinstance(token, Operator) and token not in _REDIRECTIONS and token != "(":
                if token != "\n" or joined == ";":
                    joined = str(token) if token in ("&&", "||", "|") else ";"
                self.at += 1
            else:
                before = self.at
                node = self._command()
                node.joined, joined = joined, ";"
                found.append(node)
                self.at += self.at == before
        self._nested -= 1
        return found

    def _close(self, what: str) -> None:
        if self.at >= len(self.tokens):
            self.unclosed.append(what)
        self.at += 1

    def _block(self, begin: Sequence[str], end: Sequence[str]) -> list[Node]:
        self._skip(";", "\n", *begin)
        return self.commands(end)

    def _command(self) -> Node:
        token = self._next()
        if token == "if" and not isinstance(token, Operator):
            return self._if()
        if token in ("while", "until"):
            self.at += 1
            self.commands(("do",))
            return Loop("", None, self._body())
        if token in ("for", "select"):
            return self._for()
        if token == "case":
            return self._case()
        if token in ("{", "(") and (token == "{" or isinstance(token, Operator)):
            self.at += 1
            body = self.commands(("}",))
            self.at += 1
            return Group(body)
        following = self.tokens[self.at + 1 : self.at + 3]
        if token == "function" or (self._is_word() and [*map(str, following)] == ["(", ")"]):
            name = self.tokens[self.at + 1] if token == "function" and following else token
            self.at += 2 if token == "function" else 1
            self._skip("(", ")", "\n")
            self.at += self._next() == "{"
            body = self.commands(("}",))
            self.at += 1
            return Function(name, body)
        return self._simple()

    def _simple(self) -> Command:
        found = Command()
        while self.at < len(self.tokens):
            token = self._next()
            if isinstance(token, Operator):
                if token not in _REDIRECTIONS or (token == "<<"):
                    break
                self.at += 1
                if found.words and found.words[-1].isdigit() and token[0] in "<>":
                    found.words.pop()  # 2>
                if self._is_word():
                    found.output = self._next() if token in (">", ">>") else found.output
                    self.at += 1
                continue
            found.words.append(token)
            self.at += 1
        return found

    def _if(self) -> Choice:
        found = Choice([])
        while self._next() in ("if", "elif"):
            self.at += 1
            condition = self.commands(("then", "fi"))
            found.branches.append((condition, self._block(("then",), ("elif", "else", "fi"))))
        if self._next() == "else":
            self.at += 1
            found.branches.append((None, self.commands(("fi",))))
        self._close("if")
        return found

    def _body(self) -> list[Node]:
        body = self._block(("do",), ("done",))
        self._close("do")
        return body

    def _for(self) -> Loop:
        self.at += 1
        name = self._next()
        if name == "(":
            while self.at < len(self.tokens) and self._next() != "do":
                self.at += 1
            return Loop("", None, self._body())
        self.at += 1
        self._skip("\n")
        words: list[str] | None = None
        if self._next() == "in":
            self.at += 1
            words = []
            while self._is_word():
                words.append(self._next())
                self.at += 1
        return Loop(name, words, self._body())

    def _case(self) -> Choice:
        self.at += 1
        word = self._next()
        self.at += 1
        self._skip("\n", "in")
        found = Choice([])
        while self.at < len(self.tokens) and self._next() != "esac":
            patterns = []
            while self.at < len(self.tokens) and self._next() != ")":
                if self._is_word():
                    patterns.append(self._next())
                self.at += 1
            self.at += 1
            found.branches.append(((word, patterns), self.commands(("esac",))))
            self._skip(";;", "\n", ";")
        self._close("case")
        return found
