"""What an object store's trouble is called here."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from tiers.objectstore.errors import as_os_error

URL = "http://127.0.0.1"


def as_seen(error: Exception) -> OSError:
    with pytest.raises(OSError, match=r"\[Errno") as raised, as_os_error("a/block"):
        raise error
    assert raised.value.filename == "a/block"
    assert raised.value.__cause__ is error
    return raised.value


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("NoSuchKey", 404, errno.ENOENT),
        ("404", 404, errno.ENXIO),
        ("NoSuchBucket", 404, errno.ENXIO),
        ("AccessDenied", 403, errno.EACCES),
        ("InvalidAccessKeyId", 403, errno.EACCES),
        ("PreconditionFailed", 412, errno.EEXIST),
        ("ConditionalRequestConflict", 409, errno.EAGAIN),
        ("SlowDown", 503, errno.EBUSY),
        ("NotImplemented", 501, errno.EOPNOTSUPP),
        ("RequestTimeout", 400, errno.ETIMEDOUT),
        ("QuotaExceeded", 403, errno.EDQUOT),
        ("EntityTooLarge", 400, errno.EFBIG),
        ("InternalError", 500, errno.EIO),
        ("Unheard", 418, errno.EIO),
    ],
)
def test_what_the_server_says(code: str, status: int, expected: int) -> None:
    """A refusal has the number that a disk would give, and the server's own words."""
    answer: dict[str, Any] = {
        "Error": {"Code": code, "Message": "Because."},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    seen = as_seen(ClientError(answer, "PutObject"))
    assert seen.errno == expected
    assert f"{code} Because." in str(seen)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectTimeoutError(endpoint_url=URL), errno.ETIMEDOUT),
        (ReadTimeoutError(endpoint_url=URL), errno.ETIMEDOUT),
        (EndpointConnectionError(endpoint_url=URL), errno.ECONNREFUSED),
        (ConnectionClosedError(endpoint_url=URL), errno.ECONNRESET),
        (ResponseStreamingError(error="cut"), errno.ECONNRESET),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), errno.ECONNRESET),
        (SSLError(endpoint_url=URL, error="old"), errno.EPROTO),
        (NoCredentialsError(), errno.ENOKEY),
        (CredentialRetrievalError(provider="p", error_msg="m"), errno.ENOKEY),
        (ParamValidationError(report="r"), errno.EINVAL),
        (BotoCoreError(), errno.EIO),
        (ResponseParserError("no XML"), errno.EIO),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_connection_says(error: Exception, expected: int) -> None:
    """Trouble on the way has the number that a socket would give, and the name of its kind."""
    seen = as_seen(error)
    assert seen.errno == expected
    assert type(error).__name__ in str(seen)


def test_other_errors_pass() -> None:
    """What the object store has no part in is not renamed."""
    with pytest.raises(ValueError, match="mine"), as_os_error("a/block"):
        raise ValueError("mine")
