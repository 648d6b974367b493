"""Blocks in a bucket: one object a block, over boto3. Only whoever has a bucket imports this module.

An object appears whole or not at all, so nothing is ever unfinished. A put asks the server not to replace
what is there (``If-None-Match``); of a server that does not know how, the store asks first if it is there.
A put whose answer was lost may have been carried out, and says so. Only who says that this key is not there
says that a block is gone: a gateway's 404, or a bucket's, may pass. Time-outs, attempts and connections are
bounded. Credentials come from where boto3 finds them and stay there: this module never holds one.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from typing import Final

from tiers.argument import seconds, text, whole_number
from tiers.errors import TierError
from tiers.keys import OffloadKey
from tiers.objectstore.attempts import Attempts
from tiers.objectstore.body import receive
from tiers.objectstore.client import connected
from tiers.objectstore.errors import as_os_error
from tiers.storage.block_kind import BlockKind
from tiers.storage.block_name import block_name, read_block_name
from tiers.storage.block_store import (
    HEADER_BYTES,
    BlockCorruptError,
    BlockMissingError,
    BlockUnsureError,
    header_of,
    verify,
)

ASKERS: Final = 16
"""Threads for lookups of more than one block, with connections of their own."""

NEXT_STEPS: Final = {
    errno.EINVAL: "Correct the bucket's name.",
    errno.ENXIO: "Make the bucket, or correct its name; kvbus makes none.",
    errno.EACCES: "Give these credentials the right to list, read, write and delete in the bucket.",
    errno.ENOKEY: "Put credentials where boto3 looks: the environment, ~/.aws, or the machine's role.",
    errno.ECONNREFUSED: "Check endpoint_url, and that the server runs and can be reached from here.",
    errno.ETIMEDOUT: "Check endpoint_url and the network, or allow more time.",
    errno.EPROTO: "Check the certificate, or write http:// if the server speaks no TLS.",
}


class S3Store:
    """The blocks of ``block_bytes`` bytes under ``prefix`` of ``bucket``, a ``BlockStore``.

    ``layout``: what else makes blocks exchangeable, see ``BlockKind``; others are kept apart.
    ``endpoint_url``: of a server that is not AWS's; ``region``: None takes boto3's. ``max_attempts`` of each
    request, the first included. ``transfer_timeout_s``: for the whole of one block's way here, and for one
    question about many blocks. ``connections``: how many threads call this store at once.

    Raises ``TierError`` at once if the bucket cannot be used, and ``TierValueError`` for values that cannot.
    """

    def __init__(
        self,
        bucket: str,
        *,
        block_bytes: int,
        prefix: str = "",
        layout: Mapping[str, object] | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 20.0,
        transfer_timeout_s: float = 60.0,
        max_attempts: int = 3,
        connections: int = 16,
    ) -> None:
        self.bucket = text("bucket", bucket)
        self.kind = BlockKind(block_bytes, layout)
        prefix = text("prefix", prefix, may_be_empty=True).strip("/")
        self.prefix = f"{prefix}/{self.kind.name}/".lstrip("/")
        self.endpoint_url = endpoint_url
        self.transfer_timeout_s = seconds("transfer_timeout_s", transfer_timeout_s)
        self._conditional = True
        self._client = connected(
            endpoint_url,
            None if region is None else text("region", region),
            connect_timeout=seconds("connect_timeout_s", connect_timeout_s),
            read_timeout=seconds("read_timeout_s", read_timeout_s),
            retries={
                "mode": "standard",
                "total_max_attempts": whole_number("max_attempts", max_attempts, at_least=1),
            },
            max_pool_connections=whole_number("connections", connections, at_least=1) + ASKERS,
        )
        self._attempts = Attempts()
        self._client.meta.events.register("needs-retry.s3.PutObject", self._attempts.hear)
        self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="kvbus-s3-holds")
        self._probe()

    def __repr__(self) -> str:
        return f"S3Store({self.bucket!r}, prefix={self.prefix!r}, endpoint_url={self.endpoint_url!r})"

    def _probe(self) -> None:
        try:
            self._find_bucket()
        except OSError as error:
            self.close()
            raise TierError(
                f"cannot use the bucket {self.bucket!r} at {self.endpoint_url or 'AWS'}: {error}",
                next_step=NEXT_STEPS.get(error.errno or 0, "See what the server says, and its log."),
            ) from error

    def _find_bucket(self) -> None:
        with as_os_error(self.bucket):
            self._client.head_bucket(Bucket=self.bucket)

    def put(self, key: OffloadKey, data: memoryview) -> bool:
        self.kind.check(data)
        body = b"".join((header_of(key, data), data))
        self._attempts.begin()
        try:
            return self._put_new(key, body)
        except OSError as error:
            if self._attempts.are_unsure:
                raise BlockUnsureError(key, error) from error
            raise

    def _put_new(self, key: OffloadKey, body: bytes) -> bool:
        """What has the block's name and not its length is no block, and is replaced."""
        if self._conditional and self._put_if_absent(key, body):
            return True
        if self._length_of(key) == self.kind.stored_bytes:
            return False
        self._put(key, body)
        return True

    def _put_if_absent(self, key: OffloadKey, body: bytes) -> bool:
        try:
            self._put(key, body, IfNoneMatch="*")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._conditional = False
            return False
        return True

    def _put(self, key: OffloadKey, body: bytes, **condition: str) -> None:
        name = self._name(key)
        with as_os_error(name), self._attempts.noted():
            self._client.put_object(Bucket=self.bucket, Key=name, Body=body, **condition)

    def get(self, key: OffloadKey, into: memoryview) -> None:
        self.kind.check(into)
        deadline = time.monotonic() + self.transfer_timeout_s
        name, header = self._name(key), memoryview(bytearray(HEADER_BYTES))
        try:
            with as_os_error(name):
                answer = self._client.get_object(Bucket=self.bucket, Key=name)
                try:
                    length = answer.get("ContentLength")
                    self._check_length(key, length)
                    receive([header, into], answer["Body"], deadline=deadline)
                    if length is None and answer["Body"].read(1):
                        raise BlockCorruptError(key, "an object longer than a block")
                finally:
                    answer["Body"].close()
        except FileNotFoundError:
            raise BlockMissingError(key) from None
        verify(key, header, payload=into)

    def _check_length(self, key: OffloadKey, length: int | None) -> None:
        """None: the server does not say."""
        if length not in (None, self.kind.stored_bytes):
            raise BlockCorruptError(key, f"an object of {length} bytes, not {self.kind.stored_bytes}")

    def delete(self, key: OffloadKey) -> None:
        name = self._name(key)
        with suppress(FileNotFoundError), as_os_error(name):
            self._client.delete_object(Bucket=self.bucket, Key=name)

    def holds(self, keys: Sequence[OffloadKey]) -> list[bool | None]:
        """One request a block, several at a time: listing would go through all that others keep here."""
        asked = [self._askers.submit(self._length_of, key) for key in keys]
        wait(asked, self.transfer_timeout_s)
        errors = [error for one in asked if (error := error_of(one)) is not None]
        if errors and len(errors) == len(asked):
            raise errors[0]
        answers = [None if error_of(one) else one.result() == self.kind.stored_bytes for one in asked]
        return answers if False not in answers else self._if_bucket_is_there(answers)

    def _if_bucket_is_there(self, answers: list[bool | None]) -> list[bool | None]:
        """Without the bucket every block would seem to be gone, and nobody knows."""
        try:
            self._find_bucket()
        except OSError:
            if not any(answers):
                raise
            return [answer or None for answer in answers]
        return answers

    def _length_of(self, key: OffloadKey) -> int | None:
        """Of the block's object; None if there is none, or no bucket either: this answer has no body."""
        name = self._name(key)
        try:
            with as_os_error(name):
                length = self._client.head_object(Bucket=self.bucket, Key=name).get("ContentLength")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENXIO):
                return None
            raise
        return self.kind.stored_bytes if length is None else int(length)

    def inventory(self) -> Iterator[tuple[OffloadKey, int]]:
        """Ordered by when blocks were put: a store does not say when an object was last read. Objects of
        other names or lengths are left alone.
        """
        found = sorted(self._listed())
        yield from ((key, self.kind.block_bytes) for _, key in found)

    def _listed(self) -> Iterator[tuple[datetime, OffloadKey]]:
        with as_os_error(self.prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix):
                for item in page.get("Contents", []):
                    key = read_block_name(item["Key"].removeprefix(self.prefix))
                    if key is not None and item["Size"] == self.kind.stored_bytes:
                        yield item["LastModified"], key

    def close(self) -> None:
        self._askers.shutdown(cancel_futures=True)
        self._client.close()

    def _name(self, key: OffloadKey) -> str:
        return self.prefix + block_name(key)


def error_of(asked: Future[int | None]) -> BaseException | None:
    """Why a question has no answer. One that nobody has begun to ask never will be."""
    if asked.cancel() or not asked.done():
        return TimeoutError(errno.ETIMEDOUT, "no answer in the time for one question")
    return asked.exception()
