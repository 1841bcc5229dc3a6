"""Attributes of a debugger that integrations of other projects reach for: its configuration and its "service"."""

from __future__ import annotations

from typing import Any

from probe.collect.session import Session


class LiveConfig:
    """The configuration in use; ``dump_path`` can be set, for what is collected from the next `start` on."""

    def __init__(self, session: Session) -> None:
        object.__setattr__(self, "_session", session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "dump_path":
            raise AttributeError(f"config.{name} cannot be set while the program runs; only config.dump_path can.")
        self._session.move_to(value)


class Service:
    """``PrecisionDebugger.service`` of msProbe, as far as public integrations use it; other attributes may be set."""

    def __init__(self, session: Session) -> None:
        self.config = LiveConfig(session)
        self._reset_status = session.begin_again
