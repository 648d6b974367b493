"""Other projects' released code as fixtures; where `make peers` has not brought it, tests skip and say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from scripts.peers import load_kv_events
from tests.sockets import KeepingContext, Sockets

# What comes out of another project's module has no types here.
MakePublisher = Callable[..., Any]


@pytest.fixture(scope="session")
def kv_events() -> ModuleType:
    """vLLM's module ``vllm/distributed/kv_events.py``, as released: its publisher and its event classes."""
    try:
        return load_kv_events()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def vllm_publisher(kv_events: ModuleType) -> Iterator[MakePublisher]:
    """Makes vLLM publishers and shuts them down.

    ``vllm_publisher(**kwargs)`` takes the keywords of ``ZmqEventPublisher``. Without an endpoint both
    sockets take free ports; ``made.get_publisher_config()`` has the bound addresses, ``.endpoint`` and
    ``.replay_endpoint``.
    """
    made: list[Any] = []

    def make(*, data_parallel_rank: int = 0, **kwargs: Any) -> Any:
        free = {"endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0", "topic": "kv"}
        made.append(kv_events.ZmqEventPublisher(data_parallel_rank, **(free | kwargs)))
        return made[-1]

    yield make
    for publisher in made:
        publisher.shutdown()


@pytest.fixture
def context() -> Iterator[Sockets]:
    made = KeepingContext()
    yield made
    made.destroy(linger=0)
