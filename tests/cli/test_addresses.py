"""Where the tiers of a run publish."""

from __future__ import annotations

import shlex

import pytest

from cli.addresses import addresses, engine_flag, feeds_of, reachable
from kvbus.config import load
from kvbus.errors import EndpointError
from kvbus.feed import Feed
from tiers.voice.voices import FREE_PORT, Address

NAMES = ("gpu", "cpu", "fs")


def test_without_a_word_every_tier_gets_free_ports_of_this_machine() -> None:
    """Nobody elsewhere can connect, and no port is fought over."""
    assert addresses(None, NAMES) == [Address(FREE_PORT, FREE_PORT)] * 3


def test_ipc_names_end_in_the_tier_s() -> None:
    """Live and replay of each tier lie beside each other."""
    assert addresses("ipc:///tmp/kv", NAMES[:2]) == [
        Address("ipc:///tmp/kv-gpu", "ipc:///tmp/kv-gpu-replay"),
        Address("ipc:///tmp/kv-cpu", "ipc:///tmp/kv-cpu-replay"),
    ]


def test_tcp_ports_go_up() -> None:
    """Live, replay, live, replay, in the order of the tiers; port 0 is any free one."""
    assert addresses("tcp://*:5600", NAMES[:2]) == [
        Address("tcp://*:5600", "tcp://*:5601"),
        Address("tcp://*:5602", "tcp://*:5603"),
    ]
    assert addresses("tcp://*:0", NAMES[:1]) == [Address("tcp://*:*", "tcp://*:*")]
    assert addresses("tcp://127.0.0.1:*", NAMES[:1]) == [Address(FREE_PORT, FREE_PORT)]


@pytest.mark.parametrize(
    "base",
    [
        "tcp://127.0.0.1:5600",
        "udp://*:1",
        "5600",
        "ipc://",
        "tcp://*:65535",
        "tcp://*:x",
        "ipc://" + "x" * 120,
    ],
)
def test_addresses_that_cannot_be(base: str) -> None:
    """What would be connected to, has no room, or is no address, is refused with what to write instead."""
    with pytest.raises(EndpointError) as raised:
        addresses(base, NAMES)
    assert raised.value.next_step


def test_what_is_told_can_be_pasted() -> None:
    """A shell, ``tail`` and ``record`` read the flag as the same tiers at the same addresses."""
    published = [
        Feed("tcp://*:5600", "tcp://0.0.0.0:5601", source="gpu"),
        Feed("ipc:///tmp/a,b+c's d@e-cpu", "ipc:///tmp/a,b+c's d@e-cpu-replay", source="cpu"),
    ]
    feeds = feeds_of(published)
    _, flag = shlex.split(engine_flag(feeds))
    (engine,) = load({"tiers": [flag]}, environ={}, cwd=None).engine
    assert [(f"{engine.name}/{t.name}", t.endpoint, t.replay) for t in engine.tier] == [
        (feed.name, feed.endpoint, feed.replay) for feed in feeds
    ]
    assert feeds[0].endpoint == "tcp://127.0.0.1:5600"
    assert reachable("tcp://10.0.0.1:5600") == "tcp://10.0.0.1:5600"


@pytest.mark.parametrize(
    "feed",
    [
        Feed("ipc:///tmp/a,b@c-cpu", "ipc:///tmp/a,b@c-cpu-replay", source="cpu"),
        Feed("ipc:///tmp/a+tcp://b-cpu", "ipc:///tmp/a-cpu-replay", source="cpu"),
        Feed("ipc:///tmp/a", "ipc:///tmp/b", source="no name"),
    ],
)
def test_what_cannot_be_told_is_refused(feed: Feed) -> None:
    """Names and addresses that --engine would read as others: nobody could watch."""
    with pytest.raises(EndpointError, match="--engine cannot say"):
        engine_flag(feeds_of([feed]))
