"""The queue between the engine's thread and the sender."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvbus.outbox
from kvbus.errors import KvbusError
from kvbus.outbox import Fresh, Hole, Item, Nudge, Outbox, Ready


def batch(number: int) -> Ready:
    return Ready(b"", number, b"")


def told(outbox: Outbox, items: list[Item]) -> list[int]:
    """What a taker makes of items: the batch numbers in order, and -1 for each batch lost between them."""
    story: list[int] = []
    for item in items:
        if isinstance(item, Ready):
            story.append(item.seq)
        elif isinstance(item, Hole):
            story += [-1] * outbox.open_hole(item)
    return story


def emptied(outbox: Outbox) -> list[int]:
    story: list[int] = []
    while items := outbox.take(3, timeout_s=0.001):
        story += told(outbox, items)
    return story


@given(st.lists(st.integers(1, 5) | st.integers(-4, -1), max_size=30), st.integers(1, 6))
def test_every_batch_or_its_loss_is_in_its_place(steps: list[int], limit: int) -> None:
    """However putting (n batches) and taking (-n items) alternate, each batch or its loss is in its place."""
    outbox, put, story = Outbox(limit), 0, list[int]()
    for step in steps:
        if step < 0 and len(outbox):
            story += told(outbox, outbox.take(-step, timeout_s=0))
        for _ in range(step):
            outbox.put(batch(put))
            put += 1
    story += emptied(outbox)
    assert len(story) == put
    assert [seq for seq in story if seq >= 0] == [n for n, seq in enumerate(story) if seq >= 0]
    assert outbox.dropped == story.count(-1)


def test_losses_in_a_row_are_one_hole() -> None:
    """A stalled sender costs a queue of bounded length, however long the engine goes on."""
    outbox = Outbox(2)
    for number in range(1000):
        outbox.put(batch(number))
    assert len(outbox) == 3
    assert emptied(outbox) == [0, 1] + [-1] * 998


def test_a_taken_hole_takes_in_no_more() -> None:
    """A batch lost after the sender has counted a hole makes a new one."""
    outbox = Outbox(1)
    outbox.put(batch(0))
    outbox.put(batch(1))
    _, hole = outbox.take(5, timeout_s=0)
    assert isinstance(hole, Hole)
    assert outbox.open_hole(hole) == 1
    outbox.nudge()  # full again
    outbox.put(batch(2))
    assert emptied(outbox) == [-1]
    assert outbox.dropped == 2


def test_waiting_for_room_loses_nothing() -> None:
    """With ``waits`` a full box makes the caller wait, and all comes through in order."""
    outbox, story = Outbox(2, waits=True), list[int]()

    def fill() -> None:
        for number in range(200):
            outbox.put(batch(number))

    filler = threading.Thread(target=fill)
    filler.start()
    deadline = time.monotonic() + 20
    while len(story) < 200 and time.monotonic() < deadline:
        assert len(outbox) <= 2
        story += emptied(outbox)
    filler.join(5)
    assert story == list(range(200))
    assert outbox.dropped == 0


def test_shutting_wakes_who_waits_for_room() -> None:
    """A caller waiting for room hears that the box was shut."""
    outbox, heard = Outbox(1, waits=True), list[str]()
    outbox.put(batch(0))

    def put_one_more() -> None:
        try:
            outbox.put(batch(1))
        except KvbusError as error:
            heard.append(str(error))

    caller = threading.Thread(target=put_one_more)
    caller.start()
    time.sleep(0.05)
    outbox.shut("is closed")
    caller.join(5)
    assert not caller.is_alive()
    assert "is closed" in heard[0]


def test_a_shut_box_refuses_and_gives_out_what_it_has() -> None:
    """What was put before the end comes out before the end; what comes later is refused."""
    outbox = Outbox(10)
    outbox.put(Fresh(1.0, []))
    outbox.shut("is closed")
    outbox.shut("is closed again")
    assert outbox.take(5, timeout_s=0) == [Fresh(1.0, []), Nudge(last=True)]
    with pytest.raises(KvbusError, match="is closed"):
        outbox.put(batch(1))
    assert outbox.leftover() == 0


def test_leftovers_are_batches_only() -> None:
    """Batches that nobody took are counted; markers are not batches, and holes were counted before."""
    outbox = Outbox(2)
    for number in range(4):
        outbox.put(batch(number))
    outbox.nudge()
    outbox.shut("is closed")
    assert outbox.leftover() == 2
    assert outbox.dropped == 2


def test_taking_from_an_empty_box_ends() -> None:
    """A taker gets an empty list when nothing comes in time."""
    assert Outbox(1).take(5, timeout_s=0.01) == []


def test_a_put_may_interrupt_a_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that publishes while its thread finds the box full neither hangs nor is uncounted."""
    outbox, real = Outbox(1), kvbus.outbox.Hole
    outbox.put(batch(0))

    def interrupted(count: int) -> Hole:
        monkeypatch.setattr(kvbus.outbox, "Hole", real)
        outbox.put(batch(2))
        return real(count)

    monkeypatch.setattr(kvbus.outbox, "Hole", interrupted)
    thread = threading.Thread(target=outbox.put, args=(batch(1),), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    holes = [item for item in outbox.take(10, timeout_s=1) if isinstance(item, real)]
    assert sum(outbox.open_hole(hole) for hole in holes) == outbox.dropped == 2
