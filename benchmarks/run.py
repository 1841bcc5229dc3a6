"""A short run of every benchmark, which is what ``tox run -e benchmark`` does. It prints; it never fails by time.

    python benchmarks/run.py [--backend NAME] [--real PYTHON]

With a backend other than ``torch`` it is the overhead alone.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import commands
import device
import measure
import overhead
import records
import statistics_bandwidth


def main() -> int:
    parser = argparse.ArgumentParser(description="A short run of every benchmark.")
    parser.add_argument("--backend", type=measure.check_backend, default="torch")
    parser.add_argument("--real", metavar="PYTHON", help="interpreter with another tool of the same import name")
    options = parser.parse_args()
    backend = ["--backend", options.backend]
    real = ["--real", options.real] if options.real else []
    failed = 0
    benchmarks: list[tuple[str, Any, list[str]]] = [
        ("Overhead", overhead, ["--sizes", "small", "medium", "--steps", "8", "--repeats", "1", *real])
    ]
    if options.backend == "torch":
        benchmarks += [
            ("Records", records, ["--calls", "500", "5000", "--repeats", "2", *real]),
            ("Bandwidth of the statistics", statistics_bandwidth, ["--elements", "1000", "100000", "1000000"]),
        ]
    for title, benchmark, arguments in benchmarks:
        print(f"\n# {title}\n", flush=True)
        failed |= benchmark.main([*backend, *arguments])
    if options.backend == "torch":
        print("\n# Device\n", flush=True)
        failed |= device.main(["--repeats", "3"])
        print("\n# Commands\n", flush=True)
        failed |= commands.main(real)
    return failed


if __name__ == "__main__":
    sys.exit(main())
