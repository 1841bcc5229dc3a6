"""How long `msprobe compare` takes for dumps of one program, and for two whose records have no name in common."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import compare_dumps
import compare_speed
import measure

RECORDS = 20_000
_NAMES = {
    "Module.model.layers": "Module.decoder.blocks", "self_attn": "attention", "q_proj": "query", "k_proj": "key",
    "v_proj": "value", "o_proj": "dense", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", ".Linear.": ".Dense.",
    "Functional.": "Ops.", "Tensor.": "Method.", "Torch.": "Call.",
}  # fmt: skip
_RENAMED = re.compile("|".join(map(re.escape, _NAMES)))


def write_renamed(folder: Path, dump: Path) -> None:
    """The dump in the folder `dump` with another name for every record."""
    folder.mkdir(parents=True)
    data = json.loads((dump / "dump.json").read_text(encoding="utf-8"))
    data["data"] = {_renamed(name): record for name, record in data["data"].items()}
    (folder / "dump.json").write_text(json.dumps(data), encoding="utf-8")
    for file in ("stack", "construct"):
        text = (dump / f"{file}.json").read_text(encoding="utf-8")
        (folder / f"{file}.json").write_text(_renamed(text), encoding="utf-8")


def _renamed(text: str) -> str:
    return _RENAMED.sub(lambda found: _NAMES[found[0]], text)


def costs(records: int = RECORDS, repeats: int = 3) -> Iterator[tuple[str, compare_speed.Cost]]:
    """What is compared, and what it costs; the least of `repeats` runs.

    Raises:
        measure.Failed: a comparison failed.
    """
    tools = compare_speed.Tools(None, repeats)
    with tempfile.TemporaryDirectory(prefix="verdicts_") as name:
        folder = Path(name)
        compare_dumps.write_made(folder / "golden", records)
        compare_dumps.write_made(folder / "target", records, compare_speed.APART)
        write_renamed(folder / "renamed", folder / "golden")
        write_renamed(folder / "renamed_apart", folder / "target")
        for what, side in (
            ("the same program, equal numbers", "golden"),
            ("the same program, every number apart", "target"),
            ("no name in common, equal numbers", "renamed"),
            ("no name in common, every number apart", "renamed_apart"),
        ):
            found = tools.compare(folder / side, folder / "golden", name)
            if "ours" not in found:
                raise measure.Failed(f"{what}: the comparison failed.")
            yield what, found["ours"]
