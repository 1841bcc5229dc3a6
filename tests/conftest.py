"""The option that chooses a backend, and what of the tests is run; see ``backends/conftest.py`` for the contract suite.

What is parametrised for completeness is marked ``sampled``: a run takes a sample of it, drawn from a seed that it
prints. So is every test with several ``parametrize``: of their product a run takes so many that each line of each
occurs. ``PROBE_TEST_SEED`` draws the same sample again, and ``PROBE_TEST_LONG=1`` takes everything. Where a run repeats
what another environment asks, with ``--repeated``, every test with parameters is run with some of them only.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BACKENDS = sorted(path.stem[len("backend_") :] for path in HERE.glob("backends/support/backend_*.py"))
# Chosen once, so that tests which draw by themselves take the seed that was printed.
SEED = os.environ.setdefault("PROBE_TEST_SEED", str(random.randrange(10**6)))
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
# One thread, in each program that a test starts as well: environments run side by side on few cores, and threads that
# wait for each other take a fifth of the processor time. What the caller sets stays.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROUNDING = (
    "agreement", "api/documentation", "backends/execution", "backends/values", "calls", "common/numerics", "compare",
    "graph", "integrations", "monitor", "overflow", "precheck", "reference", "rerun", "rollout", "runtime_checks",
)  # fmt: skip
"""The folders whose tests look at numbers that kernels computed: `make processors` runs them with other kernels."""


if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # Two environments run at a time, on machines of all kinds: the time of an example says nothing of the code.
    # Other examples are drawn in each run; three times those that are by default where everything is asked for.
    settings.register_profile("probe", deadline=None, max_examples=300 if LONG else 16)
    settings.load_profile("probe")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        metavar="NAME",
        help=f"backend that the tests run over ({', '.join(BACKENDS)}); PROBE_TEST_BACKEND where the option is absent",
    )
    parser.addoption(
        "--framework-only",
        action="store_true",
        help="leave out the tests that need no framework, which the environment `core` runs",
    )

    parser.addoption(
        "--repeated",
        metavar="FOLDERS",
        default="",
        help="folders below tests, with commas: another run takes all parameters of their tests, this one some",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "sampled(least=1, each=True, group=None, lines=False): of this test's parameters, or of the tests of a group, "
        "run a sample of at least so many, in which with `each` every value of every parameter occurs, or with `lines` "
        "every line of every parametrize; PROBE_TEST_LONG=1 runs all",
    )
    config.addinivalue_line("markers", "reliability: in tests/reliability; `make reliability` runs all of it")
    config.addinivalue_line("markers", "rounding: looks at numbers that depend on the kernels of the processor")


def pytest_report_header() -> str:
    return f"samples: {'everything, ' if LONG else ''}PROBE_TEST_SEED={SEED}"


def chosen_backend(config: pytest.Config) -> str | None:
    name: str | None = config.getoption("--backend") or os.environ.get("PROBE_TEST_BACKEND")
    return name


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what needs the framework of another backend: ``test_<name>_*.py`` and the folders ``<name>_only``."""
    chosen = chosen_backend(config)
    folder = re.fullmatch("(.+)_only", collection_path.name)
    if folder and folder[1] in BACKENDS:
        return True if folder[1] != chosen else None
    if not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    file = re.fullmatch(r"test_([a-z]+)_.*\.py", collection_path.name)
    if file and file[1] in BACKENDS:
        return True if chosen and file[1] != chosen else None
    return True if config.getoption("--framework-only") and not in_contract_suite(collection_path) else None


def pytest_collection_finish() -> None:
    """Collections of garbage look at what the tests make, and not at the frameworks each time."""
    gc.collect()
    gc.freeze()


def in_contract_suite(path: Path) -> bool:
    backends = HERE / "backends"
    return backends in path.parents and backends / "shared" not in path.parents


@pytest.fixture(autouse=True)
def defects_of_commands_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise what a command fails by itself; its status is that of a wrong input, and no test may take it for one."""

    def raised(error: Exception) -> str:
        raise error

    # Where the wheel is tested, the package is in an environment of its own.
    if importlib.util.find_spec("probe") is not None:
        monkeypatch.setattr("probe.api.commands.question.defect", raised)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folders, and take the samples, but where single tests are asked for."""
    repeated = tuple(f"{folder}/" for folder in config.getoption("--repeated").split(",") if folder)
    for item in items:
        if item.path.relative_to(HERE).as_posix().startswith(repeated) and item.get_closest_marker("sampled") is None:
            item.add_marker(pytest.mark.sampled(least=1, each=False))
        if item.get_closest_marker("sampled") is None and len(list(item.iter_markers("parametrize"))) > 1:
            item.add_marker(pytest.mark.sampled(lines=True))
        if item.path.relative_to(HERE).as_posix().startswith(tuple(f"{folder}/" for folder in ROUNDING)):
            item.add_marker("rounding")
        if HERE / "reliability" in item.path.parents:
            item.add_marker("reliability")
    if LONG or config.getoption("keyword") or any("::" in argument for argument in config.args):
        return
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker:
            if marker.args or marker.kwargs.keys() - {"least", "each", "group", "lines"}:
                raise pytest.UsageError(f"{item.nodeid}: sampled takes least=, each=, group= and lines=, no more.")
            groups[marker.kwargs.get("group") or item.nodeid.partition("[")[0]].append(item)
    left_out = {item for group in groups.values() for item in group}
    left_out -= {item for name, group in groups.items() for item in sample(name, group)}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def sample(name: str, items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items that are run of a test's, drawn for the seed and the test's name alone."""
    marker = items[0].get_closest_marker("sampled")
    assert marker is not None
    least, each = marker.kwargs.get("least", 1), marker.kwargs.get("each", True)
    drawn = random.Random(f"{SEED} {name}").sample(items, len(items))
    values_in = lines_of if marker.kwargs.get("lines") else values_of
    values = {item: set(values_in(item)) if each else set() for item in drawn}
    missing = set().union(*values.values())
    count = 0
    while drawn and (missing or count < least):
        best = max(drawn, key=lambda item: len(values[item] & missing))
        drawn.remove(best)
        missing -= values[best]
        count += 1
        yield best


def values_of(item: pytest.Item) -> Iterator[Hashable]:
    """The parameters of a test with their values; a dictionary counts as so many parameters."""
    parameters: dict[str, Any] = vars(item)["callspec"].params if hasattr(item, "callspec") else {}
    for name, value in parameters.items():
        for key, one in value.items() if isinstance(value, dict) else [("", value)]:
            yield name, key, repr(one)


def lines_of(item: pytest.Item) -> Iterator[Hashable]:
    """The lines of a test's parametrizations by their names, which are unique in each."""
    yield from enumerate(vars(item)["callspec"]._idlist)
