"""How many pairs of launch settings `config_check` judges rightly: ``python benchmarks/launch_settings.py``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from launches.judged import SETS, answer, is_right


def main() -> None:
    """Print the wrong answers and the numbers."""
    for title, pairs in SETS.items():
        right = answers = 0
        for pair in pairs:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = answer(pair, Path(folder))
                except (AssertionError, OSError):
                    found = {"answer": "refused", "checks": {}}
            answers += found["answer"] == ("error" if pair.meaning else "pass")
            if is_right(pair, found):
                right += 1
                continue
            print(f"{title}: {pair.name!r}: {found['answer']}, right: {pair.meaning or 'pass'}")
            for check in found["checks"].values():
                for row in check["rows"]:
                    print(f"    {row['level']}: {row['name']}: {row['golden']} / {row['target']}: {row['why']}")
        print(f"{title}: {right} of {len(pairs)} right; the answer alone: {answers}")


if __name__ == "__main__":
    main()
