"""``msprobe replay``."""

from __future__ import annotations

import argparse
from typing import Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Question
from probe.common.progress import ProgressCallback

_SEED = 1234


class ReplayCommand(Question):
    """Run one recorded call again: what was recorded, what comes of it now, and what high precision gives.

    DUMP is a dump.json or its folder, RECORD a call of it such as Functional.silu.0, with .forward or .backward behind
    it for that direction alone. The status is 0 if the results are as exact as they can be, 1 if one is wrong, 2 if the
    call cannot be run.
    """

    name = "replay"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("dump", metavar="DUMP", type=arguments.path, help="a dump of level L1 or mix")
        add("record", metavar="RECORD", help="the call, such as Functional.silu.0")
        add("-d", "--device", metavar="DEVICE", default="", help="cpu, cuda:0, npu:0 (the accelerator, else cpu)")
        add("--emit", metavar="FILE", type=arguments.path, help="write a script that runs it without this package")
        add("--minimise", action="store_true", help="make the inputs smaller while the call still fails")
        add("--seed", metavar="N", type=int, default=_SEED, help=f"of generated inputs ({_SEED})")
        arguments.add_max_memory(parser)
        arguments.add_fail_on(parser, "suspect", "suspect")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.api.replaying import replay

        how: dict[str, Any] = {
            "emit": args.emit,
            "minimise": args.minimise,
            "seed": args.seed,
            "max_memory": args.max_memory,
        }
        found = replay(args.dump, args.record, args.device, **how)
        is_failed = found.is_wrong or (args.fail_on == "suspect" and found.is_suspect)
        return Answer(lambda: str(found).split("\n"), found.as_json, args.fail_on != "never" and is_failed)
