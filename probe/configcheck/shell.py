"""Arguments of the trainings that a start script of a shell launches, read without running it.

Assignments, functions, loops over written values and conditions on them are followed. Where only a running script knows
which branch is taken, the script is read several times, so that each branch is taken once. No command is run.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.configcheck.meanings import meaning
from probe.configcheck.shell_expansion import Value, Variables, elements, fields, is_unknown, quoted, text_of, turns
from probe.configcheck.shell_syntax import Choice, Command, Function, Group, Loop, Node, parse

LAUNCHER = "launcher."
"""The beginning of the names of arguments that belong to the launcher and not to the training."""
EXPORTED = "environment."
"""The beginning of the names of variables that a script exports to the training and that name a setting."""
PROGRAM = f"{LAUNCHER}program"
"""The launchers of a command; without it the command starts one process by default."""
_ONE_PROCESS = frozenset(("torchrun", "python", "python3"))
_LAUNCHERS = frozenset((
    "torchrun", "deepspeed", "msrun", "accelerate", "srun", "mpirun", "mpiexec", "horovodrun", "colossalai", "composer",
    "deepspeed.py", "orterun",
))  # fmt: skip
_TRAININGS = frozenset(
    ("swift", "megatron", "llamafactory-cli", "axolotl", "xtuner", "tune", "trl", "lightning", "fabric")
)
"""Programs that train by themselves, without a script in Python. The list is what their documentation names."""
_MODULES = re.compile(r"(torch\.distributed|accelerate\.|deepspeed)")
_PYTHON = re.compile(r"python[\d.]*\Z|pypy\d*\Z")
_NO_LAUNCH = frozenset((
    "echo", "printf", "cat", "grep", "ls", "cp", "mv", "rm", "mkdir", "tee", "pip", "pip3", "chmod", "which", "git",
    "ln", "source", ".", "cd", "test", "[", "[[", "tar", "wget", "curl", "unset", "trap", "read", "alias", "sed", "awk",
))  # fmt: skip
_BEFORE = frozenset(("nohup", "exec", "time", "command", "sudo", "env", "stdbuf", "unbuffer", "builtin"))
_DECLARE = frozenset(("export", "declare", "typeset", "local", "readonly"))
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)\Z", re.DOTALL)
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=(.*)\Z", re.DOTALL)
_NUMBER = re.compile(r"-\.?\d")
_WITHOUT_VALUE = frozenset(("-m", "-u", "--module", "launch", "run"))
_ATTACHED = re.compile(r"^(-(?:n|np|N))(\d+)$")
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_DOCUMENT = (".json", ".yaml", ".yml")
_MOST_RUNS, _MOST_LAUNCHES, _MOST_COMMANDS, _MOST_CALLS, _LONGEST = 6, 50, 20_000, 20, 1 << 16
"""Times that a script is read for its branches, and bounds of what damaged or hostile scripts can cost: guesses."""


@dataclass
class Script:
    """The trainings that a start script launches, and the variables and files that it sets."""

    launches: list[dict[str, Any]] = field(default_factory=list)
    """The arguments of each command that starts a training, by name without dashes; a flag is true."""
    environment: dict[str, str] = field(default_factory=dict)
    """The variables that it exports, or puts before such a command; without those that are unknown."""
    documents: dict[str, str] = field(default_factory=dict)
    """Settings files that it writes, by their names."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what was not followed."""


def read_script(text: str) -> Script:
    """The trainings that a script starts.

    Example:
        >>> read_script('LR=1e-4\\ntorchrun --nproc_per_node 8 train.py --lr $LR --bf16').launches
        [{'launcher.nproc_per_node': '8', 'lr': '1e-4', 'bf16': True}]
    """
    found = Script()
    nodes, problem = parse(text)
    if problem:
        found.notes.append(f"{problem}; what is behind it may be read in another way than the shell does")
    assigned = frozenset(re.findall(r"(?:^|[\s;(])([A-Za-z_]\w*)\+?=", text))
    options = [word for line in _SBATCH.findall(text) for word in line.split("#")[0].split()]
    batch = {f"{LAUNCHER}{name}": value for name, value in named(options).items()}
    runs: list[list[dict[str, Any]]] = []
    number, wanted = 0, 1
    while number < min(wanted, _MOST_RUNS):
        run = _Run(Variables({}, assigned), number, found)
        run.follow(nodes)
        # A program of another name may train if nothing else does.
        launches = run.launches or run.others[-1:]
        runs.append([{**batch, **launch} if PROGRAM in launch else launch for launch in launches])
        wanted = max(wanted, run.branches)
        found.environment.update(run.exported)
        number += 1
    for launch in (each for launches in runs for each in launches):
        if launch not in found.launches:
            found.launches.append(launch)
    uncertain = [name for launches in zip(*runs) for name in {name: 0 for each in launches for name in each}
                 if any(each.get(name) != launches[0].get(name) for each in launches)]  # fmt: skip
    if uncertain:
        names = list(dict.fromkeys(uncertain))
        found.notes.append(
            f"{', '.join(names)} depend{'s' if len(names) == 1 else ''} on an if or a case of which only a running "
            "script knows the branch; every branch is compared"
        )
    found.environment = {name: value for name, value in found.environment.items() if not is_unknown(value)}
    return found


