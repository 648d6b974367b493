"""What became of a put: whether an attempt that failed may have been carried out all the same.

A server can do its work and then lose its answer, and so can whatever stands between. botocore tries again,
and tells only how the last attempt ended; one before it may have left an object. So each attempt is listened
to. Sure is only what never left this machine, and what a server refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

NEVER_SENT: Final = (
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
    ParamValidationError,
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
)
REFUSED_FOR_GOOD: Final = (501, 507)
"""Of the statuses from 500 up, those that no server gives after it has done its work."""


class Attempts(threading.local):
    """Those of the put that this thread is at."""

    are_unsure = False
    """Whether one of them may have been carried out, and no answer said so."""

    def begin(self) -> None:
        self.are_unsure = False

    def hear(
        self,
        *,
        response: tuple[Any, Any] | None = None,
        caught_exception: Exception | None = None,
        **_: object,
    ) -> None:
        """botocore's event ``needs-retry`` after each attempt. Has no opinion on whether to try again."""
        status = None if response is None else response[0].status_code
        if leaves_unsure(caught_exception) or (status is not None and status_leaves_unsure(status)):
            self.are_unsure = True

    @contextmanager
    def noted(self) -> Iterator[None]:
        """What botocore raises inside is how the last attempt ended."""
        try:
            yield
        except Exception as error:
            self.hear(caught_exception=error)
            raise


def leaves_unsure(error: BaseException | None) -> bool:
    """Whether a request that ended with this may have been carried out."""
    match error:
        case ClientError():
            return status_leaves_unsure(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        case BotoCoreError() | ResponseParserError():
            return not isinstance(error, NEVER_SENT)
    return False


def status_leaves_unsure(status: int) -> bool:
    """Whether a server that answers this may have done its work all the same. 0: no status is known."""
    return status == 0 or (status >= 500 and status not in REFUSED_FOR_GOOD)
