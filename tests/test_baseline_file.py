"""``kvbus/baseline_file.py``: baselines on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbus.baseline import BaselineError
from kvbus.baseline_file import begins_as_baseline, load, save
from kvbus.comparison import compare
from tests.tellings import tell


def test_a_baseline_is_kept_and_replaced(tmp_path: Path) -> None:
    """What is saved is loaded; a newer one takes its place, and no draft stays behind."""
    file = tmp_path / "x.baseline"
    for story in ("+a", "+a | -a"):
        save(file, tell(story))
        assert begins_as_baseline(file)
        assert compare(tell(story), load(file)).same
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    """A file that is no baseline, and a folder, are left as they are."""
    notes = tmp_path / "notes"
    notes.write_text("mine")
    for path in (notes, tmp_path):
        with pytest.raises(BaselineError, match="is no baseline"):
            save(path, tell("+a"))
    assert notes.read_text() == "mine"


def test_trouble_with_files_is_told(tmp_path: Path) -> None:
    """No file, no folder, no text: each with its path and a next step."""
    garbled = tmp_path / "x.baseline"
    garbled.write_bytes(b"kvbus baseline 1\nsource 1\n\xff")
    for attempt, why in (
        (lambda: load(tmp_path / "none"), "cannot read"),
        (lambda: begins_as_baseline(tmp_path / "none"), "cannot read"),
        (lambda: save(tmp_path / "no" / "x", tell("+a")), "cannot write"),
        (lambda: load(garbled), "is not text"),
    ):
        with pytest.raises(BaselineError, match=why):
            attempt()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    """A baseline that is a link leads to the new one afterwards, and is still a link."""
    file, link = tmp_path / "x.baseline", tmp_path / "link"
    save(file, tell("+a"))
    link.symlink_to(file)
    save(link, tell("+a | -a"))
    assert link.is_symlink()
    assert compare(tell("+a | -a"), load(file)).same