class _Run:
    """One reading of a script, in which each undecided choice takes the branch of this number, or its last one."""

    def __init__(self, variables: Variables, number: int, found: Script) -> None:
        self.variables = variables
        self.number = number
        self.found = found
        self.exported: dict[str, str] = {}
        self.launches: list[dict[str, Any]] = []
        self.others: list[dict[str, Any]] = []
        """The options of commands that are not known to train."""
        self.branches = 1
        self._functions: dict[str, list[Node]] = {}
        self._commands = self._calls = 0

    def follow(self, nodes: Sequence[Node]) -> None:
        """Follow commands in their order."""
        status: bool | None = True
        for node in nodes:
            self._commands += 1
            if self._commands > _MOST_COMMANDS or len(self.launches) >= _MOST_LAUNCHES:
                self._note("the script has more turns than are read; the rest is not followed")
                return
            if node.joined == "&&" and not self._is_taken(status):
                continue
            if node.joined == "||" and not self._is_taken(None if status is None else not status):
                continue
            status = True
            if isinstance(node, Command):
                status = self._command(node)
            elif isinstance(node, Group):
                self.follow(node.body)
            elif isinstance(node, Function):
                self._functions[node.name] = node.body
            elif isinstance(node, Loop):
                self._loop(node)
            else:
                self._choose(node)

    def _note(self, sentence: str) -> None:
        if sentence not in self.found.notes:
            self.found.notes.append(sentence)

    def _is_taken(self, status: bool | None) -> bool:
        if status is None:
            self.branches = max(self.branches, 2)
            return self.number == 0
        return status

    def _choose(self, node: Choice) -> None:
        undecided: list[list[Node]] = []
        has_otherwise = False
        for condition, body in node.branches:
            holds = True if condition is None else self._holds(condition)
            if holds is False:
                continue
            undecided.append(body)
            if holds is True:
                has_otherwise = True
                break
        if not undecided:
            return
        choices = undecided if has_otherwise else [*undecided, []]
        self.branches = max(self.branches, len(choices))
        self.follow(choices[min(self.number, len(choices) - 1)])

    def _holds(self, condition: list[Node] | tuple[str, list[str]]) -> bool | None:
        """True or false if the script alone decides it."""
        if isinstance(condition, tuple):
            word = text_of(condition[0], self.variables)
            patterns = [text_of(each, self.variables) for each in condition[1]]
            if "*" in patterns:
                return True
            return None if is_unknown(word) else any(fnmatch.fnmatchcase(word, each) for each in patterns)
        alone = condition[0] if len(condition) == 1 else None
        return self._command(alone, True) if isinstance(alone, Command) else None

    def _loop(self, node: Loop) -> None:
        values = None if node.words is None else turns(node.words, self.variables)
        if values is None:
            before = len(self.launches)
            if node.name:
                self.variables.values[node.name] = f"${node.name}"
            self.follow(node.body)
            if len(self.launches) > before:
                which = f"the loop over {node.name}" if node.name else "a loop"
                self._note(f"{which} is not followed, because only a running script knows its turns: its commands are "
                           "read once")  # fmt: skip
            return
        for value in values:
            self.variables.values[node.name] = value
            self.follow(node.body)

    # --- commands

    def _command(self, node: Command, is_condition: bool = False) -> bool | None:
        """Follow a command; its status, if the script alone decides it, otherwise true, or unknown in a condition."""
        words = node.words
        assigned: dict[str, str] = {}
        if node.document is not None and node.output:
            name = text_of(node.output, self.variables).rpartition("/")[2]
            if name.endswith(_DOCUMENT):
                body = node.document[1:]
                is_literal = node.document[:1] == "'"
                self.found.documents[name] = body if is_literal else " ".join(quoted(body, self.variables))
        while words and (match := _ASSIGNMENT.match(words[0])):
            value = self._assign(match)
            assigned[match[1]] = value
            words = words[1:]
        if not words:
            return True
        for name in assigned:
            if name not in self.exported:
                self.variables.values.pop(name, None)  # of this command alone
        first = words[0]
        if first in _DECLARE:
            self._declare(first, words[1:])
            return True
        if first in ("[", "[[", "test"):
            return self._test([word for word in words[1:] if word not in ("]", "]]")])
        given = [each for word in words for each in fields(word, self.variables)]
        if not given or given[0] in ("true", ":", "false"):
            return not given or given[0] != "false"
        if given[0] in self._functions:
            return self._call(self._functions[given[0]], given[1:])
        script = _inner_script(given)
        if script is not None:
            if self._calls < _MOST_CALLS:
                self._calls += 1
                before = len(self.launches)
                self.follow(parse(script)[0])
                self._calls -= 1
                # The options of srun and mpirun count for what their shell starts.
                wrapper = given[: given.index(script) - 2] if script in given else []
                outer, _ = launch_of([*wrapper, "python", "-m", "_"])
                for index in range(before, len(self.launches)):
                    self.launches[index] = {**(outer or {}), **self.launches[index]}
            return True
        launch, environment = launch_of(given)
        if launch is not None:
            self.exported.update({**assigned, **environment})
            self._add(launch)
        elif not is_condition and given[0] not in _NO_LAUNCH and sum(word.startswith("--") for word in given) > 1:
            self.others.append(named(given[1:]))
        return None if is_condition else True

    def _add(self, launch: dict[str, Any]) -> None:
        """Note a launch, with exported variables whose names say what they set, unless it has an option for that."""
        known = {setting.title for name in launch if (setting := meaning(name)[0]) is not None}
        for name, value in self.exported.items():
            setting, _ = meaning(name)
            if setting is not None and setting.title not in known and f"${name}" not in setting.names.split():
                launch[f"{EXPORTED}{name}"] = value
        self.launches.append(launch)

    def _assign(self, match: re.Match[str]) -> str:
        name, is_added, raw = match.groups()
        values = self.variables.values
        before = self.variables.get(name)
        values.setdefault(name, "")  # a variable that adds to itself is empty before its first assignment
        old = [before] if isinstance(before, str) and before else before or []
        if raw[:1] == "(":
            new = elements(raw, self.variables)
            value: Value = [*old, *new] if is_added else new
        else:
            value = text_of(raw, self.variables)
            value = f"{' '.join(old)}{value}" if is_added else value
        text = value if isinstance(value, str) else " ".join(value)
        if len(text) > _LONGEST:  # one that doubles in each turn
            value = text = f"${name}"
        values[name] = value
        if isinstance(value, list):
            return text
        if name in self.exported:
            self.exported[name] = text
        return text

    def _declare(self, which: str, words: Sequence[str]) -> None:
        options = [word for word in words if word.startswith("-")]
        is_exported = (which == "export" and "-n" not in options) or any("x" in option for option in options)
        for word in words:
            match = _ASSIGNMENT.match(word)
            name = match[1] if match else word
            if match:
                self._assign(match)
            if is_exported and name.isidentifier():
                value = self.variables.get(name)
                self.exported[name] = f"${name}" if not isinstance(value, str) else value

    def _call(self, body: Sequence[Node], arguments: Sequence[str]) -> bool:
        if self._calls < _MOST_CALLS:
            self._calls += 1
            values = self.variables.values
            names = (*map(str, range(1, max(len(arguments), 9) + 1)), "@")
            before = {name: values.pop(name) for name in names if name in values}
            values.update({str(number): value for number, value in enumerate(arguments, 1)}, **{"@": list(arguments)})
            self.follow(body)
            for name in names:
                values.pop(name, None)
            values.update(before)
            self._calls -= 1
        return True

    def _test(self, words: Sequence[str]) -> bool | None:
        texts = [text_of(word, self.variables) for word in words]
        if any(map(is_unknown, texts)):
            return None
        if len(texts) == 2 and texts[0] in ("-z", "-n"):
            return (texts[1] == "") == (texts[0] == "-z")
        if len(texts) != 3:
            return None
        left, how, right = texts
        if how in ("=", "==", "!="):
            return fnmatch.fnmatchcase(left, right) == (how != "!=")
        try:
            difference = int(left) - int(right)
        except ValueError:
            return None
        return {"-eq": difference == 0, "-ne": difference != 0, "-gt": difference > 0, "-lt": difference < 0,
                "-ge": difference >= 0, "-le": difference <= 0}.get(how)  # fmt: skip


