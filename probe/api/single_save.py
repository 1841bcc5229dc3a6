"""``SingleSave``, values that a script saves by name, and ``SingleComparator``, two such folders compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Union

from probe.api.rules import rules_for
from probe.backends import loader
from probe.backends.protocol import execution_of
from probe.common import log
from probe.common.errors import MsprobeException
from probe.common.interfaces import StatisticsMode

if TYPE_CHECKING:
    from probe.backends.protocol import FrameworkAdapter
    from probe.rollout.saver import Saver
    from probe.rollout.tables import Tables

Path = Union[str, "os.PathLike[str]"]
_BACKENDS = {"pytorch": "torch", "mindspore": "mindspore"}


class SingleSave:
    """Saves values by name, for a comparison with those of another program.

    There is one for each process, and every method may be called on the class. Values are copied when they are given,
    and a thread writes them. No method but the constructor raises: a failure is logged once, and the training goes on.

    Args:
        dump_path: The folder. Values go to ``data/<key>/step<S>/rank<R>/micro_step<M>``.
        fmk: ``pytorch`` or ``mindspore``; both mean the tensors of an MSAdapter in a program whose torch is one.

    Raises:
        MsprobeException: this process has one already, or `fmk` is another word.
        FileCheckException: the folder cannot be made.

    Example:
        >>> SingleSave("rollout")  # doctest: +SKIP
        >>> SingleSave.save({"old_log_prob": log_probs, "mask": mask})  # doctest: +SKIP
        >>> SingleSave.step()  # doctest: +SKIP
    """

    _saver: ClassVar[Saver | None] = None

    def __init__(self, dump_path: Path, fmk: str = "pytorch") -> None:
        if SingleSave._saver is not None:
            raise MsprobeException(
                f"this process has a SingleSave already, which saves to {SingleSave._saver.path}; call "
                "SingleSave.save() and SingleSave.step() on the class."
            )
        if fmk not in _BACKENDS:
            raise MsprobeException(f"fmk is {fmk!r}; allowed: {', '.join(_BACKENDS)}.")
        # numpy, which a script that saves nothing need not wait for.
        from probe.rollout.saver import Saver

        adapter = loader.serve(_BACKENDS[fmk])
        rules = rules_for("saving", None)
        if isinstance(rules, type):
            rules = rules(lambda values, dtype: _statistics(adapter, values, dtype))
        host = _Host(adapter)
        SingleSave._saver = Saver(os.fspath(dump_path), host, adapter.rank, rules)

    @classmethod
    def save(cls, data: Mapping[str, Any]) -> None:
        """Save values by name. The number of the micro step is that of earlier saves of the key in this step.

        Args:
            data: Tensors, arrays, numbers, texts and ``None`` in any nesting.
        """
        if (saver := cls._made("save")) is not None:
            saver.save(data)

    @classmethod
    def save_ex(cls, data: Mapping[str, Any], micro_batch: int = 0) -> None:
        """Save values by name, with the number of the micro step."""
        if (saver := cls._made("save_ex")) is not None:
            saver.save(data, micro_batch)

    @classmethod
    def step(cls) -> None:
        """Begin the next step."""
        if (saver := cls._made("step")) is not None:
            saver.step()

    @classmethod
    def save_config(cls, configurations: Any) -> None:
        """Write a configuration to ``configurations.json``."""
        if (saver := cls._made("save_config")) is not None:
            saver.save_config(configurations)

    @classmethod
    def flush(cls) -> None:
        """Wait until everything is written. The end of the program does so as well."""
        if (saver := cls._made("flush")) is not None:
            saver.flush()

    @classmethod
    def close(cls) -> None:
        """Write everything, and let the next `SingleSave` have another folder."""
        saver, SingleSave._saver = SingleSave._saver, None
        if saver is not None:
            saver.close()

    @classmethod
    def _made(cls, method: str) -> Saver | None:
        saver = SingleSave._saver
        if saver is None:
            log.error(f"SingleSave.{method}() saves nothing: call SingleSave(dump_path) first.")
        return saver


class _Host:
    """The tensors of a framework, as `probe.rollout.saved_folders` asks for them."""

    def __init__(self, adapter: FrameworkAdapter) -> None:
        self.is_tensor = adapter.tensors.is_tensor
        self.values = execution_of(adapter).values
        self.dtype_name = execution_of(adapter).dtype_name


def _statistics(adapter: FrameworkAdapter, values: Any, dtype: str) -> tuple[Any, Any, Any, Any]:
    """Max, min, mean and norm as a dump has them."""
    tensors = adapter.tensors
    entry = tensors.describe_tensor(execution_of(adapter).tensor(values, dtype, "cpu"), StatisticsMode())
    if tensors.pending():
        tensors.resolve()
    return entry["Max"], entry["Min"], entry["Mean"], entry["Norm"]


class SingleComparator:
    """Compares what `SingleSave` wrote in two programs."""

    @classmethod
    def compare(
        cls,
        dir1: Path,
        dir2: Path,
        output_path: Path = "./msprobe_compare_output",
        num_processes: int = 8,
        *,
        rules: str | None = None,
        headers: str = "msprobe",
    ) -> Tables:
        """Write a workbook ``<key>.xlsx`` for each value.

        Args:
            dir1: The folder of one program.
            dir2: The folder of the other one.
            output_path: The folder for the tables.
            num_processes: At most so many processes work.
            rules: ``probe`` (default) or ``msprobe``, for the tables of msProbe 26.2 with its defects. The variable
                ``MSPROBE_RULES`` is the default.
            headers: ``msprobe`` for its headings, or ``english``.

        Raises:
            MsprobeException: an argument is wrong, or a folder cannot be read.

        Example:
            >>> tables = SingleComparator.compare("rollout", "training")  # doctest: +SKIP
            >>> tables.found  # doctest: +SKIP
            True
        """
        from probe.rollout.tables import compare_saved

        first, second, output = (os.fspath(path) for path in (dir1, dir2, output_path))
        return compare_saved(
            first, second, output, rules=rules_for("saved tables", rules), headers=headers, num_processes=num_processes
        )
