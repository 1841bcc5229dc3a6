"""Makes the pictures of the README and of docs/graph.md: commands write the pages, a browser shows each kind of view.

    python benchmarks/graph_pairs.py --out DIR --mindspore PYTHON      # real pairs of runs; needs torch
    python docs/pictures.py --pairs DIR --browser /usr/bin/chromium    # needs playwright

The picture of the README is made of its two runs, the others of the recorded dumps in tests/graph/cases.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
RECORDED = ROOT / "tests" / "graph" / "cases" / "dumps"
WIDTH, HEIGHT = 1200, 560
LARGEST = 120_000
"""Bytes of one picture."""
# Where a library or this checkout lies on a machine is no one's business.
_PLACES = re.compile(r"(?<=File )\S*/(?=(?:site-packages|benchmarks|tests)/)")


@dataclass(frozen=True)
class Picture:
    """A page, and what is done in it before it is drawn.

    Args:
        targets: folders of dumps, of recorded dumps, or of --pairs where they begin with ``dumps/``.
        golden: the same.
        act: what a person does.
    """

    targets: tuple[str, ...]
    golden: str
    act: Callable[[Any], None] = lambda page: None


def _tab(name: str) -> Callable[[Any], None]:
    return lambda page: page.locator("#tabs").get_by_role("button", name=name, exact=True).click()


def _boxes(page: Any) -> None:
    page.keyboard.press("b")
    page.get_by_role("button", name="Up", exact=True).click()


_TRAININGS = "dumps/{}/mix-statistics/{}"
_BFLOAT16 = "bfloat16-llama-fault"
_RANKS = "ranks-fault-qwen2"
# Recorded dumps are those of msProbe, without sketches: of the pairs distances are measured.
_ROLLED = [_TRAININGS.format("attention-rolled-q-vit", f"{side}/step0") for side in ("target", "golden")]
_PORT = "dumps/ports/mindspore-port_llama-mindspore-torch-port_llama-dtype", "dumps/ports/torch-port_llama"

_RUNS = {"golden": "1e-5", "changed": "1e-2"}
"""The runs of the README, each with the argument of examples/train.py."""

VIEWS = {
    "first_result": Picture(("changed",), "golden"),
    "outline": Picture((_ROLLED[0],), _ROLLED[1]),
    "boxes": Picture((_ROLLED[0],), _ROLLED[1], _boxes),
    "overflow": Picture(("llama_nan",), "llama", _tab("Overflow")),
    "several": Picture(("llama_weight", "llama_nan", "llama_three_layers"), "llama", _tab("Several targets")),
    "bfloat16": Picture((_TRAININGS.format(_BFLOAT16, "target/step0"),), _TRAININGS.format(_BFLOAT16, "golden/step0")),
    "matrix": Picture((_TRAININGS.format(_RANKS, "target"),), _TRAININGS.format(_RANKS, "golden")),
    "frameworks": Picture(_PORT[:1], _PORT[1]),
}


# The browser writes pictures quickly and not small: its pixels are packed again, with a palette.
_PIXELS = """async (shot) => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64," + shot)).blob());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  let text = "";
  for (let at = 0; at < data.length; at += 30000) text += String.fromCharCode(...data.subarray(at, at + 30000));
  return btoa(text);
}"""


def small_png(pixels: bytes, width: int, height: int) -> bytes:
    """RGBA pixels as a PNG of the 256 colours that are met most, each other one as the nearest of them."""
    colours = np.frombuffer(pixels, np.uint8).reshape(-1, 4)[:, :3]
    different, places, counts = np.unique(colours, axis=0, return_inverse=True, return_counts=True)
    most = different[np.argsort(-counts, kind="stable")[:256]]
    nearest = [int(np.abs(most.astype(int) - colour).sum(axis=1).argmin()) for colour in different.astype(int)]
    rows = np.array(nearest, np.uint8)[places.reshape(-1)].reshape(height, width)
    lines = np.hstack([np.zeros((height, 1), np.uint8), rows])
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", most.tobytes()), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def copied(name: str, pairs: Path | None, folder: Path) -> str:
    """Copy a dump below `folder`, or make it, without the places of this machine; its path there."""
    if name in _RUNS:
        shutil.copy(ROOT / "examples" / "train.py", folder)
        command = [sys.executable, "-m", "probe.api.cli", "run", "-q", "-o", name, "train.py", _RUNS[name]]
        subprocess.run(
            command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
        )
        source = folder / name
    elif name.startswith("dumps/"):
        assert pairs is not None
        source = pairs / name
        place = Path(*Path(name).parts[1:]).parts
        name = "/".join(part for part in place if part != "mix-statistics")
    else:
        source = RECORDED / name
    if not (folder / name).exists():
        shutil.copytree(source, folder / name)
    for file in (folder / name).rglob("stack.json"):
        file.write_text(_PLACES.sub("", file.read_text(encoding="utf-8")), encoding="utf-8")
    return name


def page_of(picture: Picture, pairs: Path | None, folder: Path, output: str) -> Path:
    """The page of a picture."""
    command = [sys.executable, "-m", "probe.api.cli", "graph_visualize", "-o", output, "--strip_paths", f"{folder}/"]
    for target in picture.targets:
        command += ["-tp", str(folder / copied(target, pairs, folder))]
    command += ["-gp", str(folder / copied(picture.golden, pairs, folder))]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    (found,) = (folder / output).glob("*.html")
    return found


def draw(browser: Any, page: Path, picture: Picture, file: Path) -> None:
    """Open a page, do what the picture shows, and write it."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")
    picture.act(tab)
    tab.wait_for_timeout(300)  # Long lists are drawn in the next frame.
    pixels = browser.new_page()
    shot = base64.b64encode(tab.screenshot()).decode()
    file.write_bytes(small_png(base64.b64decode(pixels.evaluate(_PIXELS, shot)), WIDTH, HEIGHT))
    pixels.close()
    tab.close()
    if file.stat().st_size > LARGEST:
        raise SystemExit(f"{file} has {file.stat().st_size} bytes; allowed: {LARGEST}.")


def main(arguments: Sequence[str]) -> int:
    """Make the pictures that there are runs for."""
    parser = argparse.ArgumentParser(description="Makes the pictures of docs/graph.md.")
    parser.add_argument("--pairs", type=Path, metavar="DIR", help="where graph_pairs.py left its dumps")
    parser.add_argument("--browser", default="/usr/bin/chromium", metavar="CHROMIUM", help="the browser")
    parser.add_argument("--only", nargs="+", choices=VIEWS, default=list(VIEWS), metavar="NAME")
    options = parser.parse_args(arguments)
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    pairs = options.pairs and options.pairs.resolve()
    with tempfile.TemporaryDirectory(prefix="pictures_") as temporary, sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-lcd-text"]
        browser = playwright.chromium.launch(executable_path=options.browser, args=flags)
        for name in options.only:
            picture = VIEWS[name]
            if pairs is None and picture.golden.startswith("dumps/"):
                print(f"{name}: left out, as there is no --pairs")
                continue
            page = page_of(picture, pairs, Path(temporary).resolve(), name)
            draw(browser, page, picture, PICTURES / f"{name}.png")
            print(f"{name}: {(PICTURES / f'{name}.png').stat().st_size} bytes")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
