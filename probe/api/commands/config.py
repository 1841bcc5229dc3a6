"""``msprobe config`` and ``msprobe completion``: files that help to write a configuration and a command line."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from probe.api.commands import arguments
from probe.api.commands.question import FINE, Answer, Invocation, Question
from probe.common import files
from probe.common.config.config import TASKS
from probe.common.config.schema import schema, template
from probe.common.errors import MissingDependency, MsprobeException
from probe.common.progress import ProgressCallback

_SCHEMA_FILE = "config.schema.json"


class ConfigTemplate(Question):
    """Print a configuration file with all keys of a task, each with its default.

    With -o the file goes to a folder, with a JSON Schema next to it by which editors complete keys and mark wrong
    values. The meaning of each key is in the schema.
    """

    name = "config"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-t", "--task", choices=TASKS, default=TASKS[0], help=f"the kind of collection ({TASKS[0]})")
        add("-o", "--output_path", metavar="DIR", type=arguments.path, help="folder for config.json and its schema")
        add("--schema", action="store_true", help="print the JSON Schema alone")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        content = schema() if args.schema else template(args.task)
        if args.output_path is None:
            return Answer(lambda: _text(content).splitlines(), lambda: {"content": content, "file": None})
        path = os.path.join(args.output_path, "config.json")
        if os.path.lexists(path):
            raise MsprobeException(f"{path} exists already; give another folder, or remove it.")
        files.make_folder(args.output_path)
        written = {_SCHEMA_FILE: schema(), "config.json": {"$schema": f"./{_SCHEMA_FILE}", **template(args.task)}}
        for name, each in written.items():
            with files.open_for_writing(os.path.join(args.output_path, name)) as stream:
                stream.write(_text(each).encode() + b"\n")
        return Answer(lambda: [path], lambda: {"content": content, "file": path})


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=4)


# --- completion


_SHELLS = ("bash", "zsh", "tcsh")


class Completion:
    """Print a script with which a shell completes commands, flags and paths.

    bash: msprobe completion bash > ~/.local/share/bash-completion/completions/msprobe
    zsh: msprobe completion zsh > a folder of $fpath, with the name _msprobe
    """

    name = "completion"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        try:
            import shtab
        except ImportError as error:
            raise MissingDependency("completion needs shtab; run: pip install shtab") from error
        print(shtab.complete(args.parser, args.shell))
        return FINE
