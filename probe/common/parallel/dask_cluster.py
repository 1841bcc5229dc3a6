"""Tasks done on a dask cluster that is there already. Its workers read the dumps and write the tables."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from probe._version import __version__
from probe.common.errors import MissingDependency, MsprobeException
from probe.common.parallel.tasks import Done, Outcome, Outcomes, ProcessDied, Result, Task, attempt_elsewhere

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE_S = 10
"""The time that a scheduler may take to answer, and then its first worker to appear."""


def on_cluster(
    address: str, work: Callable[[Task], Result], tasks: Sequence[Task], done: Done | None = None
) -> Outcomes[Result]:
    """Do `tasks` on the cluster whose scheduler is at `address`; outcomes come in the order of the tasks.

    Raises:
        MissingDependency: distributed is not installed.
        MsprobeException: there is no cluster, it has no workers, or it is lost meanwhile.
    """
    client = _client(address)
    from distributed import CancelledError, KilledWorker

    with _logged_once(), client:
        _check_workers(client, address)
        # Impure: that a table was written before is no reason not to write it again.
        futures = client.map(partial(attempt_elsewhere, work), tasks, pure=False)
        if done is not None:
            for future in futures:
                future.add_done_callback(lambda _: done())
        try:
            for future in futures:
                try:
                    yield future.result()
                except KilledWorker as error:
                    text = f"every worker that tried it died, {error.allowed_failures + 1} of them; their logs say why."
                    yield Outcome(error=ProcessDied(text))
        except CancelledError:
            raise MsprobeException(f"--dask {address}: the cluster is gone, or has cancelled the work.") from None
        finally:
            # Work left over when this is closed early.
            client.cancel(futures)


def _check_workers(client: Client, address: str) -> None:
    from distributed import TimeoutError as Late

    try:
        client.wait_for_workers(1, timeout=_PATIENCE_S)
    except (Late, TimeoutError):
        # The class depends on the release, and on Python's.
        raise MsprobeException(f"--dask {address}: the cluster has no worker; start one.") from None
    try:
        # The scheduler reads what is submitted too; what is run is run by every worker.
        client.submit(_version, pure=False).result()
        versions = client.run(_version)
    except Exception as error:
        # Of whatever class the failed import there comes as.
        raise MsprobeException(
            f"--dask {address}: scheduler and workers need msprobe {__version__} too: {_innermost(error)}."
        ) from None
    for worker, version in versions.items():
        if version != __version__:
            raise MsprobeException(f"--dask {address}: {worker} has msprobe {version}, and here it is {__version__}.")


def _version() -> str:
    return __version__


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


@contextmanager
def _logged_once() -> Iterator[None]:
    """A lost connection is one error of ours and no log of distributed's."""
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _client(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError:
        raise MissingDependency("--dask needs dask's distributed: pip install 'dask[distributed]'.") from None
    try:
        return Client(address, timeout=_PATIENCE_S, set_as_default=False)
    except (OSError, ValueError, MemoryError) as error:
        # The last one where another protocol's answer is taken for the length of a message.
        reason = str(error)
    # Not inside the clause above: while the error is alive so is the client, which then hangs when the program ends.
    # And now: freed while another client starts, it waits for a lock that this one holds.
    gc.collect()
    raise MsprobeException(f"--dask {address}: no scheduler of dask answers there: {reason.rstrip('.')}.")
