"""Reads engines: any number of feeds in, ordered entries out. Polled by its owner, in one thread.

It never writes to a publisher beyond replay requests, so watching disturbs nobody, and it decides nothing
about order: that is ``sequence``, one ``Sequencer`` a feed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import zmq

from kvbus.arrival import Limits
from kvbus.endpoints import reader_endpoint
from kvbus.errors import ConfigError, EndpointError
from kvbus.feed import Feed, Notice
from kvbus.link import Link
from kvbus.log import Entry, SourceId, Standing
from kvbus.sequencer import Sequencer


class Subscriber:
    """Any number of feeds, read in one thread: the caller's, inside ``poll``.

    Args:
        feeds: what to read; names must differ.
        standings: where earlier runs stood (``Sink.standings``): their streams are continued.
        origin: first seq wanted of each stream; None begins with what comes next and asks for nothing
        before it.
        idle_s: say so after this many seconds without a message.
        hwm: messages that wait in a SUB socket before ZeroMQ drops (which shows as a hole, which the replay
        fills).
        replay_timeout_s: silence after which a replay counts as unfinished.

    Raises ``EndpointError`` for an address that cannot be used and ``ConfigError`` for two feeds of one name.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        *,
        standings: Mapping[SourceId, Standing] | None = None,
        origin: int | None = 0,
        idle_s: float | None = None,
        hwm: int = 50_000,
        replay_timeout_s: float = 3.0,
        limits: Limits | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        names = Counter(feed.name for feed in feeds)
        if twice := [name for name, times in names.items() if times > 1]:
            raise ConfigError(f"two feeds are called {twice[0]!r}", next_step="Name each address once.")
        for feed in feeds:
            reader_endpoint(feed.endpoint, bind=feed.bind)
            if feed.replay is not None:
                reader_endpoint(feed.replay)
        self._own_context = context is None
        self._context = context or zmq.Context()
        self._idle_s = idle_s
        self._links: list[Link] = []
        self._closed = False
        try:
            for feed in feeds:
                sequencer = Sequencer(
                    feed.name,
                    can_ask=feed.replay is not None,
                    standings=standings,
                    origin=origin,
                    limits=limits,
                )
                timeout_ns = int(replay_timeout_s * 1e9)
                self._links.append(Link(feed, sequencer, self._context, hwm=hwm, timeout_ns=timeout_ns))
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(
                f"no socket for feed {len(self._links) + 1} of {len(feeds)}: {error.strerror}",
                next_step="Read fewer addresses or ranks, or raise the limit of open files (ulimit -n).",
            ) from error
        except BaseException:
            self.close()
            raise
        self._heard = dict.fromkeys(self._links, time.monotonic())

    @property
    def endpoints(self) -> list[str]:
        """The addresses in use, with the port that a bound ``:*`` or ``:0`` got."""
        return [link.live.endpoint for link in self._links]

    @property
    def waiting(self) -> int:
        """Batches held back until what is missing before them has come or is given up."""
        return sum(link.sequencer.waiting for link in self._links)

    @property
    def holding(self) -> set[str]:
        """Feeds that somebody speaks on, and of which something is held back or being asked for."""
        return {link.feed.name for link in self._links if link.holds}

    def counts(self) -> Counter[str]:
        """What was seen and not delivered as an entry, by reason, and how often the replay was asked."""
        total: Counter[str] = Counter()
        for link in self._links:
            total.update(link.counts)
            total.update(link.sequencer.counts)
        return total

    def poll(self, timeout_s: float = 0.1) -> list[Entry | Notice]:
        """What has come, in order, at most one budget of messages a feed; empty when nothing came in
        ``timeout_s``.
        """
        out: list[Entry | Notice] = []
        for link in self._links:
            link.keep_time(out)
        poller = zmq.Poller()
        for link in self._links:
            for socket in link.sockets():
                poller.register(socket, zmq.POLLIN)
        ready = {socket for socket, _ in poller.poll(0 if out else self._patience_ms(timeout_s))}
        for link in self._links:
            if link.live.monitor in ready:
                link.take_news(out)
            if link.live.sub in ready and not link.greets and link.take_live(out):
                self._heard[link] = time.monotonic()
            link.take_replay(out)
        if self._idle_s is not None:
            self._notice_idle(out)
        return out

    def finish(self) -> list[Entry]:
        """What still waits, with what is missing declared lost: for a reader that leaves for good."""
        out: list[Entry | Notice] = []
        for link in self._links:
            link.take_waiting(out)
            out += link.sequencer.finish(time.time_ns())
        return [entry for entry in out if not isinstance(entry, Notice)]

    def close(self) -> None:
        """Let go of all sockets. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for link in self._links:
            link.close()
        if self._own_context:
            self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _patience_ms(self, timeout_s: float) -> int:
        """How long to sleep: less when something waits for the clock."""
        busy = any(link.sequencer.ask_from is not None or link.sequencer.waiting for link in self._links)
        return int(min(timeout_s, 0.02) * 1000) if busy else int(timeout_s * 1000)

    def _notice_idle(self, out: list[Entry | Notice]) -> None:
        assert self._idle_s is not None
        now = time.monotonic()
        for link, heard in self._heard.items():
            if now - heard >= self._idle_s:
                self._heard[link] = now
                out.append(Notice("idle", link.feed.name, f"nothing heard for {self._idle_s:g} s"))
