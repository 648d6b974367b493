"""One drain, one timestamp: what every tier publishes, and what becomes of a voice that fails."""

from __future__ import annotations

import math
import time

import pytest
import zmq

from kvbus import BlockRemoved, EndpointError, Event, KvbusError, Publisher
from tests.tiers.hearing import Ear, Heard, events_of
from tiers.errors import TierContractError
from tiers.voice.voices import Address, Voices


def gone(number: int) -> Event:
    return BlockRemoved([number], medium="CPU")


def test_every_tier_speaks_under_one_timestamp() -> None:
    """A tier without a word publishes an empty share, so that readers know the round is whole."""
    cpu, fs = Heard(), Heard()
    voices = Voices({"cpu": cpu, "fs": fs}, clock=lambda: 5.0)
    drain = voices.say([[gone(1)], []])
    assert drain == (5.0, [[gone(1)], []], ())
    assert (cpu.said, fs.said) == ([(5.0, [gone(1)])], [(5.0, [])])


def test_a_round_in_which_nobody_speaks_is_not_published() -> None:
    """No events, no batch, no number used up."""
    cpu, fs = Heard(), Heard()
    voices = Voices({"cpu": cpu, "fs": fs})
    assert voices.say([[], []]).ts is None
    assert (cpu.said, fs.said) == ([], [])
    assert "drains" not in voices.get_stats()


def test_timestamps_go_up_whatever_the_clock_does() -> None:
    """A clock that stands still or is set back does not put two rounds under one timestamp."""
    times = iter([5.0, 5.0, 3.0, 6.0])
    voices = Voices({"cpu": Heard()}, clock=lambda: next(times))
    stamps = [voices.say([[gone(n)]]).ts for n in range(4)]
    after = math.nextafter(5.0, 6.0)
    assert stamps == [5.0, after, math.nextafter(after, 6.0), 6.0]


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan, 1.7e12, None, "noon", OSError("stopped")])
def test_a_clock_that_is_wrong_once_is_wrong_once(wrong: object) -> None:
    """No time, a time in milliseconds, an error: the round goes out a little after the last; then it is the
    clock's again.
    """
    times = iter([5.0, wrong, 6.0])

    def clock() -> float:
        if isinstance(read := next(times), Exception):
            raise read
        return read  # type: ignore[return-value]

    voices = Voices({"cpu": Heard()}, clock=clock)
    stamps = [voices.say([[gone(n)]]).ts for n in range(3)]
    assert stamps == [5.0, math.nextafter(5.0, 6.0), 6.0]
    assert voices.get_stats()["clock_faults"] == 1


def test_a_clock_that_is_wrong_from_the_first_is_not_believed() -> None:
    """The round goes out at the computer's own time."""
    before = time.time()
    ts = Voices({"cpu": Heard()}, clock=lambda: math.inf).say([[gone(1)]]).ts
    assert ts is not None
    assert before <= ts <= time.time()


@pytest.mark.parametrize(
    "error",
    [
        KvbusError("closed", next_step="-"),
        BrokenPipeError("dead"),
        zmq.Again(),
        RuntimeError("foreign"),
        AssertionError("its own"),
    ],
)
def test_a_voice_that_fails_is_counted_and_the_others_are_heard(error: Exception) -> None:
    """Which share nobody heard is in the drain and in the counters; the tier speaks again when it can."""
    cpu, fs = Heard(), Heard()
    voices = Voices({"fs": fs, "cpu": cpu})
    fs.error = error
    drain = voices.say([[gone(1)], [gone(2)]])
    assert (drain.unheard, drain.shares) == (("fs",), [[gone(1)], [gone(2)]])
    fs.error = None
    assert voices.say([[gone(3)], []]).unheard == ()
    assert ([e for _, e in fs.said], [e for _, e in cpu.said]) == ([[gone(3)]], [[gone(2)], []])
    assert voices.get_stats()["dropped.fs.unheard"] == 1


def test_a_share_too_few_is_a_mistake_and_nothing_is_said() -> None:
    """Shares and tiers belong together one by one."""
    cpu = Heard()
    voices = Voices({"cpu": cpu, "fs": Heard()})
    with pytest.raises(TierContractError, match="1 shares for 2 tiers"):
        voices.say([[gone(1)]])
    assert cpu.said == []


def test_addresses_become_publishers_that_it_closes() -> None:
    """Free ports by default; a given publisher is left open, those made are closed with it."""
    with Publisher("tcp://127.0.0.1:*") as given:
        voices = Voices({"cpu": Address(), "fs": given})
        cpu, fs = voices.feeds
        assert (cpu.name, fs.name, fs.endpoint) == ("cpu", "fs", given.endpoint)
        assert cpu.replay is not None
        voices.close()
        voices.close()
        with Publisher(cpu.endpoint.replace("127.0.0.1", "*")):  # its port is free again
            given.publish([])


def test_an_address_that_is_taken_leaves_nothing_open() -> None:
    """Either all publishers are made or none."""
    with Publisher("tcp://127.0.0.1:*") as other, Publisher("tcp://127.0.0.1:*") as free:
        free.close()
        at = free.endpoint.replace("127.0.0.1", "*")
        with pytest.raises(EndpointError):
            Voices({"cpu": Address(at), "fs": Address(other.endpoint.replace("127.0.0.1", "*"))})
        with Publisher(at):
            pass


def test_topic_rank_and_drops_are_the_publishers() -> None:
    """Topic and rank go before and into each batch; what a publisher dropped is in the counters."""
    voices = Voices({"cpu": Address()}, topic="kv@here", data_parallel_rank=3)
    with Ear(voices.feeds) as ear:
        voices.say([[gone(1)]])
        ear.listen_until(lambda: bool(ear.rounds))
        (received,) = ear.received("cpu")
    assert (received.source.topic, received.source.rank) == (b"kv@here", 3)
    assert events_of(ear.rounds) == [gone(1)]
    voices.say([[BlockRemoved([1 << 64])]])
    voices.close()
    assert voices.get_stats() == {"drains": 2, "events.cpu": 2, "dropped.cpu.unencodable": 1}
