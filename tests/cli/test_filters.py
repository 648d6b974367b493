"""``cli/filters.py``: what to show."""

from __future__ import annotations

import pytest

from cli.filters import Filters, filters
from kvbus.errors import ConfigError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from kvbus.log import Received, SourceId

BIG = 0xAB12345678901234
EVENTS: list[Event] = [
    BlockStored([1, BIG], medium="GPU"),
    BlockStored([2], medium="cpu"),
    BlockRemoved([1], None),
    BlockRemoved([0x10], "CPU"),
    AllBlocksCleared(),
]


def passed(chosen: Filters, rank: int = 0) -> list[int]:
    batch = Received(SourceId("a", b"", rank), 0, 0, b"", 0, False, EventBatch(0.0, EVENTS), "map")
    return [index for index, _ in chosen.events(batch)]


@pytest.mark.parametrize(
    ("kinds", "media", "hashes", "found"),
    [
        ([], [], [], [0, 1, 2, 3, 4]),
        (["stored"], [], [], [0, 1]),
        (["BlockRemoved", "CLEARED"], [], [], [2, 3, 4]),
        ([], ["gpu"], [], [0, 2, 4]),
        ([], ["CPU"], [], [1, 3]),
        (["removed"], ["cpu", "storage"], [], [3]),
        ([], [], ["0xab12"], [0]),
        ([], [], ["AB12"], [0]),
        ([], [], [str(BIG)], [0]),
        ([], [], [str(BIG)[:9]], [0]),
        ([], [], ["0000000000000010"], [3]),
        ([], [], ["16"], [3]),
        ([], [], ["0xab12", "16"], [0, 3]),
        (["nothing"], [], [], []),
    ],
)
def test_filters(kinds: list[str], media: list[str], hashes: list[str], found: list[int]) -> None:
    """Within one filter any will do, together all must agree; hashes match by prefix in hex or decimal."""
    assert passed(filters(kinds, media, [], hashes)) == found


def test_ranks() -> None:
    """A rank filter is about the stream, not the event."""
    assert passed(filters([], [], [0, 2], [])) == [0, 1, 2, 3, 4]
    assert passed(filters([], [], [1], [])) == []


@pytest.mark.parametrize("text", ["", "0x", "xyz", "0x" + "1" * 17, "-1"])
def test_what_is_no_hash_is_an_error(text: str) -> None:
    """A prefix that no hash can have is refused rather than never matched."""
    with pytest.raises(ConfigError, match="is not a block hash"):
        filters([], [], [], [text])
