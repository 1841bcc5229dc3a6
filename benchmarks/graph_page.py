"""How quick a graph page is in a browser; for `graph.py`. It needs playwright."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Until the frame after the event is drawn.
_TIMED = """async (key) => {
  const before = performance.now();
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - before;
}"""
_CLICK = """async (selector) => {
  const before = performance.now();
  document.querySelector(selector).click();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - before;
}"""
_SEARCH = """async (text) => {
  const box = document.querySelector("#search"), hits = document.querySelector("#hits"), old = hits.textContent;
  const before = performance.now();
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  while (hits.textContent === old && performance.now() - before < 10000) await new Promise(requestAnimationFrame);
  return performance.now() - before;
}"""
_SCROLL = """async () => {
  const box = document.querySelector("#scroll"), frames = [];
  let last = performance.now();
  for (let step = 0; step < 60; step++) {
    box.scrollTop = (box.scrollHeight - box.clientHeight) * step / 60;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return frames.sort((a, b) => a - b);
}"""
_REPEATS = 3


def page_times(page: Path, browser: str) -> dict[str, float]:
    """Milliseconds of what a person does on a page; the least of a few.

    Args:
        page: the HTML file.
        browser: Chromium.
    """
    from playwright.sync_api import sync_playwright

    found: list[dict[str, float]] = []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for _ in range(_REPEATS):
            tab = launched.new_page(viewport={"width": 1280, "height": 900})
            found.append(_times(tab, page))
            tab.close()
        launched.close()
    return {name: min(each[name] for each in found) for name in found[0]}


def _times(tab: Any, page: Path) -> dict[str, float]:
    # The clock of the page begins when its address is opened.
    tab.add_init_script(
        "new MutationObserver(() => document.documentElement?.dataset.ready && (window.readyAt ??= performance.now()))"
        ".observe(document, { subtree: true, attributes: true, childList: true });"
    )
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]", timeout=60_000)
    times = {"page ready": float(tab.evaluate("readyAt"))}
    times["next problem (n)"] = float(tab.evaluate(_TIMED, "n"))
    times["first divergence (f)"] = float(tab.evaluate(_TIMED, "f"))
    times["open all"] = float(tab.evaluate(_CLICK, "#all"))
    times["search and its hits"] = float(tab.evaluate(_SEARCH, "down_proj backward"))
    times["next hit (Enter)"] = float(tab.evaluate(_TIMED, "Enter"))
    frames = tab.evaluate(_SCROLL)
    times["scroll, median frame"] = float(frames[len(frames) // 2])
    times["scroll, worst frame"] = float(frames[-1])
    return times
