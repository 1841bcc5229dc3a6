"""What a text of the command line stands for; a wrong one is an error of usage that names its option."""

from __future__ import annotations

import argparse


def path(text: str) -> str:
    """A file or folder; an empty text, as an unset variable of a shell gives it, is none."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; give a file or a folder.")
    return text


def processes(text: str) -> int:
    """A number of processes."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; allowed: 1 and more.")
    return number
