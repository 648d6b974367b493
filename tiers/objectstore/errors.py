"""What went wrong at an object store, as the ``OSError`` that a disk would have raised.

Whoever counts failures counts them by errno, whatever the medium. Foreign errors end here: nothing above
knows botocore. ENOENT is a server that says of this key that it is not there, and nothing else: a 404 without
a word may be that of a gateway, or of a bucket that is away. The text is the server's own code and message,
or what kind of connection failed; never a header, a signature or a credential.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
    PartialCredentialsError,
    ProxyConnectionError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

BY_CODE: Final = {
    "NoSuchKey": errno.ENOENT,
    "NoSuchBucket": errno.ENXIO,
    "QuotaExceeded": errno.EDQUOT,
    "XMinioStorageFull": errno.ENOSPC,
    "EntityTooLarge": errno.EFBIG,
    "RequestTimeout": errno.ETIMEDOUT,
    "KeyTooLongError": errno.ENAMETOOLONG,
}
BY_STATUS: Final = {
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENXIO,
    409: errno.EAGAIN,
    412: errno.EEXIST,
    413: errno.EFBIG,
    429: errno.EBUSY,
    501: errno.EOPNOTSUPP,
    503: errno.EBUSY,
    507: errno.ENOSPC,
}
BY_KIND: Final[tuple[tuple[tuple[type[Exception], ...], int], ...]] = (
    ((ConnectTimeoutError, ReadTimeoutError), errno.ETIMEDOUT),
    ((ParamValidationError,), errno.EINVAL),
    ((SSLError,), errno.EPROTO),
    ((EndpointConnectionError, ProxyConnectionError), errno.ECONNREFUSED),
    ((ConnectionClosedError, ResponseStreamingError, IncompleteReadError), errno.ECONNRESET),
    (
        (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError),
        errno.ENOKEY,
    ),
)


@contextmanager
def as_os_error(what: str) -> Iterator[None]:
    """Whatever the object store raises inside comes out as ``OSError``, about ``what``; EIO if unknown."""
    try:
        yield
    except ClientError as error:
        raise answered(error, what) from error
    except (BotoCoreError, ResponseParserError) as error:
        number = next((number for kinds, number in BY_KIND if isinstance(error, kinds)), errno.EIO)
        raise OSError(number, type(error).__name__, what) from error


def answered(error: ClientError, what: str) -> OSError:
    """A refusal by the server: by its code where that says more than the status."""
    said = error.response.get("Error", {})
    code, message = str(said.get("Code", "")), str(said.get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    number = BY_CODE.get(code) or BY_STATUS.get(status, errno.EIO)
    return OSError(number, f"{code} {message}".strip(), what)
