"""What the object store does when a server, or what is before it, answers as it should not, or not at all."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.tiers.s3_bucket import PAYLOAD
from tests.tiers.s3_stand_in import StandIn, serving
from tests.tiers.words import k, keys
from tiers.objectstore.store import ASKERS, S3Store
from tiers.storage.block_store import (
    HEADER_BYTES,
    BlockCorruptError,
    BlockMissingError,
    BlockUnsureError,
    header_of,
)

pytestmark = pytest.mark.usefixtures("credentials")

DATA = memoryview(b"a" * PAYLOAD)
WHOLE = header_of(k("a"), DATA) + DATA.tobytes()
PATIENCE_S = 30.0


@contextmanager
def store_at(handler: type[StandIn], **options: Any) -> Iterator[S3Store]:
    """A store in a bucket of such a server."""
    with serving(handler) as url:
        limits = {"connect_timeout_s": 2.0, "read_timeout_s": PATIENCE_S, "max_attempts": 1}
        store = S3Store("bucket", block_bytes=PAYLOAD, endpoint_url=url, **{**limits, **options})
        try:
            yield store
        finally:
            store.close()


def got(store: S3Store) -> bool:
    into = memoryview(bytearray(PAYLOAD))
    store.get(k("a"), into)
    return into == DATA


# Answers that get lost


def losing(*ends: int) -> type[StandIn]:
    """Puts are carried out, and end one after the other with these statuses; 0 hangs up without a word."""
    left = iter(ends)

    class Losing(StandIn):
        def put(self) -> None:
            self.take()
            status = next(left)
            if status:
                self.answer(status)
            else:
                self.close_connection = True

    return Losing


@pytest.mark.parametrize(
    ("ends", "number"),
    [
        ((0,), errno.ECONNRESET),
        ((500,), errno.EIO),
        ((503,), errno.EBUSY),
        ((0, 403), errno.EACCES),
        ((500, 0), errno.ECONNRESET),
    ],
)
def test_a_put_without_an_answer(ends: tuple[int, ...], number: int) -> None:
    """A put that may have been carried out, by its last attempt or by one before, is not simply a failure:
    the block may be there, until a delete says that it is not.
    """
    with store_at(losing(*ends), max_attempts=len(ends)) as store:
        with pytest.raises(BlockUnsureError, match="may have been put") as raised:
            store.put(k("a"), DATA)
        assert raised.value.errno == number
        assert store.holds(keys("a")) == [True]
        store.delete(k("a"))
        assert store.holds(keys("a")) == [False]


def test_a_put_that_takes_too_long() -> None:
    """A put that is not answered in time may have been carried out."""
    silence = threading.Event()

    class Silent(StandIn):
        def put(self) -> None:
            self.take()
            silence.wait(PATIENCE_S)
            self.close_connection = True

    with store_at(Silent, read_timeout_s=0.2) as store:
        with pytest.raises(BlockUnsureError) as raised:
            store.put(k("a"), DATA)
        assert raised.value.errno == errno.ETIMEDOUT
        silence.set()


@pytest.mark.parametrize("status", [400, 403, 409, 413, 507])
def test_a_put_that_is_refused(status: int) -> None:
    """What a server refuses it has not done."""
    with store_at(losing(status)) as store, pytest.raises(OSError, match=str(status)) as raised:
        store.put(k("a"), DATA)
    assert not isinstance(raised.value, BlockUnsureError)


def test_a_block_that_is_there_and_cannot_be_asked_about() -> None:
    """Where a block of the name is there and cannot be seen to be whole, nothing was put."""

    class There(StandIn):
        def put(self) -> None:
            self.take()
            self.answer(412)

        def head(self) -> None:
            if self.is_bucket():
                super().head()
            else:
                self.answer(500)

    with store_at(There) as store, pytest.raises(OSError, match="500") as raised:
        store.put(k("a"), DATA)
    assert not isinstance(raised.value, BlockUnsureError)


def test_a_put_to_nobody() -> None:
    """What never left this machine is not there, however often it was tried."""
    with serving(StandIn) as url:
        store = S3Store("bucket", block_bytes=PAYLOAD, endpoint_url=url, max_attempts=2)
    with pytest.raises(OSError, match="EndpointConnectionError") as raised:
        store.put(k("a"), DATA)
    assert raised.value.errno == errno.ECONNREFUSED
    assert not isinstance(raised.value, BlockUnsureError)
    store.close()


# What a 404 means


def refusing(status: int, code: str) -> type[StandIn]:
    """Gets and deletes are refused so; without a code, without a word."""

    class Refusing(StandIn):
        def get(self) -> None:
            if code:
                self.refuse(status, code)
            else:
                self.answer(status)

        delete = get

    return Refusing


def test_no_such_key() -> None:
    """A server may say of a missing block that it cannot be deleted: it is gone."""
    with store_at(refusing(404, "NoSuchKey")) as store:
        store.delete(k("a"))
        with pytest.raises(BlockMissingError):
            got(store)


@pytest.mark.parametrize("code", ["NoSuchBucket", ""], ids=["bucket", "gateway"])
def test_a_404_about_something_else(code: str) -> None:
    """A bucket that is away, or a gateway that finds nothing, says nothing about a block: that may pass."""
    with store_at(refusing(404, code)) as store:
        for call in (lambda: store.delete(k("a")), lambda: got(store)):
            with pytest.raises(OSError, match=r"404|NoSuchBucket") as raised:
                call()
            assert raised.value.errno == errno.ENXIO
            assert not isinstance(raised.value, BlockMissingError)


def test_lookups_without_a_bucket() -> None:
    """While the bucket is away nobody knows which blocks it has, and nothing is taken for missing."""
    is_away = threading.Event()

    class Sometimes(StandIn):
        def head(self) -> None:
            if is_away.is_set():
                self.answer(404)
            else:
                super().head()

    with store_at(Sometimes) as store:
        store.put(k("a"), DATA)
        assert store.holds(keys("a b")) == [True, False]
        is_away.set()
        with pytest.raises(OSError, match="404"):
            store.holds(keys("a b"))


# Lookups that fail


def test_one_lookup_that_fails() -> None:
    """A lookup that fails is its own block's alone; only if all fail is there an error."""

    class Faulty(StandIn):
        def head(self) -> None:
            if self.path.endswith(("/62_g0", "/63_g0")):
                self.answer(503)
            else:
                super().head()

    with store_at(Faulty) as store:
        store.put(k("a"), DATA)
        assert store.holds(keys("a b c d")) == [True, None, None, False]
        assert store.holds([]) == []
        with pytest.raises(OSError, match="503") as raised:
            store.holds(keys("b c"))
        assert raised.value.errno == errno.EBUSY


