"""``msprobe run``."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from probe.api import script
from probe.api.commands.question import FINE, FOUND, TROUBLE, Invocation
from probe.collect.training_loop import AUTO, OPTIMIZER, STEP_AFTER
from probe.common import log
from probe.common.config.config import GRAD_PROBE
from probe.common.config.fields import Location, numbers_text, one_of, quoted
from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from probe.api.monitoring.program import WatchedProgram

_FLAGS = {
    "level": "--level", "dump_path": "-o", "task": "--task", "step": "--step", "module": "--module", "api": "--api",
    "against": "--baseline", "stop_at": "--stop-at", "summary_mode": "--summary-mode",
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

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = (
            "msprobe run [--config FILE] [--level LEVEL] [--step STEPS] [--task TASK] [--step-after EVENT] [-o DIR]\n"
            "                   [--module GLOB] [--api GLOB] [--summary-mode MODE] [--twice] [--follow-children]\n"
            "                   [--baseline RUN [--stop-at divergence]] [--quiet] [--strict]\n"
            "                   (train.py | -m MODULE) [argument ...]"
        )
        parser.epilog = (
            "A step begins with the first forward that records gradients, and ends when every optimizer has stepped. "
            "In a program that computes no gradients, each outermost forward is a step. "
            "With several processes: torchrun ... -m msprobe run train.py"
        )
        parser.add_argument("--config", metavar="FILE", help="a configuration file; the options below override it")
        parser.add_argument("--level", help="L0 (modules), L1 (APIs) or mix (both); mix without a configuration file")
        without = "without a file 0-1, all with task overflow_check"
        modules = "only modules by path or class, and all inside: 'layers.1', '*Norm'"
        parser.add_argument("--module", dest="module_pattern", metavar="GLOB", help=modules)
        parser.add_argument("--api", metavar="GLOB", help="only functions by name: 'softmax', 'Functional.*'")
        parser.add_argument("--step", metavar="STEPS", help=f'such as 0,10-12, or "all"; {without}')
        tasks = "statistics, tensor, structure, overflow_check, free_benchmark, grad_probe or monitor"
        parser.add_argument("--task", help=f"{tasks}; statistics without a file")
        parser.add_argument("--summary-mode", metavar="MODE", help="statistics, md5 or xor; statistics without a file")
        parser.add_argument(
            "--twice", action="store_true", help="run the program two times, and name the first call with other bits"
        )
        parser.add_argument("-o", "--output", metavar="DIR", help="output folder; without a file ./msprobe_output")
        parser.add_argument(
            "--step-after",
            choices=STEP_AFTER,
            default=AUTO,
            metavar="EVENT",
            help="end a step with each backward, each optimizer's step, or each forward",
        )
        parser.add_argument(
            "--follow-children",
            action="store_true",
            help="also collect from Python programs that the program starts by subprocess or a notebook",
        )
        text = "compare each call with this run while the program runs, and print the first divergence"
        parser.add_argument("--baseline", "--against", dest="against", metavar="RUN", help=text)
        text = "divergence: end the program, with status 1, after the step that diverges from --baseline"
        parser.add_argument("--stop-at", dest="stop_at", metavar="EVENT", help=text)
        parser.add_argument("-q", "--quiet", action="store_true", help="show only warnings and errors of the tool")
        parser.add_argument(
            "--strict", action="store_true", help="exit status 2 if nothing was collected and the script's status is 0"
        )
        parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
        parser.add_argument("program", nargs=argparse.REMAINDER, metavar="train.py", help="the script, its arguments")

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        program = args.program[args.program[:1] == ["--"] :] if args.module is None else args.module
        if not program:
            raise MsprobeException("no program was given; give a script and its arguments, or -m and a module.")
        if args.twice:
            from probe.api.twice import run_twice

            return run_twice(args, program, _arguments(args))
        if args.task == MONITOR:
            return self._monitor(args, program)
        if _task(args) == GRAD_PROBE:
            return self._probe(args, program)
        from probe.api.run import RunningProgram

        running = RunningProgram(args.config, _arguments(args), args.step_after, follow=args.follow_children)
        if args.quiet:
            log.quieten()
        if running.config.level == "debug":
            location = Location(args.config, "level")
            raise MsprobeException(f"{location.describe('debug')}, which {_NEEDS_LINES}; use {quoted(_LEVELS)}.")
        loaded, arguments = _loaded(args, program)
        config = running.config
        steps = f"step {numbers_text(config.step)}" if config.step else "every step"
        log.info(f"msprobe run: {steps} at level {config.level}, task {config.task}, into {config.dump_path}.")
        ended = script.execute(loaded, arguments, args.process_ends)
        is_collected = running.end(ended.reason)
        if ended.status == FINE and running.has_diverged:
            # It diverged in its last step.
            ended = ended._replace(status=FOUND)
        return _status(args, ended, is_collected)

    def _monitor(self, args: argparse.Namespace, program: list[str]) -> int:
        _refuse(
            args,
            MONITOR,
            {
                "--level": "it has rows of modules and parameters",
                "--api": "it has no rows of functions; use --module",
                "--step": "start_step, step_interval and collect_times of its configuration choose steps",
                "--summary-mode": "its configuration chooses the statistics",
                "--step-after": "an optimizer ends it",
                "--follow-children": "it monitors this process only",
            },
        )
        if args.output is not None:
            from probe.common.config.config import KEYS

            KEYS["dump_path"].parse(args.output, Location(_FLAGS["dump_path"], "dump_path"))
        from probe.api.monitoring.program import monitored

        running = monitored(args.config, args.output, args.module_pattern)
        return self._watched(running, args, program, f"every step is monitored, into {running.folder}.")

    def _probe(self, args: argparse.Namespace, program: list[str]) -> int:
        _refuse(
            args,
            GRAD_PROBE,
            {
                "--level": "grad_level of its configuration chooses what is written",
                "--api": "it has gradients of parameters; use --module",
                "--summary-mode": "grad_level of its configuration chooses what is written",
                "--step-after": "an optimizer ends it",
                "--follow-children": "it probes this process only",
            },
        )
        given = _arguments(args)
        from probe.api.monitoring.program import probed

        running = probed(args.config, given["dump_path"], given["step"], given["module"])
        text = f"the gradients of the steps of an optimizer are written, into {running.folder}."
        return self._watched(running, args, program, text)

    def _watched(self, running: WatchedProgram, args: argparse.Namespace, program: list[str], begins: str) -> int:
        """Run `program` under what waits for its first training."""
        if args.quiet:
            log.quieten()
        loaded, arguments = _loaded(args, program)
        log.info(f"msprobe run: {begins}")
        ended = script.Ended(script.INTERRUPTED, "it was interrupted at its end")
        try:
            ended = script.execute(loaded, arguments, args.process_ends)
        finally:
            is_collected = running.end(ended.reason)
        return _status(args, ended, is_collected)


def _status(args: argparse.Namespace, ended: script.Ended, is_collected: bool) -> int:
    """The exit status: the program's own, unless --strict asks for trouble where nothing was collected."""
    return TROUBLE if args.strict and ended.status == FINE and not is_collected else ended.status


