"""Which feed is a tier of which engine, and what is said of tiers that are missing."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.engines import Engine, Engines, Item
from kvbus.events import EventBatch
from kvbus.feed import Notice
from kvbus.log import Entry, LastBatch, Received, SourceId, Standing
from kvbus.rounds import Round

SECOND = 1_000_000_000
TIERS = Engine(("e/cpu", "e/fs"), lateness_s=1.0)


def share(source: str, seq: int, ts: float, *, at_ns: int = 0) -> Received:
    batch = EventBatch(ts=ts, events=[])
    return Received(SourceId(source), 0, seq, b"", at_ns, False, batch, "map")


def words(items: list[Item] | tuple[Item, ...]) -> list[str]:
    """Items in shorthand: an entry as source and seq, a round in brackets, a notice as its text."""
    return [_word(item) for item in items]


def _word(item: Item) -> str:
    if isinstance(item, Notice):
        return f"{item.source}: {item.text}"
    if isinstance(item, Round):
        return f"({' '.join(map(_word, item.entries))})"
    assert isinstance(item, Received)
    return f"{item.source.source}#{item.seq}"


def taken(engines: Engines, *items: Entry | Notice, now_ns: int = 0) -> list[str]:
    return words(list(engines.take(items, now_ns=now_ns)))


def test_without_engines_everything_goes_straight_through() -> None:
    """Who has no engine with tiers pays nothing for them: the very list comes back."""
    items = [share("a", 0, 1.0)]
    assert Engines().take(items, now_ns=0) is items


def test_each_engine_has_its_own_order_and_others_have_none() -> None:
    """Engines do not wait for each other, nor does a feed that is no tier, nor a notice."""
    engines = Engines([TIERS, Engine(("f/cpu", "f/fs"))])
    idle = Notice("idle", "e/cpu", "nothing heard for 30 s")
    items = (
        share("e/fs", 0, 1.0),
        share("alone", 0, 0.5),
        idle,
        share("f/cpu", 0, 9.0),
        share("f/fs", 0, 9.0),
    )
    assert taken(engines, *items) == ["alone#0", "e/cpu: nothing heard for 30 s", "(f/cpu#0 f/fs#0)"]
    assert engines.waiting == 1
    assert taken(engines, share("e/cpu", 0, 1.0)) == ["(e/cpu#0 e/fs#0)"]
    assert engines.waiting == 0


def test_a_feed_is_a_tier_once() -> None:
    """Nobody could say whose order it is in."""
    with pytest.raises(ValueError, match="twice"):
        Engines([TIERS, Engine(("e/fs",))])


def test_a_missing_tier_is_named_before_the_round_that_went_on_without_it() -> None:
    """Once an absence, and at its 1st, 2nd, 4th … absence only: a tier that limps does not flood."""
    engines = Engines([TIERS])
    told = []
    for number in range(6):
        start_ns = number * 10 * SECOND
        seq, ts = 3 * number, 10.0 * number
        taken(
            engines, share("e/cpu", seq, ts, at_ns=start_ns), share("e/cpu", seq + 1, ts + 1, at_ns=start_ns)
        )
        out = taken(engines, now_ns=start_ns + SECOND)
        assert out[-2:] == [f"(e/cpu#{seq})", f"(e/cpu#{seq + 1})"]
        told.append(out[:-2])
        taken(engines, share("e/fs", number, ts + 2), share("e/cpu", seq + 2, ts + 2))
    missing = "its share of the rounds is missing"
    behind = f"e/fs: too far behind, {missing}"
    assert told == [[f"e/fs: nothing heard, {missing}"], [behind], [], [behind], [], []]
    assert engines.counts() == {"not_waited_for": 12}


def test_a_tier_that_was_given_up_is_not_expected() -> None:
    """Who leaves waits for shares on their way, not for a tier that is missing anyhow."""
    engines = Engines([TIERS])
    taken(engines, share("e/cpu", 0, 1.0))
    assert engines.expects(0)
    assert not engines.expects(-1)
    taken(engines, now_ns=SECOND)
    assert not engines.expects(SECOND)
    taken(engines, share("e/cpu", 1, 2.0, at_ns=SECOND), now_ns=SECOND)
    assert engines.waiting == 1
    assert not engines.expects(SECOND)
    assert words(list(engines.finish())) == ["(e/cpu#1)"]


def test_standings_reach_every_engine() -> None:
    """A share that the log has passed is late from the first moment on."""
    standing = Standing(0, 1, 5.0, "", {}, LastBatch(3, 0, 5.0, 0, False))
    engines = Engines([TIERS], standings={SourceId("e/fs"): standing})
    (out,) = engines.take([share("e/cpu", 1, 5.0)], now_ns=0)
    assert isinstance(out, Round)
    assert [type(entry).__name__ for entry in out.entries] == ["Loss", "Stray"]


def test_a_clock_that_cannot_be_right_is_named() -> None:
    """At its 1st, 2nd, 4th … such batch; the others go on."""
    engines = Engines([TIERS])
    taken(engines, share("e/cpu", 0, 1.0), share("e/fs", 0, 1.0))
    told = []
    for seq in range(1, 5):
        told.append(taken(engines, share("e/fs", seq, 4e9)))
    word = "e/fs: its clock is far ahead of the other tiers', the time of its batch was not believed"
    assert told == [[word], [word], [], [word]]
    out = taken(engines, share("e/fs", 5, 2.0), share("e/cpu", 1, 2.0))
    assert out == ["(e/cpu#1 e/fs#1 e/fs#2 e/fs#3 e/fs#4 e/fs#5)"]


def test_a_feed_that_is_held_back_is_waited_for() -> None:
    """Its batches have come, only not in order yet: that is not silence."""
    engines = Engines([TIERS])
    taken(engines, share("e/cpu", 0, 1.0))
    assert list(engines.take([], now_ns=2 * SECOND, holding={"e/fs"})) == []
    assert taken(engines, share("e/fs", 0, 1.0, at_ns=2 * SECOND)) == ["(e/cpu#0 e/fs#0)"]


def test_a_tier_is_one_stream() -> None:
    """Two topics at one address have no order between them: that is said, once."""
    engines = Engines([TIERS])
    other = msgspec.structs.replace(share("e/fs", 0, 1.0), source=SourceId("e/fs", b"b"))
    third = msgspec.structs.replace(other, source=SourceId("e/fs", b"c"))
    out = taken(engines, share("e/fs", 0, 1.0), other, third)
    word = "e/fs: more than one topic or rank speaks here; a tier is one stream, choose it with its topic"
    assert out == [word]
