"""How another process reads a log that is being written: one connection, one unchanging snapshot.

The recorder listens on a Unix socket beside the log (``LOG.sock``, mode 0600; for paths longer than the
system allows in /tmp/kvbus-UID/, mode 0700). A frame is a length (u32, big-endian), a kind (one byte) and
that many bytes::

    recorder → reader   H {"pid": …}          at once: whom one speaks to
    reader → recorder   Q {"sql": …, "parameters": […]}
    recorder → reader   S schema  B batch  B batch …  Z     Arrow IPC messages, then the end
                        E {"problem": …, "next_step": …}    instead of any of these, and the end

Every Q gets one Z or E; a Q that comes in the middle of an answer cuts it short.

A reader that does not read is not sent more than the socket holds; one that goes away leaves nothing behind.
Nothing can be written: only single SELECT statements pass, in a read-only transaction.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from kvbus.errors import LogError, LogLockedError
from sinks.question import Parameter

FRAME: Final = struct.Struct(">Ic")
FRAME_MAX: Final = 1 << 31
ADDRESS_MAX: Final = 107
"""Bytes in ``sun_path`` on Linux, less the final zero."""

HELLO_WAIT_S: Final = 5.0
HELLO_BYTES_MAX: Final = 1 << 16


class Hello(msgspec.Struct, frozen=True):
    pid: int


class Query(msgspec.Struct, frozen=True):
    sql: str
    parameters: list[Parameter] = []


class Problem(msgspec.Struct, frozen=True):
    problem: str
    next_step: str = "Ask another way; the log itself is untouched."


def address(path: Path) -> Path:
    """Where the recorder of the log at ``path`` (its real path) listens. Both sides work it out alone."""
    beside = path.with_name(path.name + ".sock")
    if len(os.fsencode(beside)) <= ADDRESS_MAX:
        return beside
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return fallback_folder() / f"{name}.sock"


def fallback_folder() -> Path:
    """Where the addresses are of logs whose paths are too long."""
    return Path(f"/tmp/kvbus-{os.getuid()}")


def is_private(folder: Path) -> bool:
    """Whether ``folder`` is ours alone: in /tmp anybody could have made it first."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def send(peer: socket.socket, kind: bytes, *parts: bytes | memoryview | pa.Buffer) -> None:
    """Write one frame. Blocks while the other side does not read; ``OSError`` when it is gone."""
    peer.sendall(FRAME.pack(sum(memoryview(part).nbytes for part in parts), kind))
    for part in parts:
        peer.sendall(part)


def receive(peer: socket.socket, limit: int = FRAME_MAX) -> tuple[bytes, bytearray]:
    """Read one frame of at most ``limit`` bytes.

    Raises ``EOFError`` when the other side is gone or talks nonsense, ``OSError`` on a timeout.
    """
    size, kind = FRAME.unpack(_exactly(peer, FRAME.size))
    if size > limit:
        raise EOFError(f"a frame of {size} bytes")
    return kind, _exactly(peer, size)


def _exactly(peer: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = peer.recv_into(view)
        if not got:
            raise EOFError("the other side closed the connection")
        view = view[got:]
    return data


def somebody_answers(path: Path) -> bool:
    """Whether a recorder of the log at ``path`` listens."""
    try:
        Session(path).close()
    except LogLockedError:
        return False
    except LogError:  # it listens, and refuses one more reader
        return True
    return True


class Session:
    """A snapshot of a log that another process is writing, read through that process.

    Raises ``LogLockedError`` when nobody answers, ``LogError`` when the recorder refuses.
    """

    def __init__(self, path: Path, /) -> None:
        self._path = path
        self._streaming: object | None = None
        self._peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._peer.settimeout(HELLO_WAIT_S)
            where = address(path)
            if where.parent != path.parent and not is_private(where.parent):
                raise ConnectionRefusedError(f"{where.parent} is not a private folder of this user")
            self._peer.connect(os.fsencode(where))
            kind, body = receive(self._peer, HELLO_BYTES_MAX)
        except (OSError, EOFError) as error:
            self._peer.close()
            raise LogLockedError(
                f"{path} is being written, and its writer does not answer on {address(path)}: {error}",
                next_step="Wait until the writer ends, or read the log as the user who records it.",
            ) from error
        if kind != b"H":
            self._peer.close()
            raise _problem(path, body)
        self._pid = msgspec.json.decode(body, type=Hello).pid
        self._peer.settimeout(None)

    def query(self, sql: str, parameters: Sequence[Parameter] = (), /) -> Iterator[pa.RecordBatch]:
        """Rows of one SELECT, streamed. A later query ends an earlier one that was not read to its end."""
        is_stale, token = self._streaming is not None, object()
        self._streaming = token
        try:
            send(self._peer, b"Q", msgspec.json.encode(Query(sql, list(parameters))))
            if is_stale:
                self._drain()
            schema = self._next_schema()
            while batch := self._next_batch(schema):
                yield batch
                if self._streaming is not token:
                    raise LogError(
                        "this query was ended by a later one",
                        next_step="Read one query at a time to its end.",
                    )
        except (OSError, EOFError) as error:
            self._streaming = None
            raise LogError(
                f"the recorder of {self._path}, process {self._pid}, went away: {error}",
                next_step="Open the log again.",
            ) from error

    def close(self) -> None:
        """Give up the snapshot. Safe to call twice."""
        self._peer.close()

    def _next_schema(self) -> pa.Schema:
        kind, body = receive(self._peer)
        if kind != b"S":
            self._streaming = None
            raise _problem(self._path, body)
        return pa.ipc.read_schema(pa.py_buffer(body))

    def _next_batch(self, schema: pa.Schema) -> pa.RecordBatch | None:
        kind, body = receive(self._peer)
        if kind == b"B":
            return pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        self._streaming = None
        if kind == b"Z":
            return None
        raise _problem(self._path, body)

    def _drain(self) -> None:
        """Skip the rest of an earlier answer: the recorder cuts it short when it sees the next query."""
        while receive(self._peer)[0] not in (b"Z", b"E"):
            pass


def _problem(path: Path, body: bytearray) -> LogError:
    try:
        found = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        found = Problem("an answer that is none")
    return LogError(f"{path}: {found.problem}", next_step=found.next_step)
