"""Parquet: the public tables of a log as files that any tool reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvbus.errors import LogError
from kvbus.log import Entry
from sinks.duckdb import DuckDBLog, open_log
from sinks.parquet import FILES, export
from tests.logs import everything, of_capture


def test_files_equal_the_log(tmp_path: Path, captures: Path) -> None:
    """Each file has the rows and columns that the log's table or view of that name has."""
    entries: list[Entry] = [*everything(), *of_capture(captures / "vllm032_restart.frames")]
    entries += of_capture(captures / "sglang0523_radix.frames", source="other")
    with DuckDBLog(tmp_path / "log.duckdb") as log:
        log.write(entries)
    export(entries, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        f"{name}.parquet" for name in FILES
    )
    with open_log(tmp_path / "log.duckdb") as reader:
        for name in FILES:
            order = "position, event" if name == "events" else "ALL"
            rows = [
                row
                for batch in reader.query(f"SELECT * FROM {name} ORDER BY {order}")
                for row in batch.to_pylist()
            ]
            found = pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist()
            assert rows, name
            assert sorted(found, key=str) == sorted(rows, key=str), name


def test_an_empty_log_is_empty_files(tmp_path: Path) -> None:
    """Of nothing, the files have their columns and no rows."""
    export([], tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "events.parquet")
    assert table.num_rows == 0
    assert "hashes" in table.column_names


def test_nothing_is_overwritten_or_left_half(tmp_path: Path) -> None:
    """A folder that is there is not touched; an export that fails leaves nothing."""
    with pytest.raises(LogError, match="is there already"):
        export(everything(), tmp_path)

    def failing() -> None:
        def broken() -> object:
            yield from everything()
            raise LogError("the log broke off", next_step="-")

        export(broken(), tmp_path / "out")  # type: ignore[arg-type]

    with pytest.raises(LogError, match="broke off"):
        failing()
    with pytest.raises(LogError, match="cannot write"):
        export(everything(), tmp_path / "no" / "out")
    assert list(tmp_path.iterdir()) == []
