"""The ``msprobe`` command."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from probe._version import __version__
from probe.api.commands.older import refuse, without_framework
from probe.api.commands.question import FINE, Command, CommandGroup, Invocation, Question, UsageError
from probe.common import log
from probe.common.dump.naming import did_you_mean

COMMANDS = {
    "run": "run.RunCommand", "show": "show.Show", "compare": "compare.Compare",
    "graph_visualize": "graph_visualize.GraphVisualize", "overflow_check": "overflow_check.OverflowCheck",
    "rollout_check": "rollout_check.RolloutCheck", "acc_check": "acc_check.AccCheck",
    "multi_acc_check": "acc_check.MultiAccCheck", "api_precision_compare": "acc_check.ApiPrecisionCompare",
    "replay": "acc_check.ReplayCommand", "config_check": "config_check.ConfigCheck",
    "ckpt_compare": "ckpt_compare.CkptCompare", "monitor": "monitor.Monitor", "trend": "monitor.Trend",
    "data2db": "convert.Data2Db", "merge_result": "compare.MergeResult", "code_mapping": "convert.CodeMapping",
    "parse": "convert.Parse", "recover": "recover.Recover", "pack": "pack.Pack", "config": "config.ConfigTemplate",
    "doctor": "doctor.Doctor", "completion": "config.Completion",
}  # fmt: skip
"""The commands, each with its class in `probe.api.commands`: one that is not asked for is not imported."""
ALIASES = {"graph": "graph_visualize", "nan_analyze": "overflow_check"}
"""Other names of commands, which existing scripts have."""

_EPILOG = """which command:
  collect from a training, without a change     msprobe run train.py --lr 0.1
  see what was collected                        msprobe show ./msprobe_output
  loss differs between two runs                 msprobe compare ./run_a ./run_b
  the same for the two newest runs              msprobe compare --last
  loss differs, the second run still runs       msprobe run --baseline ./run_b train.py
  loss differs, as a page to send               msprobe graph_visualize ./run_a ./run_b
  loss is NaN or infinite                       msprobe overflow_check ./run_a
  loss drifts slowly                            msprobe run --task monitor train.py
                                                msprobe monitor report ./monitor_output
  one operator is suspected                     msprobe acc_check ./run_a
  one call is suspected                         msprobe replay ./dump.json Functional.silu.0
  environments or settings differ               msprobe config_check ./run_a ./run_b
  two runs of one program differ                msprobe run --twice train.py
  a resumed run goes on otherwise               msprobe compare ./resumed ./uninterrupted --resumed
  ranks drift apart                             msprobe compare --ranks ./run_a
  weights differ                                msprobe ckpt_compare ./a.safetensors ./b.safetensors
  rollout and training differ                   msprobe rollout_check old.npy new.npy
  the run was killed                            msprobe recover ./run_a
  the other run is on another machine           msprobe pack ./run_a
  kernel dumps of a MindSpore graph             msprobe code_mapping --ir graph.ir --dump_data DIR
  tensors that ATB wrote                        msprobe parse -d ./atb_dump -t npy
  a configuration file to change                msprobe config -o .
  something does not work                       msprobe doctor

msprobe COMMAND --help explains a command. Without a command this text is printed.
"""


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.of_commands: dict[str, _Parser] = {}

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Take no beginning of a flag for the flag: --rank would be --rank_size; -oDIR is still -o and its value."""
        return [each for each in super()._get_option_tuples(option_string) if option_string.startswith(each[1])]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name what was probably meant where few values are allowed, as the names of commands are."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def _match_arguments_partial(self, actions: Sequence[argparse.Action], arg_strings_pattern: str) -> list[int]:
        """Leave a position that may be absent to the arguments behind the next flag, as Python does from 3.12.7 on."""
        counts: list[int] = super()._match_arguments_partial(actions, arg_strings_pattern)
        if arg_strings_pattern[sum(counts) : sum(counts) + 1] == "O":
            while counts and not counts[-1]:
                counts.pop()
        return counts

    def unknown(self, arguments: Sequence[str]) -> NoReturn:
        """Refuse arguments that nothing takes; the most similar flag is named."""
        flags = [text.partition("=")[0] for text in arguments if text.startswith("-")]
        near = did_you_mean(flags[0], self._option_string_actions) if flags else ""
        self.error(f"unrecognized arguments: {' '.join(arguments)}{near}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.

    Args:
        arguments: Those of the command line; ``None``: those of this process, which ends with the command.
    """
    given, ignored = without_framework(sys.argv[1:] if arguments is None else arguments)
    name = ALIASES.get(given[0], given[0]) if given else ""
    command = command_named(name) if name in COMMANDS else None
    as_json = isinstance(command, (Question, CommandGroup)) and "--json" in given
    invocation = Invocation("" if command is None else command.name, as_json)

    def work() -> int:
        # To build the arguments of all commands takes longer than to read those of one.
        parser = _parser(COMMANDS if command is None or name == "completion" else [name])
        if ignored:
            log.warning(ignored)
        refuse(given)
        if command is None and given and not given[0].startswith("-"):
            raise UsageError(_unknown_command(given[0]))
        args, unknown = parser.parse_known_args(given)
        if unknown:
            (parser if command is None else parser.of_commands[command.name]).unknown(unknown)
        if args.command is None:
            parser.print_help()
            return FINE
        args.process_ends = arguments is None
        invocation.as_json = getattr(args, "json", False)
        return int(args.command.run(args, invocation))

    status = invocation.run(work)
    if arguments is None and isinstance(command, Question):
        # Nothing has to be freed any more; to search all of it for garbage takes an eighth of a small comparison.
        gc.freeze()
    if arguments is None and getattr(sys.modules.get("probe.api.script"), "interrupted", False):
        # As Python ends such a program: by the signal, which a shell or a launcher waits for.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    return status


def command_named(name: str) -> Command:
    """The command of this name, which is imported then."""
    module, _, of_module = COMMANDS[name].partition(".")
    command: Command = getattr(importlib.import_module(f"probe.api.commands.{module}"), of_module)()
    return command


def _parser(names: Iterable[str]) -> _Parser:
    parser = _Parser(
        prog="msprobe",
        description="Precision debugger for deep-learning training.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"msprobe {__version__}")
    parser.set_defaults(command=None, parser=parser)
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in map(command_named, names):
        text = command.__doc__ or ""
        aliases = [alias for alias, name in ALIASES.items() if name == command.name]
        sub = commands.add_parser(command.name, aliases=aliases, help=text.split("\n")[0], description=text)
        command.prepare_parser(sub)
        sub.set_defaults(command=command)
        parser.of_commands[command.name] = sub
    return parser


def _unknown_command(text: str) -> str:
    return f'"{text}" is not a command{did_you_mean(text, COMMANDS) or "."} The commands are {", ".join(COMMANDS)}.'


if __name__ == "__main__":
    sys.exit(main())
