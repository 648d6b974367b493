"""``run --record``: the run's own log, written from its sockets like anybody's, by a thread beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cli import logs
from kvbus.engines import Engine
from kvbus.errors import LogError
from kvbus.feed import Feed
from kvbus.pipeline import Progress, record
from kvbus.subscriber import Subscriber

FLUSH_S: Final = 0.1
LATENESS_S: Final = 30.0
"""Every tier publishes every round, and none loses any: nobody is given up early."""
PATIENCE_S: Final = 20.0


class SelfRecord:
    """Records ``feeds``, one engine's tiers in order, into the log at ``path`` until it is left.

    Raises ``LogError`` for a log that cannot be written: at once, or when it is left; ``on_failure`` is
    called when that is found out, by the thread that records.
    """

    def __init__(self, path: Path, feeds: Sequence[Feed], *, on_failure: Callable[[], None]) -> None:
        self.path = path
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._in_log = 0
        self._failure: BaseException | None = None
        self._sink = logs.writer(path, flush_s=FLUSH_S)
        try:
            self._subscriber = Subscriber(feeds, standings=self._sink.standings())
        except BaseException:
            self._sink.close()
            raise
        self._engine = Engine(tuple(feed.name for feed in feeds), lateness_s=LATENESS_S)
        self._thread = threading.Thread(target=self._run, name="kvbus-self-record")

    def _run(self) -> None:
        try:
            with self._subscriber:
                record(
                    self._subscriber,
                    self._sink,
                    stop=self._stop,
                    engines=[self._engine],
                    flush_s=FLUSH_S,
                    on_progress=self._note,
                )
        except BaseException as error:  # it is raised where somebody waits for it
            self._failure = error
            self._on_failure()
        finally:
            with self._moved:
                self._moved.notify_all()

    def _note(self, progress: Progress) -> None:
        with self._moved:
            self._in_log = progress.batches + progress.lost_batches
            self._moved.notify_all()

    def wait_for(self, batches: int) -> None:
        """Return when so many batches were taken in, and raise what stopped it; ``LogError`` when nothing
        has come for 20 seconds.
        """
        seen, since = -1, time.monotonic()
        with self._moved:
            while self._in_log < batches and self._failure is None:
                if self._in_log != seen:
                    seen, since = self._in_log, time.monotonic()
                if time.monotonic() - since > PATIENCE_S:
                    raise LogError(
                        f"{batches - self._in_log} of {batches} batches did not get into {self.path}",
                        next_step="Run it again, and watch `kvbus stat` on the log while it runs.",
                    )
                self._moved.wait(0.5)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make durable what has come, and let go."""
        self._stop.set()
        self._thread.join()
        self._sink.close()
        if error is None and self._failure is not None:
            raise self._failure
