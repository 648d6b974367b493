"""The client that requests to an object store go through, and what address it may have.

An address is a scheme, a host and perhaps a port and a path. Whatever else could stand in it (a user, a
password, a signature) is a secret, and is neither used nor repeated in an error: also where it was not given
here but in boto3's own configuration.
"""

from __future__ import annotations

import re
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from tiers.errors import TierValueError

ADDRESS: Final = re.compile(
    r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?", re.IGNORECASE
)


def connected(endpoint_url: str | None, region: str | None, **limits: Any) -> Any:
    """A client, which has not asked for anything yet. A session of its own: boto3's default is not for
    threads. Raises ``TierValueError``.
    """
    if endpoint_url is not None:
        check_address(endpoint_url)
    try:
        config = Config(
            # Blocks carry their own checksum; not every server knows the newer ones of AWS.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if endpoint_url else None,
            **limits,
        )
        session = boto3.session.Session(region_name=region)
        client = session.client("s3", endpoint_url=endpoint_url, config=config)
    except BotoCoreError as error:
        raise TierValueError(f"no S3 client: {error}", next_step="Correct the name or number.") from error
    except ValueError:  # it repeats the address, which may come from AWS_ENDPOINT_URL
        raise no_address() from None
    check_address(client.meta.endpoint_url)
    return client


def check_address(url: object) -> None:
    """``TierValueError``, which does not repeat it, unless this is an address and nothing more."""
    if not (isinstance(url, str) and ADDRESS.fullmatch(url)):
        raise no_address()


def no_address() -> TierValueError:
    return TierValueError(
        "endpoint_url is no plain address",
        next_step="Give http(s)://host[:port][/path]; put credentials where boto3 looks for them.",
    )
