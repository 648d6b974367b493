"""The recorder's side of reading a log while it is written: sessions on a private socket, each a snapshot.

A thread accepts, a thread a session answers (DuckDB lets go of the interpreter while it works). Sessions are
bounded in number, an idle one is ended. A stale socket left by a killed recorder is replaced: whoever holds
the file's lock owns the address.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from pathlib import Path
from typing import Final

import duckdb
import msgspec
import pyarrow as pa

from kvbus.errors import LogError
from sinks.private_files import private_files
from sinks.question import batches, refused, run
from sinks.session import Hello, Problem, Query, address, fallback_folder, is_private, receive, send

SESSIONS_MAX: Final = 16
IDLE_S: Final = 3600.0
"""A session nobody asks or reads for so long is ended. A reader that dies is noticed at once, not by this."""

QUERY_BYTES_MAX: Final = 1 << 20


class Answers:
    """Owns the socket, the threads and a cursor a session. ``connection`` has the log attached as ``log``."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        path: Path,
        *,
        sessions_max: int = SESSIONS_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        self._connection = connection
        self._address = address(path)
        self._sessions_max = sessions_max
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._closing = False
        self._peers: dict[socket.socket, tuple[threading.Thread, duckdb.DuckDBPyConnection]] = {}
        self._listener = _listen(self._address)
        self._thread = threading.Thread(target=self._accept, name=f"kvbus answers {path.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all sessions and give up the address."""
        with self._lock:
            self._closing = True
            peers = dict(self._peers)
        with contextlib.suppress(OSError):
            self._address.unlink()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for peer, (_, cursor) in peers.items():
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(duckdb.Error):  # it may just have ended by itself
                cursor.interrupt()
        for thread, _ in peers.values():
            thread.join()

    @property
    def sessions(self) -> int:
        """How many readers there are now."""
        with self._lock:
            return len(self._peers)

    # -- the threads -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            peer.settimeout(self._idle_s)
            with self._lock:
                if self._closing:
                    peer.close()
                elif len(self._peers) >= self._sessions_max:
                    self._refuse(peer)
                else:
                    cursor = self._connection.cursor()
                    thread = threading.Thread(target=self._serve, args=(peer, cursor), daemon=True)
                    self._peers[peer] = (thread, cursor)
                    thread.start()

    def _refuse(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            busy = f"{self._sessions_max} readers have this log open already"
            _say(peer, LogError(busy, next_step="Wait until one of them ends."))
        peer.close()

    def _serve(self, peer: socket.socket, cursor: duckdb.DuckDBPyConnection) -> None:
        try:
            _begin(cursor)
            send(peer, b"H", msgspec.json.encode(Hello(os.getpid())))
            while True:
                kind, body = receive(peer, QUERY_BYTES_MAX)
                if kind != b"Q":
                    return
                self._answer(peer, cursor, body)
        except (OSError, EOFError, duckdb.Error):
            pass  # the reader is gone, or was told; nothing of it stays
        finally:
            cursor.close()
            peer.close()
            with self._lock:
                self._peers.pop(peer, None)

    def _answer(self, peer: socket.socket, cursor: duckdb.DuckDBPyConnection, body: bytearray) -> None:
        try:
            query = msgspec.json.decode(body, type=Query)
            with private_files():  # a large sort may spill to the disk
                reader = run(cursor, query.sql, query.parameters)
            with contextlib.closing(reader):
                send(peer, b"S", reader.schema.serialize())
                for batch in batches(reader):
                    if _has_spoken(peer):
                        break
                    send(peer, b"B", batch.serialize())
        except (duckdb.Error, pa.ArrowException, msgspec.DecodeError, LogError) as error:
            _say(peer, refused(error))
            cursor.execute("SELECT 1").fetchall()  # raises if the error has cost the session its snapshot
        else:
            send(peer, b"Z")


def _begin(cursor: duckdb.DuckDBPyConnection) -> None:
    """Fix what this cursor sees: a transaction's view begins with its first look at the log."""
    cursor.execute("USE log")
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    cursor.execute("SELECT count(*) FROM meta").fetchall()


def _has_spoken(peer: socket.socket) -> bool:
    """Whether the reader sent something, or left, while it is being answered."""
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    return bool(poll.poll(0))


def _say(peer: socket.socket, refusal: LogError) -> None:
    send(peer, b"E", msgspec.json.encode(Problem(refusal.problem, refusal.next_step)))


def _listen(where: Path) -> socket.socket:
    if not where.parent.exists():
        where.parent.mkdir(mode=0o700)
    if where.parent == fallback_folder() and not is_private(where.parent):
        raise LogError(
            f"{where.parent} is not a private folder of this user",
            next_step="Remove it, or use a shorter log path.",
        )
    where.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with private_files():
            listener.bind(os.fsencode(where))
        where.chmod(0o600)
        listener.listen(SESSIONS_MAX)
    except OSError as error:
        listener.close()
        raise LogError(
            f"cannot listen for readers on {where}: {error}", next_step="Check the folder's permissions."
        ) from error
    return listener
