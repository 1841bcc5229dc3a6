"""A real browser: the Chromium of the system, without a display and without the network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from waiting import until

_SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

SHARE = 24
"""So many of the tests run, others each time: each opens a page, which takes a second. `make reliability` runs all."""

Open = Callable[..., Any]
"""Opens a file: `open_page(path, fragment="", width=1280, **context)`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sampled(least=SHARE, each=False, group="pages in a browser"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (apt-get install chromium): the page is not tried in a browser")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_SWITCHES))
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens pages; at the end none of them may have complained or asked for more than its own files."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def opened(path: Path, fragment: str = "", width: int = 1280, height: int = 800, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, permissions=["clipboard-read", "clipboard-write"], **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))

        def check(request: Any) -> None:
            if not request.url.startswith(("blob:", path.parent.as_uri())):
                complaints.append(f"request: {request.url}")

        page.on("request", check)
        page.goto(path.as_uri() + fragment)
        until(page, "document.documentElement.dataset.ready === '1'")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
