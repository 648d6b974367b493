"""What waits behind a hole: lowest number first, bounded, and nothing forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvbus.arrival import Arrival
from kvbus.events import EventBatch
from kvbus.waiting import Waiting


def early(seq: int, payload: bytes = b"x") -> Arrival:
    return Arrival(b"kv", seq, payload, seq, EventBatch(1.0, []), "map")


@given(
    steps=st.lists(st.tuples(st.sampled_from(["add", "pop", "take odd"]), st.integers(0, 30)), max_size=60)
)
def test_the_lowest_number_is_first_whatever_came_and_went(steps: list[tuple[str, int]]) -> None:
    """After any adding and taking, the first is the lowest number that waits, as a plain dict has it."""
    waiting = Waiting(batches_max=1000, bytes_max=1000)
    model: dict[int, Arrival] = {}
    for step, seq in steps:
        if step == "pop":
            assert waiting.pop(seq) == model.pop(seq, None)
        elif step == "take odd":
            odd = [model.pop(number) for number in sorted(model) if number % 2]
            assert waiting.take_if(lambda arrival: bool(arrival.seq % 2)) == odd
        elif seq not in model:
            assert waiting.add(early(seq))
            model[seq] = early(seq)
        waiting.check_integrity()
        assert len(waiting) == len(model)
        assert not model or waiting.first.seq == min(model)
        assert waiting.last_seq == max(model, default=-1)


def test_what_finds_no_room_is_refused() -> None:
    """Neither more batches nor more bytes than allowed wait; what leaves makes room."""
    few, small = Waiting(batches_max=2, bytes_max=100), Waiting(batches_max=100, bytes_max=10)
    assert [few.add(early(seq)) for seq in range(3)] == [True, True, False]
    assert [small.add(early(seq, b"12345")) for seq in range(3)] == [True, True, False]
    small.pop(0)
    assert small.add(early(3, b"12345"))
    small.check_integrity()
