"""``msprobe replay``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.common.errors import MsprobeException
from probe.common.terminal_text import print_text

if TYPE_CHECKING:
    from probe.api.replaying import Replay as Found

_AGREES, _REFUSED, _WRONG = 0, 1, 3
_SEED = 1234


class Replay:
    """Run one recorded call again: what was recorded, what comes of it now, and what high precision gives.

    DUMP is a dump.json or its folder, RECORD a call of it such as Functional.silu.0, with .forward or .backward behind
    it for that direction alone. The status is 0 where the results agree, 3 where one is wrong, 1 where the call cannot
    be run, 2 for a wrong command.
    """

    name = "replay"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("dump", metavar="DUMP", type=arguments.path, nargs="?", help="what was collected at level L1 or mix")
        add("record", metavar="RECORD", nargs="?", help="the call, such as Functional.silu.0")
        add("-d", "--device", metavar="DEVICE", default="", help="cpu, cuda:0, npu:0 (the accelerator, else cpu)")
        add("--emit", metavar="FILE", type=arguments.path, help="write a script that runs it without this package")
        add("--minimise", action="store_true", help="make the inputs smaller while the call still fails")
        add("--seed", metavar="N", type=int, default=_SEED, help=f"of generated inputs ({_SEED})")
        add(
            "--operator_config", metavar="FILE", type=arguments.path,
            help="take dump and record from msProbe's configuration of a single-operator script, and write that script",
        )  # fmt: skip
        add("-o", "--output_path", metavar="DIR", type=arguments.path, default="./", help="for that script (./)")
        add("--json", action="store_true", help="print the result as JSON")
        self._error = parser.error

    def run(self, args: argparse.Namespace) -> int:
        given = [args.dump, args.record]
        if args.operator_config is not None and any([*given, args.emit]):
            self._error("--operator_config has the dump, the record and the script; give it alone")
        if args.operator_config is None and not all(given):
            self._error("DUMP and RECORD are needed, or --operator_config")
        try:
            return self._show(args)
        except (MsprobeException, OSError) as error:
            print_text(f"msprobe {self.name}: {error}", sys.stderr)
            return _REFUSED

    def _show(self, args: argparse.Namespace) -> int:
        with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
            found = self._replay(args)
        if args.json:
            print(json.dumps(found.as_json(), allow_nan=False, indent=1))
        else:
            for text in str(found).split("\n"):
                print_text(text)
        return _WRONG if found.is_wrong else _AGREES

    def _replay(self, args: argparse.Namespace) -> Found:
        from probe.api.replaying import replay, replay_operator

        if args.operator_config is not None:
            return replay_operator(args.operator_config, args.output_path, args.device, args.minimise)
        return replay(args.dump, args.record, args.device, emit=args.emit, minimise=args.minimise, seed=args.seed)
