"""One contract suite, run over the backend that ``--backend`` or ``PROBE_TEST_BACKEND`` names.

What a backend is known not to do stands in ``<name>-xfails.txt``, and what only one release of its framework does not
in ``<name>-<release>-xfails.txt``: a part of a test's id per line, the reason in the comment above it. A list is strict
both ways: a test that starts to pass and an entry that no test has any more fail the run, so a line can neither outlive
its reason nor hide a renamed test.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dumped
import pytest

HERE = Path(__file__).parent


GROUPS = {
    "execution/": "execution",
    "runs/test_free_benchmark.py": "execution",
    "values/test_single_save.py": "execution",
    "runs/test_config_checker.py": "settings",
    "runs/test_environment.py": "settings",
    "runs/test_module_settings.py": "settings",
    "runs/test_updates.py": "settings",
    "runs/test_grad_probe.py": "trends",
    "runs/test_monitor.py": "trends",
}
"""What needs an optional group of the adapter; all the rest is the core of the contract."""


def chosen_backend(config: pytest.Config) -> str:
    """Return the name of the backend; without one there is nothing to test and saying nothing would look green."""
    name = config.getoption("--backend") or os.environ.get("PROBE_TEST_BACKEND")
    known = sorted(path.stem[len("backend_") :] for path in (HERE / "support").glob("backend_*.py"))
    if name not in known:
        raise pytest.UsageError(
            f"tests/backends needs a backend, not {name!r}: give --backend NAME or set PROBE_TEST_BACKEND; "
            f"allowed: {', '.join(known)}. To leave these tests out: --ignore=tests/backends."
        )
    return name


def read_xfails(path: Path) -> dict[str, str]:
    """Return ``{part of a test id: reason}``; an entry without a comment right above it is an error."""
    entries: dict[str, str] = {}
    reason: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else [], 1):
        text = line.strip()
        if text.startswith("#"):
            reason.append(text.lstrip("# "))
        elif not text:
            reason = []
        elif not reason:
            raise pytest.UsageError(f'{path.name}:{number}: "{text}" has no reason in a comment above it.')
        elif text in entries:
            raise pytest.UsageError(f'{path.name}:{number}: "{text}" stands there twice.')
        else:
            entries[text] = " ".join(reason)
    return entries


def whole_suite(config: pytest.Config) -> bool:
    """Whether all of this folder was asked for, and not one file or test of it."""
    asked = [Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args]
    return any(path in (HERE, *HERE.parents) for path in asked) and not config.getoption("lf")


# First, before -k and -m take tests away: an entry is stale only when no test has its name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents and HERE / "shared" not in item.path.parents]
    if not ours:
        return
    name = chosen_backend(config)
    adapter = backend_class(name)().adapter
    missing = tuple(str(HERE / part) for part, group in GROUPS.items() if getattr(adapter, group) is None)
    if missing:
        items[:] = [item for item in items if not str(item.path).startswith(missing)]
    for path in (HERE / f"{name}-xfails.txt", HERE / f"{name}-{backend_class(name).release}-xfails.txt"):
        entries = read_xfails(path)
        unmatched = set(entries)
        for item in ours:
            for entry, reason in entries.items():
                if entry in item.nodeid:
                    unmatched.discard(entry)
                    item.add_marker(pytest.mark.xfail(reason=f"{path.name}: {reason}", strict=True))
        if unmatched and whole_suite(config):
            raise pytest.UsageError(f"{path.name}: no test matches {', '.join(sorted(unmatched))}; remove the line.")


def backend_class(name: str) -> Any:
    """What the tests need of a framework: ``Backend`` from ``backend_<name>.py`` in this folder."""
    return importlib.import_module(f"backend_{name}").Backend


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> Any:
    return backend_class(chosen_backend(pytestconfig))()


class Runs:
    """Debuggers of one test, each as a new process would find it, and what they wrote."""

    def __init__(self, backend: Any, folder: Path) -> None:
        self.backend = backend
        self.path = folder / "dump"
        self.config = folder / "config.json"
        self.errors_expected = False
        """Whether failures of the tool are part of the test."""
        self._debuggers: list[Any] = []

    def new(self, dump_path: Path | None = None, arguments: dict[str, Any] | None = None, **settings: Any) -> Any:
        """A debugger with `settings` in its file; what belongs to a task's section goes there by itself.

        Unless told otherwise every API is collected, not only those of some risk classes.
        """
        self.write_config(dump_path, **settings)
        debugger = self.backend.new_debugger_class()(str(self.config), **(arguments or {}))
        self._debuggers.append(debugger)
        return debugger

    def write_config(self, dump_path: Path | None = None, **settings: Any) -> None:
        top = ("task", "level", "step", "rank", "async_dump", "dump_enable", "extra_info", "precision", "risk_level")
        top += ("max_gib", "log_level", "environment")
        content = {"task": "statistics", "level": "L1", "risk_level": "ALL", "dump_path": str(dump_path or self.path)}
        content.update({key: value for key, value in settings.items() if key in top})
        content[content["task"]] = {key: value for key, value in settings.items() if key not in top}
        aside = self.config.with_suffix(".new")
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.replace(self.config)

    def read(self, step: int = 0, process: str = "proc*") -> dumped.Dump:
        return dumped.read(self.path, step, process)

    def end(self) -> None:
        """End all collection, so that nothing is left in this process for the next test."""
        for debugger in self._debuggers:
            debugger.reset()
        self._debuggers = []


@pytest.fixture
def runs(backend: Any, tmp_path: Path) -> Iterator[Runs]:
    """Ways to collect and to read what was collected."""
    runs = Runs(backend, tmp_path)
    yield runs
    runs.end()
    # The tool's own failures never reach the program, so a test must look for them or they stay unseen.
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("dump_error_info.log")}
    assert runs.errors_expected or not found, f"the tool failed: {found}"
    for path in tmp_path.rglob("*.json"):
        if path.stem in ("dump", "stack", "construct", "debug"):
            dumped.read_file(path)
