"""What there is to read, and what is said about it that is not part of any stream. Values only."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Feed(Struct, frozen=True):
    """One address to read. ``replay`` is its replay socket's address; ``topics`` are prefixes, ``""`` takes
    all.

    ``bind``: wait there for publishers that connect, several may. ``source`` is the name in entries
    (default: ``endpoint``).
    """

    endpoint: str
    replay: str | None = None
    topics: tuple[str, ...] = ("",)
    bind: bool = False
    source: str | None = None

    @property
    def name(self) -> str:
        return self.source or self.endpoint


class Notice(Struct, frozen=True):
    """Something about a feed that is not part of the stream.

    ``caught_up``: what the replay had when we came is delivered (or there is no replay to ask). ``idle``:
    nothing came for a while. ``connected`` / ``disconnected``. ``malformed``: a message that is not an
    event message (said again whenever their number has doubled). ``absent``: a tier whose engine's other
    tiers go on without it (said likewise). ``clock``: a tier whose clock cannot be right (said likewise).
    ``streams``: a tier that is more than one stream.
    """

    kind: Literal["caught_up", "idle", "connected", "disconnected", "malformed", "absent", "clock", "streams"]
    source: str
    text: str
