"""A tier in a bucket of an S3-compatible object store.

Only making one needs boto3 (``pip install 'kvbus[s3]'``). The bucket is asked for at once, so a wrong name, a
server that is not there or a missing right is an error at the start and not a failure of every block later.
What is done with the bucket is ``objectstore.store``; what is kept and what leaves, ``storage.tier``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiers.argument import whole_number, yes_or_no
from tiers.errors import TierError
from tiers.medium import Locality
from tiers.storage.backpressure import Backpressure
from tiers.storage.block_kind import row_bytes
from tiers.storage.tier import StorageTier

if TYPE_CHECKING:
    from tiers.objectstore.store import S3Store


class ObjectStoreTier(StorageTier):
    """A ``StorageTier`` over the ``S3Store`` in ``bucket``; a row of the primary is a block.

    ``prefix``, ``layout``, ``endpoint_url``, ``region``, time-outs and ``max_attempts``: as the store's.
    ``shared``: other processes store there too. ``backpressure``: ask for no stores while the bucket is too
    slow for them, by the marks of a network or, where ``locality`` is LOCAL, of a local medium. Everything
    else as ``StorageTier``. Raises also ``TierError`` if boto3 is missing or the bucket cannot be used.
    """

    def __init__(
        self,
        offloading_spec: object,
        primary_kv_view: memoryview,
        tier_type: str = "s3",
        *,
        bucket: str,
        prefix: str = "",
        layout: Mapping[str, object] | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 20.0,
        transfer_timeout_s: float = 60.0,
        max_attempts: int = 3,
        max_bytes: int | None = None,
        max_blocks: int | None = None,
        shared: bool = False,
        enable_events: bool = False,
        locality: Locality | None = None,
        read_threads: int = 8,
        write_threads: int = 8,
        backpressure: bool = False,
    ) -> None:
        where = None if locality is None else Locality(locality)  # a configuration says it in text
        use_backpressure = yes_or_no("backpressure", backpressure)
        whole_number("read_threads", read_threads, at_least=1)
        whole_number("write_threads", write_threads, at_least=1)
        store = store_class()(
            bucket,
            block_bytes=row_bytes(primary_kv_view),
            prefix=prefix,
            layout=layout,
            endpoint_url=endpoint_url,
            region=region,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            transfer_timeout_s=transfer_timeout_s,
            max_attempts=max_attempts,
            connections=read_threads + write_threads,
        )
        try:
            super().__init__(
                offloading_spec,
                primary_kv_view,
                tier_type,
                store=store,
                max_bytes=max_bytes,
                max_blocks=max_blocks,
                enable_events=enable_events,
                locality=where,
                shared=shared,
                read_threads=read_threads,
                write_threads=write_threads,
                task_bytes=0,  # a server is slow to answer, so each block is a task of its own
                backpressure=Backpressure.of(where or Locality.REMOTE) if use_backpressure else None,
            )
        except OSError as error:
            raise TierError(
                f"cannot list the blocks in the bucket {bucket!r}: {error}",
                next_step="See what the server says, and its log.",
            ) from error
        except BaseException:
            store.close()
            raise


def store_class() -> type[S3Store]:
    """The store's class, whose module needs boto3."""
    try:
        from tiers.objectstore.store import S3Store
    except ModuleNotFoundError as error:
        raise TierError(
            f"the tier 's3' needs {error.name}", next_step="Install it: pip install 'kvbus[s3]'."
        ) from error
    return S3Store
