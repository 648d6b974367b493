"""The replay buffer against a slow model of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvbus.buffer import Kept, ReplayBuffer

STEPS, BYTES = 5, 40


class BufferAgainstModel(RuleBasedStateMachine):
    """The model keeps everything that was ever sent in a list, and works each answer out from that."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ReplayBuffer(STEPS, buffer_bytes=BYTES)
        self.sent: list[Kept] = []
        self.used = range(0)  # the numbers given out so far, sent or given up

    def still_there(self) -> list[Kept]:
        """The longest end of what was sent that fits both limits."""
        fitting: list[Kept] = []
        for kept in reversed(self.sent):
            if len(fitting) == STEPS or sum(len(k.payload) for k in fitting) + len(kept.payload) > BYTES:
                break
            fitting.insert(0, kept)
        return fitting

    def send(self, seq: int, payload: bytes) -> None:
        self.buffer.keep(b"t", seq, payload)
        self.sent.append(Kept(b"t", seq, payload))
        self.used = range(self.used.start if self.used else seq, seq + 1)

    @rule(payload=st.binary(max_size=15) | st.binary(min_size=BYTES, max_size=BYTES + 2))
    def next_number(self, payload: bytes) -> None:
        self.send(self.buffer.next_seq, payload)

    @rule(jump=st.integers(1, 4), payload=st.binary(max_size=15))
    def later_number(self, jump: int, payload: bytes) -> None:
        self.send(self.buffer.next_seq + jump, payload)

    @rule(count=st.integers(1, 3))
    def give_up(self, count: int) -> None:
        self.buffer.give_up(count)
        self.used = range(self.used.start if self.used else 0, self.used.stop + count)

    @rule()
    def restart(self) -> None:
        self.buffer.restart()
        self.sent, self.used = [], range(0)

    @rule(back=st.integers(1, 3))
    def number_that_goes_back(self, back: int) -> None:
        before = self.buffer.since(0)
        if self.buffer.next_seq >= back:
            with pytest.raises(ValueError, match="only go up"):
                self.buffer.keep(b"t", self.buffer.next_seq - back, b"")
        assert self.buffer.since(0) == before

    @invariant()
    def answers_as_the_model(self) -> None:
        self.buffer.check_integrity()
        kept = self.still_there()
        assert self.buffer.next_seq == self.used.stop
        for start in range(self.used.stop + 2):
            assert self.buffer.since(start) == [k for k in kept if k.seq >= start]
        # From first_seq on nothing that was sent is missing, and that would not hold one number earlier.
        gone = [k.seq for k in self.sent if k not in kept]
        floor = max(gone) + 1 if gone else self.used.start
        assert self.buffer.first_seq == (floor if floor < self.used.stop else None)


TestBufferAgainstModel = BufferAgainstModel.TestCase


@given(st.integers(0, 30), st.integers(0, 10))
def test_the_newest_are_kept(sent: int, steps: int) -> None:
    """Of n batches a buffer of k keeps the last k, and says from which number on."""
    buffer = ReplayBuffer(steps)
    for seq in range(sent):
        buffer.keep(b"", seq, b"x")
    buffer.check_integrity()
    assert [kept.seq for kept in buffer.since(0)] == list(range(max(0, sent - steps), sent))
    assert buffer.first_seq == (None if sent == 0 or steps == 0 else max(0, sent - steps))


def test_a_batch_larger_than_the_buffer_is_not_kept() -> None:
    """A payload above the byte limit leaves an empty buffer that says so, not one over its limit."""
    buffer = ReplayBuffer(10, buffer_bytes=100)
    buffer.keep(b"", 0, bytes(60))
    buffer.keep(b"", 1, bytes(101))
    buffer.check_integrity()
    assert buffer.since(0) == []
    assert (buffer.first_seq, buffer.next_seq, buffer.payload_bytes) == (None, 2, 0)


def test_numbers_given_up_are_not_too_old() -> None:
    """Batches lost before they were sent are absent from a replay, which is not too old for that."""
    buffer = ReplayBuffer(10)
    buffer.give_up(3)
    buffer.keep(b"", 3, b"x")
    assert buffer.first_seq == 0
    assert [kept.seq for kept in buffer.since(0)] == [3]


@pytest.mark.parametrize(("steps", "size"), [(-1, 0), (0, -1)])
def test_negative_limits_are_refused(steps: int, size: int) -> None:
    """A buffer holds nothing or more."""
    with pytest.raises(ValueError, match="less than nothing"):
        ReplayBuffer(steps, buffer_bytes=size)


@pytest.mark.parametrize("damage", ["payload_bytes", "buffer_steps", "next_seq"])
def test_integrity_check_finds_damage(damage: str) -> None:
    """The check that the other tests lean on fails when a counter is wrong."""
    buffer = ReplayBuffer(10)
    buffer.keep(b"", 0, b"xx")
    buffer.keep(b"", 1, b"yy")
    setattr(buffer, damage, 1)
    with pytest.raises(AssertionError):
        buffer.check_integrity()
