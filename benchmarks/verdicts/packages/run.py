"""Independent packages that implement one network, each pair correct and with faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from judging import Case

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from package_index import GOLDEN, folder_of, pairs_in, read  # noqa: E402

PAIRS = {
    "packages": (
        "litgpt-llama", "litgpt-neox", "timm-vit", "torchvision-vit", "transformers-resnet", "open-clip", "peft-lora",
        "torch-encoder", "mambapy", "megatron-gpt",
    ),
    "torchtune": ("torchtune-llama",),
    "layouts": ("fair-esm", "curated-albert", "curated-mpt", "torchaudio-wav2vec2"),
    "reshapes": ("transformer-lens", "mlp-mixer", "monai-vit"),
    "engine": ("vllm-llama",),
}  # fmt: skip
"""Names of the pairs, by the environment in which they are made."""
REQUIREMENTS = HERE / "requirements"


def make_environment(name: str, folder: Path) -> str:
    """Make an environment with the packages of a list and return its interpreter.

    It takes torch and what else is there from the interpreter that runs this. The lists are complete, so that no
    package brings another torch.
    """
    place = folder / name
    python = place / "bin" / "python"
    marker = place / "complete"
    if marker.exists():
        return str(python)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    mine = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "base.pth").write_text(f"import site; site.addsitedir({mine!r})\n", encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "-r", str(REQUIREMENTS / f"{name}.txt")], check=True)
    marker.touch()
    return str(python)


def make(out: Path, environments: Path) -> None:
    """Make the dumps that are missing, and below `environments` what they need; what cannot be made is said."""
    out.mkdir(parents=True, exist_ok=True)
    for environment, pairs in PAIRS.items():
        wanted = [name for name in pairs if name not in pairs_in(out)]
        try:
            python = make_environment(environment, environments) if wanted else ""
        except subprocess.CalledProcessError as error:
            print(f"not made: {', '.join(wanted)}: {error}", file=sys.stderr)
            continue
        if wanted:
            paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
            command = [python, "-W", "ignore", str(HERE / "package_dumping.py"), str(out), *wanted]
            subprocess.run(
                command, env={**os.environ, **_SETTINGS, "PYTHONPATH": paths}, check=False, stdout=sys.stderr
            )
    missing = [name for pairs in PAIRS.values() for name in pairs if name not in pairs_in(out)]
    if missing:
        print(f"not made: {', '.join(missing)}", file=sys.stderr)


_SETTINGS = {
    "HF_HUB_OFFLINE": "1", "KERAS_BACKEND": "torch", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def cases(out: Path) -> Iterator[Case]:
    """The pairs of which there are dumps."""
    for pair in pairs_in(out):
        for run in read(out, pair):
            for setting in run.settings:
                folder = folder_of(Path("packages"), pair, run.type, setting, run.fault)
                level = setting.partition(":")[0]
                yield Case(
                    "packages", f"{pair}-{run.fault.replace(' ', '_')}-{run.type}@{level}", str(folder),
                    str(folder.parent / GOLDEN), run.where or None, run.type, level, bool(run.where),
                )  # fmt: skip
