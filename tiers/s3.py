"""Blocks in a bucket: one object a block, over boto3. Only whoever has a bucket imports this module.

An object appears whole or not at all, so nothing is ever unfinished. A put asks the server not to replace
what is there (``If-None-Match``); of a server that does not know how, the store asks first if it is there.
Time-outs, attempts and connections are bounded. Credentials come from where boto3 finds them (environment,
files, the machine's role) and stay there: this module never holds one.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tiers.block_kind import BlockKind
from tiers.block_name import block_name, read_block_name
from tiers.block_store import HEADER_BYTES, BlockCorruptError, BlockMissingError, header_of, verify
from tiers.errors import TierError, TierValueError
from tiers.keys import OffloadKey
from tiers.s3_errors import as_os_error

NEXT_STEPS: Final = {
    errno.EINVAL: "Correct the bucket's name.",
    errno.ENOENT: "Make the bucket, or correct its name; kvbus makes none.",
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
    request, the first included. ``connections``: how many requests can be under way at once.

    Raises ``TierError`` at once if the bucket cannot be used, and ``TierValueError`` for names that cannot.
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
        max_attempts: int = 3,
        connections: int = 16,
    ) -> None:
        self.bucket = bucket
        self.kind = BlockKind(block_bytes, layout)
        self.prefix = f"{prefix.strip('/')}/{self.kind.name}/".lstrip("/")
        self.endpoint_url = without_credentials(endpoint_url)
        self._conditional = True
        self._client = connected(
            self.endpoint_url,
            region,
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": max_attempts},
            max_pool_connections=connections,
        )
        self._askers = ThreadPoolExecutor(connections, thread_name_prefix="kvbus-s3-holds")
        self._probe()

    def __repr__(self) -> str:
        return f"S3Store({self.bucket!r}, prefix={self.prefix!r}, endpoint_url={self.endpoint_url!r})"

    def _probe(self) -> None:
        try:
            with as_os_error(self.bucket):
                self._client.head_bucket(Bucket=self.bucket)
        except OSError as error:
            self.close()
            raise TierError(
                f"cannot use the bucket {self.bucket!r} at {self.endpoint_url or 'AWS'}: {error}",
                next_step=NEXT_STEPS.get(error.errno or 0, "See what the server says, and its log."),
            ) from error

    def put(self, key: OffloadKey, data: memoryview) -> bool:
        self.kind.check(data)
        conditional = self._conditional  # another thread may find out meanwhile
        if not conditional and self._holds(key):
            return False
        body = b"".join((header_of(key, data), data))
        try:
            return self._put(self._name(key), body, {"IfNoneMatch": "*"} if conditional else {})
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not conditional:
                raise
        self._conditional = False
        return self.put(key, data)

    def _put(self, name: str, body: bytes, condition: Mapping[str, str]) -> bool:
        try:
            with as_os_error(name):
                self._client.put_object(Bucket=self.bucket, Key=name, Body=body, **condition)
        except FileExistsError:
            return False
        return True

    def get(self, key: OffloadKey, into: memoryview) -> None:
        self.kind.check(into)
        name, header = self._name(key), memoryview(bytearray(HEADER_BYTES))
        try:
            with as_os_error(name):
                answer = self._client.get_object(Bucket=self.bucket, Key=name)
                try:
                    self._check_length(key, answer["ContentLength"])
                    for part in (header, into):
                        fill(part, answer["Body"])
                finally:
                    answer["Body"].close()
        except FileNotFoundError:
            raise BlockMissingError(key) from None
        verify(key, header, payload=into)

    def _check_length(self, key: OffloadKey, length: int) -> None:
        if length != self.kind.stored_bytes:
            raise BlockCorruptError(key, f"an object of {length} bytes, not {self.kind.stored_bytes}")

    def delete(self, key: OffloadKey) -> None:
        name = self._name(key)
        with as_os_error(name):
            self._client.delete_object(Bucket=self.bucket, Key=name)

    def holds(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """One request a block, several at a time: listing would go through all that others keep here."""
        return list(self._askers.map(self._holds, keys)) if len(keys) > 1 else [*map(self._holds, keys)]

    def _holds(self, key: OffloadKey) -> bool:
        name = self._name(key)
        try:
            with as_os_error(name):
                self._client.head_object(Bucket=self.bucket, Key=name)
        except FileNotFoundError:
            return False
        return True

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


def connected(endpoint_url: str | None, region: str | None, **limits: Any) -> Any:
    """A client, which has not asked for anything yet. A session of its own: boto3's default is not for
    threads.
    """
    try:
        config = Config(
            # Blocks carry their own checksum; not every server knows the newer ones of AWS.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if endpoint_url else None,
            **limits,
        )
        session = boto3.session.Session(region_name=region)
        return session.client("s3", endpoint_url=endpoint_url, config=config)
    except (BotoCoreError, ValueError) as error:
        raise TierValueError(f"no S3 client: {error}", next_step="Correct the name or number.") from error


def without_credentials(endpoint_url: str | None) -> str | None:
    """The address as given. ``TierValueError``, which does not repeat it, if a password is part of it."""
    if endpoint_url and "@" in urlsplit(endpoint_url).netloc:
        raise TierValueError(
            "endpoint_url holds a user or a password",
            next_step="Take them out of the address; put credentials where boto3 looks for them.",
        )
    return endpoint_url


def fill(part: memoryview, body: Any) -> None:
    """Read until ``part`` is full. Raises botocore's ``IncompleteReadError`` if there is less."""
    while part and (got := body.readinto(part)):
        part = part[got:]
