"""``msprobe run``."""

from __future__ import annotations

import argparse
import re
from typing import Any

from probe.api import script
from probe.api.commands.invocation import FINE, TROUBLE, Invocation
from probe.collect.training_loop import AUTO, OPTIMIZER, STEP_AFTER
from probe.common import log
from probe.common.config.config import GRAD_PROBE
from probe.common.config.fields import Location, numbers_text, one_of, quoted
from probe.common.errors import MsprobeException

_FLAGS = {
    "level": "--level", "dump_path": "-o", "task": "--task", "step": "--step", "module": "--module", "api": "--api"
}  # fmt: skip
"""The options that are keys of the configuration."""
MONITOR = "monitor"
"""The task of the training monitor, which has a configuration of its own."""
_LEVELS = ("L0", "L1", "mix")
_NEEDS_LINES = "needs lines in a script"


class RunCommand:
    """Run a training script and collect from it, without a line added to it.

    Standard output and the exit status are those of the script.
    """

    name = "run"
    aliases = ()

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = (
            "msprobe run [--config FILE] [--level LEVEL] [--step STEPS] [--task TASK] [--step-after EVENT] [-o DIR]\n"
            "                   [--module GLOB] [--api GLOB] [--follow-children] [--quiet] [--strict]\n"
            "                   (train.py | -m MODULE) [argument ...]"
        )
        parser.epilog = (
            "A step begins with the first forward that records gradients, and ends when every optimizer has stepped. "
            "With several processes: torchrun ... -m msprobe run train.py"
        )
        parser.add_argument("--config", metavar="FILE", help="a configuration file; the options below win over it")
        parser.add_argument("--level", help="L0 (modules), L1 (APIs) or mix (both); mix without a configuration file")
        without = "without a file 0-1, all with task overflow_check"
        modules = "only modules by path or class, and all inside: 'layers.1', '*Norm'"
        parser.add_argument("--module", dest="module_pattern", metavar="GLOB", help=modules)
        parser.add_argument("--api", metavar="GLOB", help="only functions by name: 'softmax', 'Functional.*'")
        parser.add_argument("--step", metavar="STEPS", help=f'such as 0,10-12, or "all"; {without}')
        tasks = "statistics, tensor, structure, overflow_check, free_benchmark or monitor"
        parser.add_argument("--task", help=f"{tasks}; statistics without a file")
        parser.add_argument("-o", "--output", metavar="DIR", help="where to write; ./msprobe_output without a file")
        parser.add_argument(
            "--step-after",
            choices=STEP_AFTER,
            default=AUTO,
            metavar="EVENT",
            help="have a step end with each backward, each optimizer's step, or each forward",
        )
        parser.add_argument(
            "--follow-children",
            action="store_true",
            help="collect from Python programs too that the program starts by subprocess, os.exec or a notebook",
        )
        parser.add_argument("-q", "--quiet", action="store_true", help="show only warnings and errors of the tool")
        parser.add_argument(
            "--strict", action="store_true", help="end with status 2 if nothing was collected and the script's is 0"
        )
        parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
        parser.add_argument("program", nargs=argparse.REMAINDER, metavar="train.py", help="the script, its arguments")

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        program = args.program[args.program[:1] == ["--"] :] if args.module is None else args.module
        if not program:
            raise MsprobeException("no program was given; give a script and its arguments, or -m and a module.")
        if args.task == MONITOR:
            return self._monitor(args, program)
        from probe.api.run import RunningProgram

        running = RunningProgram(args.config, _arguments(args), args.step_after, follow=args.follow_children)
        if args.quiet:
            log.quieten()
        if running.config.task == GRAD_PROBE:
            hint = 'PrecisionDebugger("config.json").monitor(model)'
            raise MsprobeException(f'task "{GRAD_PROBE}" {_NEEDS_LINES}: {hint}; run the script with python.')
        if running.config.level == "debug":
            location = Location(args.config, "level")
            raise MsprobeException(f"{location.describe('debug')}, which {_NEEDS_LINES}; use {quoted(_LEVELS)}.")
        loaded, arguments = _loaded(args, program)
        config = running.config
        steps = f"step {numbers_text(config.step)}" if config.step else "every step"
        log.info(f"msprobe run: {steps} at level {config.level}, task {config.task}, into {config.dump_path}.")
        status = script.execute(loaded, arguments, args.process_ends)
        is_collected = running.end(failed=status != 0)
        return TROUBLE if args.strict and status == FINE and not is_collected else status

    def _monitor(self, args: argparse.Namespace, program: list[str]) -> int:
        for flag, value, hint in (
            ("--level", args.level, "it has rows of modules and parameters"),
            ("--api", args.api, "it has no rows of functions; use --module"),
            ("--step", args.step, "start_step, step_interval and collect_times of its configuration choose steps"),
            ("--step-after", None if args.step_after in (AUTO, OPTIMIZER) else args.step_after, "an optimizer ends it"),
            ("--follow-children", args.follow_children or None, "it monitors this process only"),
        ):
            if value is not None:
                raise MsprobeException(f"{flag} cannot be used with --task {MONITOR}: {hint}.")
        if args.output is not None:
            from probe.common.config.config import KEYS

            KEYS["dump_path"].parse(args.output, Location(_FLAGS["dump_path"], "dump_path"))
        from probe.api.monitoring.program import MonitoredProgram

        running = MonitoredProgram(args.config, args.output, args.module_pattern)
        if args.quiet:
            log.quieten()
        loaded, arguments = _loaded(args, program)
        log.info(f"msprobe run: every step is monitored, into {running.folder}.")
        try:
            status = script.execute(loaded, arguments, args.process_ends)
        finally:
            is_collected = running.end()
        return TROUBLE if args.strict and status == FINE and not is_collected else status


def _loaded(args: argparse.Namespace, program: list[str]) -> tuple[Any, list[str]]:
    """The program, and its ``sys.argv``."""
    name = program[0]
    loaded = script.load_script(name) if args.module is None else script.load_module(name)
    # Of a module Python gives the file.
    return loaded, program if args.module is None else [loaded.main.__file__ or name, *program[1:]]


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The options that win over a configuration file; ``None`` of what is not given.

    Raises:
        MsprobeException: a value is wrong; the message names the option, and not the argument that it becomes.
    """
    from probe.common.config.config import KEYS, UNAVAILABLE_LEVELS

    given = {"level": args.level, "dump_path": args.output, "task": args.task, "step": _steps(args.step)}
    given.update(module=args.module_pattern, api=args.api)
    level = one_of(*_LEVELS, unavailable={**UNAVAILABLE_LEVELS, "debug": _NEEDS_LINES})
    for name, value in given.items():
        if value is not None:
            parse = level if name == "level" else KEYS[name].parse
            parse(value, Location(_FLAGS[name], name))
    return given


def _steps(text: str | None) -> list[str] | None:
    """``0,10-12`` as the configuration has it."""
    if text is None:
        return None
    return [] if text == "all" else [part for part in re.split(r"[,\s]+", text) if part]
