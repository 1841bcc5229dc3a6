"""A debugger under load: many records, a large tensor, a deep model, many steps. Prints what each takes.

    python tests/reliability/load.py records --count 1000000
    python tests/reliability/load.py tensor --mib 2048 [--checksum]
    python tests/reliability/load.py deep --modules 400 --level mix
    python tests/reliability/load.py steps --count 10000

Memory is that of the process, from /proc/self/status; time is CPU time. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import debugger_load  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("records").add_argument("--count", type=int, default=1_000_000)
    of_tensor = kinds.add_parser("tensor")
    of_tensor.add_argument("--mib", type=int, default=2048)
    of_tensor.add_argument("--checksum", action="store_true")
    of_deep = kinds.add_parser("deep")
    of_deep.add_argument("--modules", type=int, default=400)
    of_deep.add_argument("--level", default="mix")
    of_deep.add_argument("--task", default="statistics")
    kinds.add_parser("steps").add_argument("--count", type=int, default=10_000)
    arguments = vars(parser.parse_args())
    found = getattr(debugger_load, arguments.pop("kind"))(**arguments)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
