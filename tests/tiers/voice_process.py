"""A tier's voice in a process of its own, as where a tier is a daemon: it can be killed, and comes back as a
new one. What it is to say goes through a pipe.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kvbus import DialectReader, Event, EventBatch, Feed, Publisher, encode

ROOT = Path(__file__).resolve().parents[2]
SIZE_BYTES = 4


class VoiceProcess:
    """Publishes at ``feed``'s addresses from the moment it is made. A dead one raises ``BrokenPipeError``."""

    def __init__(self, feed: Feed) -> None:
        assert feed.replay is not None
        command = [sys.executable, "-m", "tests.tiers.voice_process", feed.endpoint, feed.replay]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT
        )
        assert self._process.stdout is not None
        assert self._process.stdout.read(1) == b"+", "it did not come up"

    def publish(self, events: Sequence[Event], *, ts: float) -> None:
        assert self._process.stdin is not None
        payload = encode(events, ts=ts)
        self._process.stdin.write(len(payload).to_bytes(SIZE_BYTES, "big") + payload)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main(endpoint: str, replay_endpoint: str) -> None:
    reader, source = DialectReader(), sys.stdin.buffer
    with Publisher(endpoint, replay_endpoint=replay_endpoint) as publisher:
        sys.stdout.buffer.write(b"+")
        sys.stdout.buffer.flush()
        while size := source.read(SIZE_BYTES):
            batch = reader.read(source.read(int.from_bytes(size, "big")))
            assert isinstance(batch, EventBatch)
            publisher.publish(batch.events, ts=batch.ts)


if __name__ == "__main__":
    main(*sys.argv[1:])
