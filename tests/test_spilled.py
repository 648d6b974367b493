"""``sinks/spilled.py``: what a question has laid aside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sinks.spilled import folder_of, remove_spilled


@pytest.mark.parametrize("others", [[], ["duckdb_temp_1_0_owner"]])
def test_only_what_is_ours_is_removed(tmp_path: Path, others: list[str]) -> None:
    """Files of another process stay, and so does their folder; without any it goes."""
    folder = folder_of(tmp_path / "day.duckdb")
    folder.mkdir()
    for name in (f"duckdb_temp_{os.getpid()}_0_owner", f"duckdb_temp_{os.getpid()}_0_storage.tmp", *others):
        (folder / name).touch()
    remove_spilled(tmp_path / "day.duckdb")
    assert [one.name for one in tmp_path.rglob("*")] == ([folder.name, *others] if others else [])


def test_a_folder_that_is_not_ours_stays(tmp_path: Path) -> None:
    """Where this process has laid nothing aside nothing is touched, be there a folder or none."""
    remove_spilled(tmp_path / "day.duckdb")
    folder_of(tmp_path / "day.duckdb").mkdir()
    remove_spilled(tmp_path / "day.duckdb")
    assert folder_of(tmp_path / "day.duckdb").is_dir()