def test_lookups_have_a_time() -> None:
    """Lookups that a server does not answer in the time for all of them are given up, each for itself."""
    silence = threading.Event()

    class Slow(StandIn):
        def head(self) -> None:
            if not self.is_bucket() and not self.path.endswith("/61_g0"):
                silence.wait(PATIENCE_S)
            super().head()

    with store_at(Slow, transfer_timeout_s=0.5) as store:
        store.put(k("a"), DATA)
        assert store.holds([k("a"), *map(k, map(str, range(100)))]) == [True] + [None] * 100
        silence.set()


def test_every_request_has_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Lookups, as many as can be at once, and as many other calls as were asked for share no connection."""
    meeting = threading.Barrier(ASKERS + 4)

    class Meeting(StandIn):
        def head(self) -> None:
            if not self.is_bucket():
                meeting.wait(PATIENCE_S)
            super().head()

        def delete(self) -> None:
            meeting.wait(PATIENCE_S)
            super().delete()

    with store_at(Meeting, connections=4) as store, ThreadPoolExecutor(4) as workers:
        deleting = [workers.submit(store.delete, key) for key in keys("a b c d")]
        assert store.holds([*map(k, map(str, range(ASKERS)))]) == [False] * ASKERS
        for one in deleting:
            one.result(PATIENCE_S)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# Blocks on their way


def sending(send: Callable[[StandIn], None]) -> type[StandIn]:
    class Sending(StandIn):
        def get(self) -> None:
            self.send_response(200)
            send(self)
            self.close_connection = True

    return Sending


def chunked(body: bytes) -> type[StandIn]:
    """An answer that does not say how long it is."""

    def send(handler: StandIn) -> None:
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")

    return sending(send)


def test_a_block_of_unsaid_length() -> None:
    """An answer that does not say its length is read all the same, and must be a block, not more; one that
    ends early may have been cut off on its way.
    """
    with store_at(chunked(WHOLE)) as store:
        assert got(store)
    with store_at(chunked(WHOLE + b"a")) as store, pytest.raises(BlockCorruptError, match="longer"):
        got(store)
    for length in (0, 100, HEADER_BYTES, len(WHOLE) - 1):
        with store_at(chunked(WHOLE[:length])) as store, pytest.raises(ConnectionResetError):
            got(store)


def test_a_block_that_is_cut_off() -> None:
    """A connection that ends in the middle of a block is a failure that may pass, and no corrupt block."""

    def send(handler: StandIn) -> None:
        handler.send_header("Content-Length", str(len(WHOLE)))
        handler.end_headers()
        handler.wfile.write(WHOLE[:-1])

    with store_at(sending(send)) as store, pytest.raises(ConnectionResetError):
        got(store)


def test_a_block_that_trickles() -> None:
    """A server that sends a byte now and then, as if for ever, costs the time of one transfer."""
    enough = threading.Event()

    def send(handler: StandIn) -> None:
        handler.send_header("Content-Length", str(len(WHOLE)))
        handler.end_headers()
        with suppress(ConnectionError):
            for byte in WHOLE:
                if enough.wait(0.05):
                    return
                handler.wfile.write(bytes([byte]))

    with store_at(sending(send), transfer_timeout_s=0.3) as store:
        with pytest.raises(TimeoutError) as raised:
            got(store)
        enough.set()
    assert raised.value.errno == errno.ETIMEDOUT


def test_a_server_that_says_nothing() -> None:
    """A server that takes a request and never answers costs the time allowed, and is a time-out."""
    silence = threading.Event()

    def send(_: StandIn) -> None:
        silence.wait(PATIENCE_S)

    with store_at(sending(send), read_timeout_s=0.2) as store:
        with pytest.raises(TimeoutError) as raised:
            got(store)
        silence.set()
    assert raised.value.errno == errno.ETIMEDOUT
