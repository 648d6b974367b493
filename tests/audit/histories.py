"""Histories at random, in the pocket language: what engines do, and what they should not.

``ODD_LOGS`` says besides what the language has no word for: owners, sizes, clocks, dialects, several streams
of one name.
"""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from kvbus.events import BlockStored, EventBatch
from kvbus.log import EpochBegan, PositionedEntry, Received
from kvbus.testing import history

EVENT = st.sampled_from(
    [
        "g:+a",
        "g:-a",
        "g:+a,b",
        "g:-b,a",
        "g:+a>b",
        "g:+a>a",
        "c:+d>b",
        "g:+b>c,d",
        "g:+a,a",
        "g:+a~",
        "g/1:+a",
        "g/1:-a",
        "c:+a",
        "c:-a",
        "c:+b~",
        "c:+c~",
        "CPU:-b",
        "s:+a",
        "s:+b",
        "s:-a",
        "d:+b",
        "d:-b!evicted",
        "g:-a!deleted",
        "g:+",
        "clear",
        "clear",
        "?",
        "?Moved",
    ]
)
CONTROL = st.sampled_from(
    [""] * 8
    + ["lost(1) ", "lost(2,too_old) ", "lost(1,absent_from_replay) ", "gap(2) ", "restart ", "seq(2) "]
    + ["conflict(0) ", "late(0) ", "@q ", "@q#1 ", "@engine "]
)
BATCH = st.lists(EVENT, min_size=1, max_size=5).map(" ".join) | st.sampled_from([".", "garbage"])
HISTORIES = st.lists(st.tuples(CONTROL, BATCH).map("".join), max_size=14).map(" | ".join)


class Odd(Struct):
    """What a batch says besides: ``shift_s`` of the publisher's clock (None: it knows full seconds only),
    ``heard_s`` later than it was made. ``fits``: what the publisher says of itself where an epoch begins.
    """

    dialect: str
    owner: str | None
    size: int
    shift_s: float | None
    heard_s: float
    topic: bytes
    fits: dict[str, int]


_ODD = st.builds(
    Odd,
    dialect=st.sampled_from(["kvbus", "map", "array"]),
    owner=st.sampled_from([None, None, "left", "right"]),
    size=st.sampled_from([4, 4, 8, 3]),
    shift_s=st.sampled_from([None, None, 0.0, 0.0, -1.0, 100.0]),
    heard_s=st.sampled_from([0.0, 0.0, 70.0, 200.0]),
    topic=st.sampled_from([b"kv", b"kv", b"kv2"]),
    fits=st.sampled_from([{}, {"GPU": 1}, {"gpu": 2, "CPU": 9}, {"STORAGE": 1}]),
)


@st.composite
def _odd_logs(draw: st.DrawFn) -> list[PositionedEntry]:
    return [made_odd(at, draw(_ODD)) for at in history(draw(HISTORIES))]


def made_odd(at: PositionedEntry, odd: Odd) -> PositionedEntry:
    """The same entry, if its batch had also said this."""
    entry = replace(at.entry, source=replace(at.entry.source, topic=odd.topic))
    if isinstance(entry, EpochBegan):
        entry = replace(entry, capacity=odd.fits)
    if isinstance(entry, Received):
        batch, received_ns = entry.batch, entry.received_ns + round(odd.heard_s * 1e9)
        if isinstance(batch, EventBatch):
            events = [
                replace(event, ownership=odd.owner, block_size=event.block_size and odd.size)
                if isinstance(event, BlockStored)
                else event
                for event in batch.events
            ]
            ts = batch.ts // 1 if odd.shift_s is None else batch.ts + odd.shift_s
            batch = replace(batch, ts=ts, events=events)
        entry = replace(entry, dialect=odd.dialect, batch=batch, received_ns=received_ns)
    return replace(at, entry=entry)


ODD_LOGS = _odd_logs()
