"""Which address a publisher of which rank has, and whether it binds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.endpoints import IPC_PATH_MAX, Endpoint, binds, live_endpoint, rank_endpoint, replay_endpoint
from kvbus.errors import EndpointError

HOSTS = st.sampled_from(["*", "127.0.0.1", "0.0.0.0", "node-7.cluster", "[::]", "[fe80::1]", "eth0"])
PORTS = st.integers(1, 65535)
RANKS = st.integers(0, 1 << 17)


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://*:0", True),
        ("tcp://127.0.0.1:*", True),
        ("tcp://[::]:5557", True),
        ("tcp://[::1]:5557", True),
        ("tcp://0.0.0.0:5557", False),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://router:5557", False),
        ("ipc:///tmp/kv.sock", True),
        ("inproc://kv", True),
    ],
)
def test_what_is_bound_and_what_connected_to(endpoint: str, bound: bool) -> None:
    """The rule is vLLM's: a star, ``::``, ipc and inproc bind; everything else, 0.0.0.0 too, connects."""
    assert binds(endpoint) is bound
    assert live_endpoint(endpoint).binds is bound
    assert replay_endpoint(endpoint).binds is True


@pytest.mark.parametrize(
    ("endpoint", "rank", "address"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 3, "tcp://*:5560"),
        ("tcp://[::]:5557", 1, "tcp://[::]:5558"),
        ("tcp://*:0", 3, "tcp://*:0"),
        ("tcp://127.0.0.1:*", 3, "tcp://127.0.0.1:*"),
        ("ipc:///tmp/kv", 2, "ipc:///tmp/kv_dp2"),
        ("ipc:///tmp/kv", 0, "ipc:///tmp/kv"),
        ("ipc://*", 2, "ipc://*"),
        ("inproc://kv", 2, "inproc://kv_dp2"),
    ],
)
def test_each_rank_has_its_own_address(endpoint: str, rank: int, address: str) -> None:
    """A rank adds itself to the port or a suffix to the name; an address the system chooses is left alone."""
    assert rank_endpoint(endpoint, rank) == address


@given(HOSTS, PORTS, RANKS)
def test_tcp_ranks_never_leave_the_ports(host: str, port: int, rank: int) -> None:
    """The port of a rank is base + rank, or the call says that there is none."""
    if port + rank <= 65535:
        assert rank_endpoint(f"tcp://{host}:{port}", rank) == f"tcp://{host}:{port + rank}"
    else:
        with pytest.raises(EndpointError, match="65535"):
            rank_endpoint(f"tcp://{host}:{port}", rank)


@given(st.sampled_from(["ipc:///run/kv", "inproc://kv"]), st.sets(RANKS, min_size=2, max_size=2))
def test_named_ranks_never_collide(base: str, ranks: set[int]) -> None:
    """Two ranks of one named endpoint have two addresses, both bound."""
    addresses = {rank_endpoint(base, rank) for rank in ranks}
    assert len(addresses) == 2
    assert all(binds(address) for address in addresses)


@given(st.text(max_size=20), RANKS)
def test_any_string_is_an_address_or_an_error(endpoint: str, rank: int) -> None:
    """Whatever is written as an endpoint gives a checked one or an EndpointError that says what to do."""
    try:
        got: Endpoint | str = live_endpoint(endpoint, rank=rank)
    except EndpointError as error:
        got = error.next_step
    assert got
    assert isinstance(got, str) or got.address.startswith(("tcp://", "ipc://", "inproc://"))


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp",
        "tcp://",
        "tcp://*",
        "tcp://:5557",
        "tcp://*:",
        "tcp://*:http",
        "tcp://*:65536",
        "tcp://*:-1",
        "tcp://*:٣",
        "udp://*:5557",
        "ipc://",
        "ipc:///" + "x" * IPC_PATH_MAX,
        "5557",
    ],
)
def test_what_cannot_be_an_address_is_refused(endpoint: str) -> None:
    """Malformed addresses are refused before libzmq sees them."""
    with pytest.raises(EndpointError):
        live_endpoint(endpoint)
    with pytest.raises(EndpointError):
        replay_endpoint(endpoint)


def test_nothing_connects_to_port_zero() -> None:
    """Port 0 can be bound but not connected to, and the error says how to bind it."""
    with pytest.raises(EndpointError, match=r"tcp://\*:0"):
        live_endpoint("tcp://127.0.0.1:0")
    assert replay_endpoint("tcp://127.0.0.1:0").binds


def test_a_negative_rank_is_refused() -> None:
    """Ranks count from 0."""
    with pytest.raises(EndpointError, match="-1"):
        rank_endpoint("tcp://*:5557", -1)


@pytest.mark.parametrize(
    ("endpoint", "ipv6"), [("tcp://[::]:1", True), ("tcp://[::1]:1", True), ("tcp://*:1", False)]
)
def test_ipv6_addresses_say_so(endpoint: str, ipv6: bool) -> None:
    """libzmq opens an IPv6 address only on a socket that has the option set."""
    assert live_endpoint(endpoint).ipv6 is ipv6
