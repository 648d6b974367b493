"""What tests of tiers share: a real S3 server a worker, and a bucket a test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.tiers.s3_bucket import KEY_ID, SECRET, Bucket, client_of
from tests.tiers.s3_server import S3Server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    made = S3Server(tmp_path_factory.mktemp("s3") / "log")
    made.start()
    yield made
    client_of(made.url).close()
    made.kill()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user would set them, and nothing of this machine's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture
def bucket(s3_server: S3Server, credentials: None) -> Bucket:  # noqa: ARG001 - for its effect
    return Bucket(s3_server, f"kvbus-{os.getpid()}-{next(_numbers)}")
