"""Finding a block and a place in a log, whether it has columns or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbus.block_log import chunks, last_position, resolved
from kvbus.chunks import Chunks
from kvbus.errors import ConfigError
from kvbus.log import LogReader
from kvbus.replay import Point
from kvbus.testing import EPOCH_TS, block, history
from tests.list_log import ListLog, in_a_file

STORY = history("g:+aa,ab g:+b | c:+aa | g:-b clear")


@pytest.fixture(params=["list", "file"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogReader]:
    found: LogReader = ListLog(STORY) if request.param == "list" else in_a_file(STORY, tmp_path / "x.duckdb")
    yield found
    found.close()


def test_a_unique_beginning_is_the_block(log: LogReader) -> None:
    """As few digits as only one block of the log begins with are enough."""
    assert resolved(log, "0x62") == block("b")
    assert resolved(log, "6161") == block("aa")
    assert resolved(log, "0x99") is None
    assert resolved(log, "12345678901234567890") == 12345678901234567890


def test_a_beginning_of_several_blocks_is_refused(log: LogReader) -> None:
    """The error names them."""
    with pytest.raises(ConfigError, match=f"{block('aa'):016x}, 0x{block('ab'):016x}"):
        resolved(log, "0x61")


def test_a_time_is_the_last_batch_that_had_come_by_then(log: LogReader) -> None:
    """Before the first batch it is -1, from the last one on the end of the log."""
    ms = round(EPOCH_TS * 1000)
    at = [last_position(log, Point(time_ns=(ms + n) * 1_000_000)) for n in range(4)]
    assert at == [-1, 0, 1, None]
    assert last_position(log, Point(position=2)) == 2
    assert last_position(log, None) is None
    with pytest.raises(ConfigError, match="no position 3"):
        last_position(log, Point(position=3))


def test_what_bears_on_a_block_comes_with_every_batch(tmp_path: Path) -> None:
    """Of a file only the events that name it, or nothing, are read; no batch is left out."""
    with in_a_file(STORY, tmp_path / "x.duckdb") as log:
        found = list(chunks(log, Chunks(), naming=[block("b")]))
        assert sum(len(chunk.seq) for chunk in found) == 3
        assert sum(len(chunk.kind) for chunk in found) == 3
        assert list(chunks(log, Chunks(), last=-1)) == []
