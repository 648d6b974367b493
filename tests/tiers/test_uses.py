"""When a file's time has to be set: once a minute and block."""

from __future__ import annotations

from unittest.mock import patch

from tests.tiers.words import k
from tiers.filesystem.uses import Uses


def test_a_use_is_told_once_a_minute() -> None:
    """Within a minute once for each block; in the next one again."""
    now = 30.0
    uses = Uses(clock=lambda: now)
    assert [uses.told(k("a")), uses.told(k("a")), uses.told(k("b"))] == [False, True, False]
    now = 59.9
    assert uses.told(k("a"))
    now = 60.0
    assert [uses.told(k("a")), uses.told(k("a"))] == [False, True]


def test_what_is_remembered_is_bounded() -> None:
    """Beyond so many blocks all are forgotten, and told once more."""
    uses = Uses(clock=lambda: 0.0)
    with patch("tiers.filesystem.uses.BLOCKS_MAX", 2):
        assert [uses.told(k(name)) for name in "abca"] == [False, False, False, False]
