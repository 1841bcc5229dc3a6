"""``msprobe completion``."""

from __future__ import annotations

import argparse

from probe.api.commands.invocation import FINE, Invocation
from probe.common.errors import MissingDependency

_SHELLS = ("bash", "zsh", "tcsh")


class Completion:
    """Print a script with which a shell completes commands, flags and paths.

    bash: msprobe completion bash > ~/.local/share/bash-completion/completions/msprobe
    zsh: msprobe completion zsh > a folder of $fpath, with the name _msprobe
    """

    name = "completion"
    aliases = ()

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        try:
            import shtab
        except ImportError as error:
            raise MissingDependency("completion needs shtab; run: pip install shtab") from error
        print(shtab.complete(args.parser, args.shell))
        return FINE
