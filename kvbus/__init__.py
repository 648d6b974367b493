"""KV-cache events of LLM engines: published, carried, ordered, kept, and audited. The table of contents.

Engines publish with ``Publisher``; readers hear with ``Subscriber`` and ``Feed``; ``record`` writes what
they hear into a ``Sink`` (``sinks.duckdb``, ``sinks.jsonl`` …); ``Residency``, ``Audit`` and ``summarize``
say what a log means. Importing this imports no database and no terminal.
"""

from typing import TYPE_CHECKING

from kvbus.aggregator import Aggregator
from kvbus.arrival import Arrival, Limits
from kvbus.dialects import DialectReader, encode
from kvbus.errors import (
    CaptureError,
    ConfigError,
    EncodeError,
    EndpointError,
    KvbusError,
    LogError,
    LogLockedError,
    LogVersionError,
)
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    canonical_hash,
    canonical_medium,
    token_list,
    tokens,
)
from kvbus.feed import Feed, Notice
from kvbus.log import (
    Entry,
    EpochBegan,
    LogReader,
    Loss,
    PositionedEntry,
    Received,
    SourceId,
    Standing,
    Stray,
)
from kvbus.pipeline import Progress, ingest, record
from kvbus.publisher import Publisher, PublisherCounts
from kvbus.residency import Residency
from kvbus.rounds import Round, emitted
from kvbus.sink import Sink
from kvbus.subscriber import Subscriber
from kvbus.summary import Summary, summarize
from kvbus.verdict import Report, Verdict
from kvbus.wire import PublisherInfo

if TYPE_CHECKING:
    from kvbus.audit import Audit


def __getattr__(name: str) -> object:
    """``Audit``, when it is wanted: it needs numpy, which an engine that publishes shall not load."""
    if name == "Audit":
        from kvbus.audit import Audit

        return Audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Aggregator",
    "AllBlocksCleared",
    "Arrival",
    "Audit",
    "BlockRemoved",
    "BlockStored",
    "CaptureError",
    "ConfigError",
    "DialectReader",
    "EncodeError",
    "EndpointError",
    "Entry",
    "EpochBegan",
    "Event",
    "EventBatch",
    "Feed",
    "KvbusError",
    "Limits",
    "LogError",
    "LogLockedError",
    "LogReader",
    "LogVersionError",
    "Loss",
    "Notice",
    "PositionedEntry",
    "Progress",
    "Publisher",
    "PublisherCounts",
    "PublisherInfo",
    "Received",
    "Report",
    "Residency",
    "Round",
    "Sink",
    "SourceId",
    "Standing",
    "Stray",
    "Subscriber",
    "Summary",
    "Undecodable",
    "Unrecognized",
    "Verdict",
    "canonical_hash",
    "canonical_medium",
    "emitted",
    "encode",
    "ingest",
    "record",
    "summarize",
    "token_list",
    "tokens",
]
