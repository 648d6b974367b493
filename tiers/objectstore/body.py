"""A block on its way here from an object store, within one time for all of it.

A server that sends a byte now and then keeps within every time-out of a socket. So somebody watches the time,
and when it is over the socket gets none any more.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

PIECE_BYTES: Final = 1 << 20
"""How often the time is looked at, too: a socket that always has something never waits."""

AT_ONCE_S: Final = 0.001
"""The time-out of a socket whose time is over."""


def receive(parts: Sequence[memoryview], body: Any, *, deadline: float) -> None:
    """Fill ``parts`` from botocore's ``body``, until ``deadline`` (monotonic, seconds).

    Raises ``OSError`` if there is less or the time is over, and what botocore raises.
    """
    watch = threading.Timer(deadline - time.monotonic(), give_up, (body,))
    watch.daemon = True
    watch.start()
    try:
        for part in parts:
            fill(part, body, deadline=deadline)
    finally:
        watch.cancel()


def fill(part: memoryview, body: Any, *, deadline: float) -> None:
    while part:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "the block took longer than one transfer may")
        if not (got := body.readinto(part[:PIECE_BYTES])):
            raise ConnectionResetError(errno.ECONNRESET, "the answer ended before the block did")
        part = part[got:]


def give_up(body: Any) -> None:
    with suppress(AttributeError):  # it was read to its end just now
        body.set_socket_timeout(AT_ONCE_S)
