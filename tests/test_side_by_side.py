"""``kvbus/side_by_side.py``: a comparison in words."""

from __future__ import annotations

import json

from kvbus.side_by_side import as_object, lines
from tests.tellings import versus


def test_the_parting_is_shown_with_its_context() -> None:
    """What was the same before, the first events that differ and where they stand, what follows, the lives of
    the blocks concerned under one name on both sides, and the counts.
    """
    told = list(lines(versus("+a,b | +c | -a!evicted | +d", "+x,y | +z | -y!evicted | +w")))
    assert told == [
        "DIFFERENT: A is a, B is b",
        "  GPU: the first 2 events are the same, then they part",
        "      = stored GPU b1,b2 tokens=8 size=4",
        "      = stored GPU b3 tokens=4 size=4",
        "    A > removed GPU b1 reason=evicted   (epoch 0 seq 2 event 0 position 2)",
        "    A   stored GPU b4 tokens=4 size=4",
        "    B > removed GPU b2 reason=evicted   (epoch 0 seq 2 event 0 position 2)",
        "    B   stored GPU b4 tokens=4 size=4",
        "    b1 in A: stored GPU (seq 0), removed GPU (seq 2, evicted)",
        "    b1 in B: stored GPU (seq 0)",
        "    b2 in A: stored GPU (seq 0)",
        "    b2 in B: stored GPU (seq 0), removed GPU (seq 2, evicted)",
        "    in all: 1 missing (only A has them), 1 extra (only B), 0 reordered, 0 in another batch",
        "      missing: removed GPU b1 reason=evicted   (epoch 0 seq 2 event 0 position 2)",
        "      extra: removed GPU b2 reason=evicted   (epoch 0 seq 2 event 0 position 2)",
    ]


def test_what_is_alike_is_said_in_a_line() -> None:
    """The same, and engines that are the same beside others that are not."""
    assert list(lines(versus("+a", "+b"))) == ["SAME: 1 events of a and 1 of b are in one order"]
    told = list(lines(versus("@x#0 +a | @y c:+b", "@x#0 +a")))
    assert "  GPU rank 0: 1 events, in one order" in told
    assert "  CPU: only A has it, 1 events" in told
    assert "    B > ends here" in told


def test_events_that_differ_in_their_batch_alone_say_so() -> None:
    """Otherwise both sides would look alike."""
    told = "\n".join(lines(versus("+a +b", "+a | +b")))
    assert "in the same batch as the event before)" in told
    assert "in a new batch)" in told


def test_the_object_says_the_same() -> None:
    """It is plain JSON: whether, where and how much they differ."""
    found = json.loads(json.dumps(as_object(versus("+a | +b | -a", "+a | +b | -b"))))
    (engine,) = found["engines"]
    assert (found["same"], engine["same_events"], engine["media"], engine["rank"]) == (
        False,
        2,
        ["GPU"],
        None,
    )
    assert (engine["missing"], engine["extra"], engine["reordered"], engine["rebatched"]) == (1, 1, 0, 0)
    assert engine["part_b"][0] == {
        "said": "removed GPU b2",
        "source": "engine",
        "epoch": 0,
        "seq": 2,
        "event": 0,
        "position": 2,
    }
    assert [event["said"] for event in engine["before"]] == [
        "stored GPU b1 tokens=4 size=4",
        "stored GPU b2 tokens=4 size=4",
    ]
    assert as_object(versus("+a", "+b"))["engines"][0].keys() == {
        *("media", "rank", "same", "events_a", "events_b")
    }
