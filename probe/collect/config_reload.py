"""A configuration file that is read again while the training runs, because it has the key ``dump_enable``."""

from __future__ import annotations

import dataclasses
from typing import Any

from probe.common import clock, log
from probe.common.config.config import Config, load_config
from probe.common.errors import MsprobeException

_SECONDS_ENABLED = 0.5
"""See `_SECONDS_DISABLED`, which stands with it; a guess."""
_SECONDS_DISABLED = 3.0
"""The seconds for which a configuration is used before its file is read again."""


class ConfigReload:
    """The configuration of a file as it was read last.

    Args:
        path: The configuration file, or ``None``.
        arguments: What wins over the file.

    Raises:
        MsprobeException: Something in the configuration is wrong.
    """

    def __init__(self, path: str | None, arguments: dict[str, Any]) -> None:
        self._path = path
        self._arguments = arguments
        self.config = self._load()
        self.enabled = self.config.dump_enable is not False
        """True if ``dump_enable`` lets anything be collected now; not while the file has an error."""
        self._may_change = path is not None and self.config.dump_enable is not None
        self._read_at = clock.monotonic()

    def reload(self) -> None:
        """Read the file again if it may change and the last time is long enough ago."""
        if not self._may_change:
            return
        now = clock.monotonic()
        if now - self._read_at < (_SECONDS_ENABLED if self.enabled else _SECONDS_DISABLED):
            return
        self._read_at = now
        try:
            self.config = self._load()
            self.enabled = self.config.dump_enable is not False
        except MsprobeException as error:
            self.enabled = False
            log.warning(f"collection is off until the configuration can be read again: {error}")

    def set(self, name: str, value: Any) -> None:
        """Let `value` win over that of the file."""
        self._arguments[name] = value
        self.config = dataclasses.replace(self.config, **{name: value})

    def _load(self) -> Config:
        lines: list[log.LogLine] = []
        try:
            # What loading says is shown after it: only then the level is known from which on lines are shown.
            with log.collected() as lines:
                config = load_config(self._path, **self._arguments)
            log.set_level(log.LEVELS[config.log_level])
            return config
        finally:
            log.show(lines)
