"""The sinks of a configuration: the one place that knows the names of tasks."""

from __future__ import annotations

from typing import Callable

from probe.backends.protocol import FrameworkAdapter
from probe.collect.sinks.sink import Host, Sink
from probe.common.config.config import GRAD_PROBE, Config
from probe.common.interfaces import CallChecker

_WATCHING, _CHECKING = "overflow_check", "free_benchmark"

MakeChecker = Callable[[Config, FrameworkAdapter], CallChecker]


def configured_sinks(config: Config, host: Host, make_checker: MakeChecker) -> list[Sink]:
    """The sinks for the task of a configuration.

    Args:
        config: The settings.
        host: The session.
        make_checker: Makes what checks calls.
    """
    # A program imports the sink of its task, and no other.
    if config.task == GRAD_PROBE:
        return []  # it collects no calls
    if config.task == _CHECKING:
        from probe.collect.sinks.checker import CheckerSink

        return [CheckerSink(make_checker(config, host.adapter), config.dump_path)]
    if config.task == _WATCHING:
        from probe.collect.sinks.ring.sink import RingSink

        return [RingSink(config, host)]
    from probe.collect.sinks.journal.sink import JournalSink

    return [JournalSink(host)]


def why_it_stays(config: Config, new: Config) -> str:
    """The reason why `new` cannot take the place of `config` while the program runs; empty if it can.

    The ranks of a watched training answer each other at steps on which they agreed when they began.
    """
    lasting = next((task for task in (config.task, new.task) if task in (_WATCHING, _CHECKING, GRAD_PROBE)), None)
    if lasting is None:
        return ""
    return (
        f'the configuration of task "{lasting}" stays what it was when the program began; only dump_enable may change.'
    )


def unused_numbers_text(config: Config) -> str:
    """Said where a program gives the loss or the gradient norm of a step and no sink needs it."""
    return f'step(loss=, grad_norm=): task "{config.task}" ignores them; only task "{_WATCHING}" uses them.'
