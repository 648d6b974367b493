"""A bucket of one test's own in a real S3 server, and who may use it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import boto3

from tests.tiers.s3_server import S3Server
from tests.tiers.storage_rows import Rows
from tiers.objectstore.store import S3Store
from tiers.objectstore.tier import ObjectStoreTier

KEY_ID: Final = "AKIDTEST"
SECRET: Final = "nobody-may-read-this"
PAYLOAD: Final = 1000
"""Bytes of a block where a test does not say otherwise."""

IMPATIENT: Final[dict[str, Any]] = {"connect_timeout_s": 2.0, "read_timeout_s": 10.0, "max_attempts": 2}


@cache
def client_of(url: str) -> Any:
    """The tests' own, made once: making one takes longer than most tests."""
    return boto3.session.Session(KEY_ID, SECRET, region_name="us-east-1").client("s3", endpoint_url=url)


class Bucket:
    """A bucket of one test's own, and how to look behind the store's back."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server, self.name = server, name
        self.client = client_of(server.url)
        self.client.create_bucket(Bucket=name)

    def store(self, **options: Any) -> S3Store:
        return S3Store(
            self.name, **{"block_bytes": PAYLOAD, "endpoint_url": self.server.url, **IMPATIENT, **options}
        )

    def tier(self, **options: Any) -> Rows:
        options = {"endpoint_url": self.server.url, "enable_events": True, **IMPATIENT, **options}
        return Rows(lambda view: ObjectStoreTier(None, view, bucket=self.name, **options))

    def names(self) -> list[str]:
        return [item["Key"] for item in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])]

    def rewrite(self, name: str, change: Callable[[bytes], bytes]) -> None:
        body = self.client.get_object(Bucket=self.name, Key=name)["Body"]
        whole = body.read()
        body.close()
        self.client.put_object(Bucket=self.name, Key=name, Body=change(whole))
