"""Configurations that tests change and load."""

from __future__ import annotations

import json
import re
from pathlib import Path

from probe.common.config.config import load_config

GOOD = {"task": "statistics", "dump_path": "./dump", "level": "L1", "step": [], "rank": [], "statistics": {}}
MODULES = ["Module.a.B.forward.0", "Module.c.D.forward.0"]
APIS = ["Functional.relu.0.forward", "Functional.relu.1.backward"]
NUMBERS = 'whole numbers from 0 to 1000000, also as text: "3", or "4-6" for 4, 5 and 6'


GOLDEN = Path(__file__).parents[1] / "common" / "config" / "answers.txt"
"""A line for each configuration: what it has besides a good one, ``warning`` or the class of the error, the message."""
ANSWERS = [line.split("\t") for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def write(content, name="config.json"):
    with open(name, "w", encoding="utf-8") as stream:
        json.dump(content, stream)
    return name


def load(changes=(), **arguments):
    """A good configuration with `changes`; the value ``...`` removes a key."""
    content = {key: value for key, value in {**GOOD, **dict(changes)}.items() if value is not ...}
    return load_config(write(content), **arguments)


def exactly(text):
    return f"^{re.escape(text)}$"
