"""One tier's voice: hands batches to a thread that numbers, keeps and sends them, and answers replay
requests.

A drop-in for what vLLM's ``ZmqEventPublisher`` does (same endpoint rules, frames and limits), for any
process. It never blocks the engine's thread, never loses in silence, and says who it is to readers who ask.
It does not decide what is an event, does not merge tiers and does not write to disk.

This module joins the parts: ``outbox`` → ``sender`` → ``history`` ← ``replies`` ←
``router``.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
import zmq
from msgspec import Struct

from kvbus.buffer import BUFFER_BYTES, BUFFER_STEPS, ReplayBuffer
from kvbus.errors import ConfigError, KvbusError
from kvbus.events import Event
from kvbus.history import History
from kvbus.outbox import Fresh, Outbox, Ready
from kvbus.replies import Replies, ReplyCounts
from kvbus.router import ReplayRouter
from kvbus.sender import Sender
from kvbus.sockets import PublisherSockets
from kvbus.wire import HELLO_SEQ, Capacity, PublisherInfo

log = logging.getLogger(__name__)

LINGER_S: Final = 2.0
JOIN_S: Final = 1.0
"""How far past the deadline a thread may be before it is given up: one batch being encoded, say."""


class PublisherCounts(Struct, frozen=True):
    """Batches and requests, by what became of them; all since the publisher was made.

    ``published``: numbered and handed to ZeroMQ. ``waiting``: in the queue now. ``dropped``: by reason,
    ``queue_full``, ``unencodable``, ``too_large`` (each leaves a hole), ``at_close`` (no time left).
    """

    published: int
    waiting: int
    dropped: dict[str, int]
    replies: ReplyCounts


class Publisher:
    """Publishes batches of events at ``endpoint``, and replays them at ``replay_endpoint`` if given.

    ``topic`` goes before each batch. ``data_parallel_rank`` is written into each batch and gives the rank
    its own addresses. Limits: ``buffer_steps`` batches and ``buffer_bytes`` of payload kept for replay,
    ``max_queue_size`` batches waiting to be encoded, ``hwm`` messages waiting for one slow subscriber,
    ``replays_max`` replays sent at once. A replay client that takes nothing for ``replay_stall_s`` is
    dropped. ``capacity``: how many blocks fit into a medium (``{"CPU": 300}``), which *hello* tells whoever
    checks what is published here.

    ``when_full``: ``"drop"`` for engines (never blocks; the loss shows as a hole); ``"wait"`` when no batch
    may be lost and the caller has time: a full queue and a slow subscriber make ``publish`` and ``forward``
    wait. ``replay_topic_frame=False`` replies in the framing of vLLM until 0.25. ``form``: see
    ``dialects.encode``. ``context`` is needed for inproc only when readers do not use
    ``zmq.Context.instance()``.

    Raises ``EndpointError`` and ``ConfigError``. Threads end with ``close``, when the publisher is
    collected, or at exit.
    """

    def __init__(
        self,
        endpoint: str = "tcp://*:5557",
        *,
        replay_endpoint: str | None = None,
        topic: str = "",
        data_parallel_rank: int = 0,
        buffer_steps: int = BUFFER_STEPS,
        buffer_bytes: int = BUFFER_BYTES,
        hwm: int = 100_000,
        max_queue_size: int = 100_000,
        when_full: Literal["drop", "wait"] = "drop",
        form: Literal["map", "array"] = "map",
        replay_topic_frame: bool = True,
        replays_max: int = 64,
        replay_stall_s: float = 30.0,
        capacity: Mapping[str, int] | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        _check_limits(
            buffer_steps=(buffer_steps, 0),
            buffer_bytes=(buffer_bytes, 0),
            hwm=(hwm, 0),
            max_queue_size=(max_queue_size, 1),
            replays_max=(replays_max, 1),
        )
        told = _checked_capacity(capacity or {})
        waits = when_full == "wait"
        buffer = ReplayBuffer(buffer_steps, buffer_bytes=buffer_bytes)
        self._history = History(
            buffer, new_incarnation=functools.partial(secrets.token_hex, 16), capacity=told
        )
        self._outbox = Outbox(max_queue_size, waits=waits)
        self._replies = Replies(
            self._history.snapshot,
            topic_frame=replay_topic_frame,
            jobs_max=replays_max,
            stall_s=replay_stall_s,
        )
        self._sockets = PublisherSockets(
            endpoint, replay_endpoint, rank=data_parallel_rank, hwm=hwm, waits=waits, context=context
        )
        self.endpoint = self._sockets.endpoint
        """The live address: as bound, with the real port; as given if connected to."""
        self.replay_endpoint = self._sockets.replay_endpoint
        """The replay address as bound, or None."""
        self._sender = Sender(
            self._sockets.live,
            self._outbox,
            history=self._history,
            topic=topic.encode(),
            rank=data_parallel_rank,
            form=form,
            waits=waits,
        )
        self._machine = _Machine(self._sockets, self._outbox, sender=self._sender, replies=self._replies)
        self._machine.start()
        # Without a close: when nobody holds the publisher any more, or at exit. The threads hold only the
        # parts.
        self._finalizer = weakref.finalize(self, self._machine.stop, LINGER_S)

    def publish(self, events: Sequence[Event], *, ts: float | None = None) -> None:
        """Publish one batch: what happened at ``ts`` (seconds since 1970; None: now).

        Returns before it is encoded: leave ``events`` alone afterwards. A batch that cannot be encoded, or
        has more than 128 MiB, is logged and counted; it leaves a hole, and an empty batch of its time comes
        in its place. Raises ``KvbusError`` once closed.
        """
        self._outbox.put(Fresh(time.time() if ts is None else ts, events))

    def forward(self, topic: bytes, seq: int, payload: bytes) -> None:
        """Publish bytes that have their topic and number, as a log does.

        A ``seq`` that does not go up is a new run, as if the process had restarted: replays forget what was
        before. More than 128 MiB are logged and counted, and not sent. Raises ``KvbusError`` once closed and
        for a number that no batch can have.
        """
        if not 0 <= seq < HELLO_SEQ:
            raise KvbusError(
                f"{seq} is not a batch's number",
                next_step="Numbers are 0 … 2**64 - 3; the last two are reserved.",
            )
        self._outbox.put(Ready(topic, seq, payload))

    def wait_for_subscriber(self, timeout_s: float) -> bool:
        """Whether a subscriber has come within ``timeout_s``. What is published from then on reaches it."""
        return self._sender.wait_for_subscriber(timeout_s)

    def info(self) -> PublisherInfo:
        """Who this is and which numbers it has, as *hello* tells readers; without what is still waiting."""
        return self._history.info()

    def counts(self) -> PublisherCounts:
        """What became of batches and requests until now."""
        sender = self._sender
        dropped = {
            "queue_full": self._outbox.dropped,
            **sender.refused,
            "at_close": sender.dropped_at_close + self._machine.left_at_close,
        }
        replies = msgspec.structs.replace(self._replies.counts)
        return PublisherCounts(sender.published, len(self._outbox), dropped, replies)

    def close(self, linger_s: float = LINGER_S) -> None:
        """Send what waits, finish the replays begun, and let every byte out; all within ``linger_s``.

        What could not be sent is counted. Safe to call twice.
        """
        if self._finalizer.detach() is not None:
            self._machine.stop(linger_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Machine:
    """The threads and their end. Knows nothing of the ``Publisher``, so that it can outlive it."""

    def __init__(
        self, sockets: PublisherSockets, outbox: Outbox, *, sender: Sender, replies: Replies
    ) -> None:
        self._sockets = sockets
        self._outbox = outbox
        self._sender = sender
        self._pid = os.getpid()
        self._threads = [threading.Thread(target=sender.run, name="kvbus-sender", daemon=True)]
        self._router: ReplayRouter | None = None
        if sockets.router is not None:
            self._router = ReplayRouter(sockets.router, replies, on_failure=self._replays_failed)
            self._threads.append(threading.Thread(target=self._router.run, name="kvbus-replays", daemon=True))
        self.left_at_close = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        os.register_at_fork(after_in_child=functools.partial(_disown, weakref.ref(self._outbox)))

    def stop(self, linger_s: float) -> None:
        """Live batches first, then replays (which may ask for those), then the bytes; one deadline."""
        if os.getpid() != self._pid:
            return  # a forked child has neither the threads nor a right to the sockets
        if (
            threading.current_thread() in self._threads
        ):  # collected from inside one of them: it must end first
            threading.Thread(target=self.stop, args=(linger_s,), name="kvbus-closing").start()
            return
        deadline = time.monotonic() + linger_s
        self._sender.finish_by(deadline)
        self._outbox.shut("is closed")
        self._threads[0].join(linger_s + JOIN_S)
        if self._router is not None:
            self._router.finish_by(deadline)
            self._threads[1].join(linger_s + JOIN_S)
        self.left_at_close = self._outbox.leftover()
        if any(thread.is_alive() for thread in self._threads):
            log.error("a publisher's thread does not end; its sockets stay open")
            return
        self._sockets.close(deadline - time.monotonic())
        unsent = self.left_at_close + self._sender.dropped_at_close
        if unsent:
            log.warning("%d batches were not sent within %.1f s of closing", unsent, linger_s)

    def _replays_failed(self, error: Exception) -> None:
        self._outbox.shut(f"can answer no more replays ({error})")


def _check_limits(**limits: tuple[int, int]) -> None:
    for name, (value, least) in limits.items():
        if value < least:
            raise ConfigError(f"{name} is {value}", next_step=f"Give {least} or more.")


def _checked_capacity(capacity: Mapping[str, int]) -> Mapping[str, int]:
    """A copy; ``ConfigError`` for what no reader would take."""
    try:
        return msgspec.convert(dict(capacity), Capacity)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"capacity {capacity!r}: {error}", next_step='Give blocks by medium: {"CPU": 300}.'
        ) from error


def _disown(outbox: weakref.ref[Outbox]) -> None:
    mine = outbox()
    if mine is not None:
        mine.disown("belongs to the process that was forked")
