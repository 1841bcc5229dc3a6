"""What somebody could write into a dump so that a script made of it does something else."""

from __future__ import annotations

import ast

TEXTS = (
    '"""; import os; os.system("touch pwned"); """',
    "'''; __import__('os').system('touch pwned'); '''",
    'x"); __import__("os").system("touch pwned"); ("',
    "x'); __import__('os').system('touch pwned'); ('",
    "a\n__import__('os').system('touch pwned')\n#",
    "a\r__import__('os').system('touch pwned')\x0c\x00\u2028",
    "# \\",
    '\\"""',
    '\\\\"""\\',
    '""""',
    "\\N{BULLET} \\x00 \\u12",
    "\u202e \U0001f600",
    '" ' + "word " * 60 + "'",
)


def calls(text: str) -> set[str]:
    """What a script calls, as it is written there; it is compiled first."""
    tree = ast.parse(text)
    compile(tree, "script", "exec")
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def imported(text: str) -> set[str]:
    """What it imports."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {alias.name for node in nodes for alias in node.names}