def _task(args: argparse.Namespace) -> object:
    """The task that is asked for, by the option or by the file; ``None`` if neither names one."""
    if args.task is not None or args.config is None:
        return args.task
    from probe.common.data_files import read_object

    return read_object(args.config).get("task")


def _refuse(args: argparse.Namespace, task: str, hints: dict[str, str]) -> None:
    """Refuse options that have no meaning for `task`, with what to use instead.

    Raises:
        MsprobeException: one of them was given.
    """
    given = {
        "--level": args.level,
        "--api": args.api,
        "--step": args.step,
        "--summary-mode": args.summary_mode,
        "--step-after": None if args.step_after in (AUTO, OPTIMIZER) else args.step_after,
        "--follow-children": args.follow_children or None,
        "--baseline": args.against,
        "--stop-at": args.stop_at,
    }
    hints = {**hints, "--baseline": "it has no records of calls", "--stop-at": "it belongs to --baseline"}
    for flag, hint in hints.items():
        if given[flag] is not None:
            raise MsprobeException(f"{flag} cannot be used with --task {task}: {hint}.")


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
    from probe.common.config.config import KEYS, TASKS, UNAVAILABLE_LEVELS, UNAVAILABLE_TASKS

    given = {"level": args.level, "dump_path": args.output, "task": args.task, "step": _steps(args.step)}
    given.update(module=args.module_pattern, api=args.api, summary_mode=args.summary_mode)
    given.update(against=args.against, stop_at=args.stop_at)
    level = one_of(*_LEVELS, unavailable={**UNAVAILABLE_LEVELS, "debug": _NEEDS_LINES})
    own = {"level": level, "task": one_of(*TASKS, MONITOR, unavailable=UNAVAILABLE_TASKS)}
    for name, value in given.items():
        if value is not None:
            parse = own[name] if name in own else KEYS[name].parse
            parse(value, Location(_FLAGS[name], name))
    return given


def _steps(text: str | None) -> list[str] | None:
    """``0,10-12`` as the configuration has it."""
    if text is None:
        return None
    return [] if text == "all" else [part for part in re.split(r"[,\s]+", text) if part]
