"""A TCP port for processes that are going to meet at it."""

from __future__ import annotations

import random
import socket
from pathlib import Path

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port that nobody listens at and that the system gives to no outgoing connection.

    One of those, as bind to port 0 gives them, can be taken by any client before the server listens, and by a client
    that retries to reach this very server, which then is connected to itself.
    """
    text = EPHEMERAL.read_text(encoding="ascii") if EPHEMERAL.is_file() else "32768 60999"
    lowest, highest = map(int, text.split())
    candidates = [port for port in range(10000, 65536) if not lowest <= port <= highest]
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        with socket.socket() as server:
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {len(candidates)} ports outside of {lowest} to {highest} is free")
