"""Failures that people met in the field, each as the shortest stream that shows it.

The 64 are issues and pull requests of engines, routers and indexers. ``FAILURES`` says what went wrong, the
kind of finding that tells it, and a history; or, where no stream of events can show it, why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvbus.events import BlockStored, Event, EventBatch, token_list, tokens
from kvbus.log import PositionedEntry, Received
from kvbus.testing import history

Log = list[PositionedEntry]


class Failure(Struct, frozen=True):
    """``kind`` (of ``KINDS``) tells it in ``story``; without a story, ``kind`` says why there is none."""

    where: str
    what: str
    kind: str
    story: str | Callable[[], Log] | None = None
    capacities: Mapping[str, int] = {}

    def log(self) -> Log | None:
        if self.story is None:
            return None
        return history(self.story) if isinstance(self.story, str) else self.story()


def each_event(log: Log, change: Callable[[int, Event], Event]) -> Log:
    """The log with every event changed; ``change`` gets its number over all batches."""
    changed, number = Log(), 0
    for at in log:
        if isinstance(at.entry, Received) and isinstance(at.entry.batch, EventBatch):
            events = []
            for event in at.entry.batch.events:
                events.append(change(number, event))
                number += 1
            at = PositionedEntry(at.position, replace(at.entry, batch=replace(at.entry.batch, events=events)))
        changed.append(at)
    return changed


def each_batch(log: Log, change: Callable[[int, Received], Received]) -> Log:
    return [
        PositionedEntry(at.position, change(at.position, at.entry)) if isinstance(at.entry, Received) else at
        for at in log
    ]


def heard_late() -> Log:
    return each_batch(history("g:+a | g:-a"), lambda _, b: replace(b, received_ns=b.received_ns + 10**11))


def heard_early() -> Log:
    return each_batch(history("g:+a | g:-a"), lambda _, b: replace(b, received_ns=b.received_ns - 10**11))


def arrays_then_maps() -> Log:
    dialects = ("array", "map")
    return each_batch(history("g:+a | g:-a"), lambda n, b: replace(b, dialect=dialects[n]))


def silence_in_between() -> Log:
    later = {3: 10**11, 4: 10**11}
    log = history("@p g:+a | @q . | @q . | @q . | @p g:-a")
    return each_batch(log, lambda n, b: replace(b, received_ns=b.received_ns + later.get(n, 0)))


def masked() -> Log:
    """A store whose tokens cover a block that its hashes leave out."""

    def change(_: int, event: Event) -> Event:
        return (
            replace(event, block_hashes=event.block_hashes[1:]) if isinstance(event, BlockStored) else event
        )

    return each_event(history("g:+a,b | g:-b"), change)


def two_sizes() -> Log:
    """The second store's blocks are four times as large."""

    def change(number: int, event: Event) -> Event:
        if not number or not isinstance(event, BlockStored):
            return event
        return replace(event, block_size=16, token_ids=tokens(token_list(event.token_ids) * 4))

    return each_event(history("c:+a | c:+b"), change)


def two_tenants() -> Log:
    """One hash under two salts."""

    def change(number: int, event: Event) -> Event:
        return replace(event, cache_salt=f"tenant {number}") if isinstance(event, BlockStored) else event

    return each_event(history("g:+a | g:+a"), change)


CONSUMER: Final = "the stream is right, its reader was not"
SILENT: Final = "no stream, nothing to judge"