def _inner_script(words: Sequence[str]) -> str | None:
    """The script that a command hands to a shell: ``eval TEXT``, ``bash -c TEXT``, ``srun bash -c TEXT``."""
    if words[0] == "eval":
        return " ".join(words[1:])
    for index, word in enumerate(words[:-2]):
        if _base(word) in ("bash", "sh", "zsh") and words[index + 1] in ("-c", "-lc", "-ec", "-exc"):
            return words[index + 2]
    return None


def launch_of(words: Sequence[str]) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Settings of a command that starts a training, and the variables that it sets; ``None`` for another command."""
    environment: dict[str, str] = {}
    rest = list(words)
    while rest and (rest[0] in _BEFORE or _ASSIGNMENT.match(rest[0])):
        if match := _ASSIGNMENT.match(rest[0]):
            environment[match[1]] = match[3]
        del rest[0]
    if not rest or rest[0] in _NO_LAUNCH:
        return None, environment
    start, program = _program(rest)
    if program is None:
        return None, environment
    before, arguments = rest[:program], rest[program + 1 :]
    settings: dict[str, Any] = {}
    launchers = [_base(word) for word in before if _base(word) in _LAUNCHERS]
    own = rest[program] if _base(rest[program]) in _TRAININGS else ""
    if set(launchers) - _ONE_PROCESS or own or any(map(_MODULES.match, before)):
        settings[PROGRAM] = " ".join([*launchers, _base(own)] if own else launchers) or "module"
    if launchers == ["torchrun"] or any(word.startswith("torch.distributed") for word in before):
        settings.pop(PROGRAM, None)
    options = [
        word for word in before[start:] if not (_is_launcher(word) or _MODULES.match(word) or word in _WITHOUT_VALUE)
    ]
    for index, word in enumerate(options[:-1]):
        if word in ("-x", "-e", "--env") and (match := _ASSIGNMENT.match(options[index + 1])):
            environment[match[1]] = match[3]
    options = [part for word in options for part in (_ATTACHED.sub(r"\1 \2", word).split(" ", 1))]
    settings.update({f"{LAUNCHER}{name}": value for name, value in named(options).items()})
    settings.update(named(arguments))
    if own:
        # The first words of such a program are what it does and its settings file.
        for word in arguments[:3]:
            if word.endswith(_DOCUMENT) and not word.startswith("-") and "=" not in word:
                settings.setdefault("config", word)
    return settings, environment


def _program(words: Sequence[str]) -> tuple[int, int | None]:
    """The index of the first launcher, and of what it starts: a script, a module, or a program that trains."""
    first = next((index for index, word in enumerate(words) if _is_launcher(word)), None)
    if first is None:
        return 0, None
    if _base(words[first]) in _TRAININGS:
        return first, first
    for index in range(first + 1, len(words)):
        word = words[index]
        if words[index - 1] in ("-m", "--module") and not _MODULES.match(word):
            return 0, index
        if word.endswith(".py") and not word.startswith("-"):
            return 0, index
        if _base(word) in _TRAININGS:
            return 0, index
    return first, None


def _is_launcher(word: str) -> bool:
    base = _base(word)
    return base in _LAUNCHERS or base in _TRAININGS or _PYTHON.match(base) is not None


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def named(words: Sequence[str]) -> dict[str, Any]:
    """Words of a command line as names and values: ``--a 1``, ``--a=1``, ``--a 1 2``, ``--flag``, ``a.b=1``."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word) and word.strip("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else True
            name = "" if equals else name
        elif name and name != "multirun" and (found[name] is True or not _SETTING.match(word)):
            before = found[name]
            found[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
        elif match := _SETTING.match(word):
            name = ""
            found[match[1]] = match[2]
    return found
