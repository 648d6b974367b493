"""``kvbus/draft.py``: whole or not at all, and through links."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbus.draft import check_place, draft_of


def write_half(path: Path) -> None:
    with draft_of(path) as draft:
        draft.write_text("half")
        raise ValueError("torn")


def test_it_appears_when_it_is_whole(tmp_path: Path) -> None:
    """Until the end the old file is there, afterwards the new one, and nothing else."""
    path = tmp_path / "x"
    path.write_text("old")
    with draft_of(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("x", "new")]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    """The old file stays, the draft goes."""
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(ValueError, match="torn"):
        write_half(path)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("x", "old")]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_written_through(tmp_path: Path, there: bool) -> None:
    """What it leads to is replaced, or made, and the link stays a link."""
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(Path("folder") / "target")
    if there:
        target.write_text("old")
    with draft_of(link) as draft:
        draft.write_text("new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["folder", "link", "target"]


def test_a_link_to_itself_is_no_place(tmp_path: Path) -> None:
    """It is refused, and stays."""
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(OSError, match="Too many levels"):
        check_place(link)
    with pytest.raises(OSError, match="Too many levels"), draft_of(link):
        pass
    assert link.is_symlink()


def test_a_place_is_checked_without_a_trace(tmp_path: Path) -> None:
    """What is there stays as it is; a long name is no hindrance, a folder that is not there is."""
    (tmp_path / "x").write_text("old")
    check_place(tmp_path / "x")
    check_place(tmp_path / ("é" * 120))
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]
    with pytest.raises(FileNotFoundError):
        check_place(tmp_path / "no" / "x")