FAILURES: Final[list[Failure]] = [
    Failure("vllm#53859", "publish() blocks the engine when its queue is full", "clock.lag", heard_late),
    Failure(
        "vllm#53883", "the newest batch is dropped before it has a number", "refcount.below", "g:+a | g:-b"
    ),
    Failure(
        "vllm#45174",
        "replies without topic, read one frame off",
        "replay.incomplete",
        ". | lost(2,replay_incomplete) .",
    ),
    Failure("vllm#42892", "events turned from arrays into maps", "decode.generation", arrays_then_maps),
    Failure(
        "kthena#1535", "the new form could not be read: every event dropped", "decode.event", "g:+a ? | g:-a"
    ),
    Failure("llm-d-kv-cache#661", "the same, batch by batch", "decode.payload", "garbage | g:+a"),
    Failure("vllm#44451", "tokens of blocks that the hashes leave out", "dense.long", masked),
    Failure("vllm#58119", "a parent that was never reported", "parent.absent", "g:+p>a"),
    Failure(
        "vllm#48933, #55092",
        "one of several copies is removed, the block is still there",
        "remaining.copies",
        "g:+a | g:+a | g:-a",
    ),
    Failure("vllm#45261, #51699", "prefix hits announced as stores", "copies.again", "g:+a | g:+a"),
    Failure(
        "vllm#40363",
        "the replay no longer reaches back: state cannot be rebuilt",
        "replay.beginning",
        "lost(9,too_old) g:+a",
    ),
    Failure(
        "vllm#57727", "a reset succeeds while the CPU tier still serves", "clear.others", "g:+a c:+a | clear"
    ),
    Failure(
        "vllm#57296",
        "a reset of the GPU wipes the other tiers in routers",
        "clear.others",
        "c:+a | clear | c:-a",
    ),
    Failure(
        "vllm#43468",
        "CPU stores without tokens or block size, dropped by routers",
        "dense.placeholder",
        "g:+a | c:+a~",
    ),
    Failure("vllm#51614", "a tier speaks in blocks of two sizes", "size.mixed", two_sizes),
    Failure(
        "vllm#52068",
        "tokens are forgotten with the first removal: later stores are bare",
        "dense.placeholder",
        "c:+a | c:-a | c:+a~",
    ),
    Failure("vllm#49413", "promotions lose what they were made of", "dense.placeholder", "s:+a | c:+a~"),
    Failure(
        "vllm#55679",
        "port arithmetic gives two ranks one port",
        "rank.stranger",
        "@p#0 . | . | @p#1 seq(2) . | @p#0 seq(3) .",
    ),
    Failure("vllm#26264", "bytes and integers for one hash", "both are read as one canonical hash"),
    Failure("vllm#18722", "the first events are lost on a slow joiner", "beginning.late", "seq(3) g:+a"),
    Failure(
        "vllm-ascend#12002",
        "wrong parents where cached blocks are skipped",
        "content.differs",
        "g:+a g:+a>b | g:+c | g:+c>b",
    ),
    Failure(
        "sglang#38945",
        "a replay loses batches and its end marker",
        "replay.incomplete",
        ". | lost(1022,replay_incomplete) .",
    ),
    Failure(
        "sglang#29211, #29491",
        "all ranks on one port",
        "rank.stranger",
        "@p#0 . | @p#1 seq(1) . | @p#2 seq(2) . | @p#0 seq(3) .",
    ),
    Failure(
        "sglang#13488, dynamo#4394, #4395",
        "hashes of content alone: blocks that are their own parents",
        "chain.own_parent",
        "g:+a>a",
    ),
    Failure("sglang#24568", "the hash leaves out the salt: tenants collide", "content.differs", two_tenants),
    Failure("sglang#38561", "salted stores do not fit the exported types", "kvbus reads that form"),
    Failure(
        "sglang#38486",
        "the CPU tier removes what it never said it stored",
        "refcount.below",
        "g:+a | CPU_PINNED:-a",
    ),
    Failure("sglang#39108", "a router takes the removal from one tier for all of them", CONSUMER),
    Failure("sglang#26387", "one path publishes nothing of the GPU", "silence.tier", "c:+a", {"GPU": 100}),
    Failure(
        "sglang#29709, #29948",
        "the third level is never heard",
        "silence.tier",
        "g:+a | c:+a",
        {"EXTERNAL": 100},
    ),
    Failure(
        "sglang#39604", "removals say no reason: demoted or lost?", "demotion.lost", "g:+a,b c:+a | g:-b"
    ),
    Failure("dynamo#7072", "a snapshot sets the cursor back", "sequence.back", ". | . | seq(0) ."),
    Failure("dynamo#7463", "the gap before the first number is ignored", "beginning.late", "seq(7) ."),
    Failure("dynamo#14627", "a gap wipes the rank instead of being filled", "sequence.hole", ". | gap(2) ."),
    Failure(
        "dynamo#14737",
        "a store before the subscription, its removal after",
        "refcount.doubtful",
        "lost(3,late_join) g:-a",
    ),
    Failure("dynamo#11984", "configured, accepted, and not one event", SILENT),
    Failure("dynamo#11194", "workers without publishers are not routed to", SILENT),
    Failure(
        "dynamo#8012",
        "stores and removals doubled, not by the same number",
        "refcount.below",
        "g:+a | g:+a | g:-a | g:-a | g:-a",
    ),
    Failure(
        "dynamo#671, #693",
        "every block of a store gets the same parent",
        "content.differs",
        "g:+p>a,b | g:+p>b",
    ),
    Failure("dynamo#12643", "events are seen before their time", "clock.lag", heard_early),
    Failure("dynamo#13044", "a lower number taken for a restart", "epoch.survivor", "g:+a | restart g:-a"),
    Failure("llm-d-router#1737", "nobody looks at the numbers", "sequence.hole", "g:+a | lost(1) g:+b"),
    Failure(
        "llm-d-router#2853", "a restarted engine's blocks are kept", "sequence.restart", "g:+a | restart g:+b"
    ),
    Failure(
        "llm-d-kv-cache#372",
        "after a late start children are dropped for want of parents",
        "parent.doubtful",
        "lost(3,late_join) g:+a>b",
    ),
    Failure("llm-d-kv-cache#593, #563, #626", "a clear is logged and not applied", CONSUMER),
    Failure("llm-d-router#1736", "a removed pod's blocks stay", CONSUMER),
    Failure(
        "llm-d-router#878",
        "a CPU store without tokens that nothing resolves",
        "resolvable.unseen",
        "g:+a | c:+b~",
    ),
    Failure("llm-d-router#2373", "blocks of 16 and of 64 tokens mixed", "size.mixed", two_sizes),
    Failure(
        "llm-d-kv-cache#680",
        "overlapping chunks remove a live block twice",
        "refcount.below",
        "c:+a | c:-a | c:-a",
    ),
    Failure(
        "llm-d-kv-cache#347",
        "blocks received from a prefiller are never announced",
        "parent.absent",
        "g:+a | g:+q>b",
    ),
    Failure("aibrix#1720", "a payload that is no map", "decode.payload", "garbage | ."),
    Failure("aibrix#2287", "an idle engine never sends what it has", "silence.source", silence_in_between),
    Failure("LMCache#3532", "only the GPU is heard", "silence.tier", "g:+a | g:-a", {"CPU": 100}),
    Failure(
        "LMCache#5076, #1846",
        "evictions are never published",
        "lifetime.leak",
        "c:+a | c:+b | c:+c",
        {"CPU": 2},
    ),
    Failure(
        "LMCache#2979",
        "hashes differ by worker: the aggregator drops them all",
        "silence.tier",
        "g:+a",
        {"CPU": 100},
    ),
    Failure(
        "Mooncake#3616",
        "of a replay one frame is read",
        "replay.incomplete",
        ". | lost(8,replay_incomplete) .",
    ),
    Failure("Mooncake#3818", "a clear overtakes newer stores", "clear.survivor", "g:+a | clear | g:-a"),
    Failure(
        "Mooncake#2214",
        "a removal from one medium is not said while another holds the block",
        "eviction.over",
        "g:+a c:+a | g:-a | c:+b g:+b",
        {"CPU": 1},
    ),
    Failure(
        "TensorRT-LLM#11883",
        "a removal after the store that took its room",
        "eviction.over",
        "g:+a | g:+b g:-a",
        {"GPU": 1},
    ),
    Failure(
        "TensorRT-LLM#16335",
        "blocks are detached and nobody says so",
        "eviction.over",
        "g:+a | g:-a | g:+b | g:+c",
        {"GPU": 1},
    ),
    Failure(
        "TensorRT-LLM#4666",
        "an update without a difference kills the thread that reads",
        "decode.event",
        "? | g:+a",
    ),
    Failure("tokenspeed#166", "a clear on every lookup", "clear.storm", "clear | clear | clear"),
    Failure(
        "ATOM#2203",
        "messages of one frame, without a number",
        "no number, no place in a log: the subscriber counts them",
    ),
    Failure(
        "smg#742",
        "a bridge restarts and counts anew, the worker lives on",
        "epoch.survivor",
        "g:+a,b | restart . | g:-b",
    ),
]
